"""What a terminal shows of the program's output: enough of one to read the chat's screen."""
import re
import unicodedata

# The escape sequences that the program uses; whatever else arrives is a text's.
KNOWN = re.compile(
    rb"\x1b\[(\?(1049|2004|1000|1002|1003|1006|2026|25|1004|7)[hl]|[><=]\d*u|\?u|2[23];\d(;\d)?t|[0-9;]*[HmJK]|\d* q)"
    rb"|\x1b\](2;[^\x00-\x1f\x7f]*|11;\?|52;c;[A-Za-z0-9+/=]*|8;[^\x00-\x1f]*|11[02]|1[012];\?)(\x1b\\|\x07)")
WHOLE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[^\[\]])", re.S)


class Screen:
    """What a terminal would show, and the control sequences that the program does not use."""

    def __init__(self, rows, columns):
        self.odd, self.rest, self.style = [], b"", None
        self.resize(rows, columns)

    def resize(self, rows, columns):
        self.cells = [[" "] * columns for _ in range(rows)]
        self.columns, self.at = columns, (0, 0)

    def feed(self, data):
        data, self.rest = self.rest + data, b""
        at = 0
        while at < len(data):
            byte = data[at]
            if byte == 0x1B:
                whole = WHOLE.match(data, at)
                if not whole:
                    # Either cut in two by a read, or too long to be a sequence.
                    if len(data) - at < 1 << 20:
                        self.rest = data[at:]
                        return
                    self.odd.append(data[at:at + 40])
                    return
                self.sequence(whole.group())
                at = whole.end()
                continue
            if byte < 0x20 or byte == 0x7F:
                if byte not in b"\r\n":
                    self.odd.append(data[max(0, at - 10):at + 10])
                at += 1
                continue
            end = at
            while end < len(data) and data[end] >= 0x20 and data[end] != 0x7F:
                end += 1
            run = data[at:end]
            if end == len(data):
                for cut in range(1, 4):
                    if len(run) >= cut and run[-cut] >= 0xC0:
                        need = 2 if run[-cut] < 0xE0 else 3 if run[-cut] < 0xF0 else 4
                        if cut < need:
                            run, self.rest = run[:-cut], run[-cut:]
                        break
            self.text(run.decode("utf-8", "replace"))
            at = end

    def sequence(self, sequence):
        if not KNOWN.fullmatch(sequence):
            self.odd.append(sequence)
        if sequence.startswith(b"\x1b[") and sequence[2:3].isdigit() or sequence[2:] in (b"H", b"J", b"K"):
            numbers = [int(n or 1) for n in re.findall(rb"\d+|(?<=;)(?=[;H])", sequence[2:-1])]
            if sequence.endswith(b"H"):
                row, column = (numbers + [1, 1])[:2]
                self.at = (row - 1, column - 1)
            elif sequence.endswith(b"J"):
                self.resize(len(self.cells), self.columns)

    def text(self, text):
        row, column = self.at
        for c in text:
            if "\x80" <= c < "\xa0":
                self.odd.append(repr(c).encode())
            wide = 0 if unicodedata.combining(c) or c in "\u200d\ufe0f" else 1
            wide += wide and unicodedata.east_asian_width(c) in "WF"
            if 0 <= row < len(self.cells) and column < self.columns and wide:
                self.cells[row][column] = c
                if wide == 2 and column + 1 < self.columns:
                    self.cells[row][column + 1] = ""
            column += wide
        self.at = (row, column)

    def rows(self):
        return ["".join(row).rstrip() for row in self.cells]
