"""Arithmetic of two to four whole numbers (minus, times, divided by), and the arithmetic that is declined."""
import data.words as W
from data.phrasing import dress, join
from data.tasks_math import NEEDS_THINKING, NUMBER_WORDS, SAID_SUMS, SHORT_SUMS, division_lines, signed_sum_lines
from data.texts import any_word, make_text
from data.tasks_variables import program_beyond
from data.turn import Turn, backwards, pick_phrasing

SIGNS = {"+": ["+", "+", "+", " + ", " + ", " + ", "+ ", " +", " plus "],
         "-": ["-", "-", "-", " - ", " - ", " - ", "- ", " -", "−", " − ", "–", " – ", " minus ", " minus ", " less "],
         "*": ["*", "*", "*", " * ", " * ", " * ", "x", " x ", " x ", "×", " × ", "·", " · ", " times ", " times ", " multiplied by ", "* ", " X "],
         "/": ["/", "/", "/", " / ", " / ", " / ", "÷", " ÷ ", " divided by ", " divided by ", " over ", "/ "]}
IN_WORDS = {"+": " plus ", "-": " minus ", "*": " times ", "/": " divided by "}
SAID = {    # requests in words; a before b in the result
    "-": ["subtract {b} from {a}", "take {b} from {a}", "take away {b} from {a}", "deduct {b} from {a}", "the difference between {a} and {b}",
          "what is the difference between {a} and {b}?", "what is left of {a} without {b}?", "what remains of {a} after {b}?", "take {b} off {a}",
          "{a} take away {b}", "what is {b} less than {a}?", "reduce {a} by {b}", "what is {a} reduced by {b}?", "count back {b} from {a}"],
    "*": ["multiply {a} by {b}", "multiply {a} and {b}", "the product of {a} and {b}", "what is the product of {a} and {b}?", "multiply {a} with {b}",
          "what do you get if you multiply {a} by {b}?", "give me the product of {a} and {b}", "find the product {a} by {b}", "product of {a}, {b}",
          "{a} and {b} multiplied", "can you multiply {a} by {b}?"],
    "/": ["divide {a} by {b}", "split {a} by {b}", "what is {a} divided by {b}?", "the quotient of {a} and {b}", "how often does {b} go into {a}?",
          "how many times does {b} fit into {a}?", "{b} into {a}", "can you divide {a} by {b}?", "what do you get if you divide {a} by {b}?",
          "find the quotient of {a} and {b}", "share {a} by {b}"],
}
DIGITS = {"-": 6, "*": 3, "/": 4}


def sized(rng, digits, short=0.6):
    """A whole number of up to `digits` digits, mostly short."""
    top = rng.choice([1, 1, 2, 2, 3]) if rng.random() < short else rng.randint(1, digits)
    return rng.randint(0, 10 ** min(top, digits) - 1)


def signed_chain(numbers, signs):
    """Lines and total of a chain of additions and subtractions; two lines and the total for each step."""
    total, lines = numbers[0], []
    for sign, number in zip(signs, numbers[1:]):
        more, total = signed_sum_lines(total, number if sign == "+" else -number)
        lines += more + [f"so {total}"]
    return lines, total


def product_lines(a, b):
    """Long multiplication, one digit of b a line, lowest digits first; returns the lines and the product."""
    lines, total = [f"{a} backwards {backwards(a)}"], 0
    for place, digit in enumerate(map(int, backwards(b))):
        total += a * digit * 10 ** place
        lines.append(f"{digit}: {'0' * place}{backwards(a * digit)}, total {backwards(total)}")
    return lines + [f"so {total}"], total


def worked(numbers, signs):
    """(reasoning lines, answer text, value) for numbers with signs between them."""
    text = str(numbers[0]) + "".join(f" {s} {n}" for s, n in zip(signs, numbers[1:]))
    if signs[0] == "*":
        lines, value = product_lines(*numbers)
    elif signs[0] == "/":
        lines, value, rest = division_lines(*numbers)
        lines.append(f"so {value}, rest {rest}")
        value = f"{value}, rest {rest}" if rest else str(value)
    else:
        lines, value = signed_chain(numbers, signs)
    return [text] + lines, f"{text} = {value}", str(value)


def draw(rng, kind):
    """(numbers, signs) of one kind within the ranges."""
    if kind == "-":
        count = rng.choice([2, 2, 2, 2, 2, 2, 3, 3, 4])
        numbers = [sized(rng, 6) for _ in range(count)]
        signs = [rng.choice("+--") for _ in range(count - 1)]
        if rng.random() < 0.22:
            numbers[0] = -numbers[0]
        elif "-" not in signs:
            signs[rng.randrange(count - 1)] = "-"
        if count == 2 and rng.random() < 0.06:
            numbers[1] = -numbers[1]
        return numbers, signs
    if kind == "*":
        kind = rng.random()
        if kind < 0.25:
            return [rng.randint(0, 20), rng.randint(0, 20)], ["*"]
        if kind < 0.4:
            numbers = [sized(rng, 3), rng.choice([10, 100, 5, 2, 25, 50, 20, 12, 1, 0])]
            rng.shuffle(numbers)
            return numbers, ["*"]
        return [sized(rng, 3, 0.5), sized(rng, 3, 0.5)], ["*"]
    divisor = rng.randint(1, rng.choice([9, 9, 12, 99]))
    number = sized(rng, 4)
    if rng.random() < 0.6:
        number = divisor * rng.randint(0, min(rng.choice([9, 12, 99, 9999]), 9999 // divisor))
    return [number, divisor], ["/"]


def spelled(rng, numbers, signs, words):
    """The expression as typed: one way to write each sign."""
    ways = {s: rng.choice(SIGNS[s]) if not words else IN_WORDS[s] for s in "+-*/"}
    if rng.random() < 0.12 and not words:
        ways = {s: w.strip() if w.strip() in "+-*/x×÷" else w for s, w in ways.items()}
    show = (lambda n: NUMBER_WORDS[n] if 0 <= n <= 20 else str(n)) if words else str
    text = show(numbers[0])
    for sign, number in zip(signs, numbers[1:]):
        way = ways[sign]
        text += (way if number >= 0 or way.endswith(" ") else way + rng.choice([" ", ""])) + show(number)
    return text


MORE_SHORT = ["calc {n}", "calculate {n}", "compute {n}", "eval {n}", "what's {n}", "whats {n}", "wats {n}", "{n} equals what?", "solve {n}", "result of {n}",
              "{n} please", "hey, what's {n}?", "hi, what is {n}?", "ok, {n}", "please calculate {n}", "quick: {n}", "can you calculate {n}?", "how much is {n} ?",
              "what is the result of {n}?", "do you know {n}?", "math: {n}", "evaluate {n}", "try {n}", "tell me {n}", "what does {n} equal?", "= {n}", "{n} = x?",
              "print({n})", "work out {n} for me", "and what is {n}?", "a small one: {n}", "what about {n}?", "{n} ???", "{n}!", "I need {n}", "is it true? {n} = ?", "for school: {n}", "I wonder what {n} is", "homework: {n}?", "{n} - can you do that?", "my question is {n}", "one more: {n}", "give me the answer to {n}", "the answer to {n}?", "I can't do {n} in my head", "help me with {n}", "do the math: {n}",
              "{n} is what?", "{n} is how much", "{n}, right?", "and {n}, then?", "would you compute {n} for me?", "I have to work out {n}.", "what number is {n}?", "my phone is dead. {n}?", "no calculator here. {n} =", "Okay: {n}", "is {n} easy for you?", "how about {n}?", "so, {n}, how much?"]


def short_request(rng, expression, held_out):
    """A short question for an expression."""
    if not held_out and rng.random() < 0.35:
        return rng.choice(MORE_SHORT).format(n=expression)
    user = pick_phrasing(rng, SHORT_SUMS, held_out).format(n=expression)
    return dress(rng, user) if not held_out and rng.random() < 0.3 else user


SIGNED_SUMS = SAID_SUMS + ["What is the sum of {n}?", "sum: {n}", "Add {n}", "Add these numbers: {n}", "The numbers are {n}. What is their sum?", "total: {n}", "sum of {n}", "{n}\nWhat is the sum?",
                           "{n}: what do they add up to?", "Calculate the sum of {n}.", "Sum up {n}", "Find the sum of these numbers: {n}", "What is {n} in total?"]


def make_signed_sum(rng, thinking):
    """A sum of a few listed numbers, some of them below zero: calculated as a chain of plus and minus."""
    count = rng.choice([2, 2, 3, 3, 3, 4, 4, 5, 6])
    numbers = [sized(rng, 4) * rng.choice([1, 1, -1]) for _ in range(count)]
    if min(numbers) >= 0:
        at = rng.randrange(count)
        numbers[at] = -max(1, numbers[at])
    typed = ", ".join(map(str, numbers[:-1])) + f"{rng.choice([' and ', ', ', ' and ', ', and '])}{numbers[-1]}" if rng.random() < 0.7 else rng.choice([", ", ",", "; ", "\n", " and "]).join(map(str, numbers))
    user = dress(rng, rng.choice(SIGNED_SUMS).format(n=typed))
    lines, answer, value = worked([numbers[0]] + [abs(n) for n in numbers[1:]], ["-" if n < 0 else "+" for n in numbers[1:]])
    return Turn("difference", user, "\n".join(lines), answer, value) if thinking else Turn("difference", user, "", NEEDS_THINKING, "ask again.")


def make_arithmetic(rng, held_out=False, core=False, thinking=True, kind=None):
    """One calculation with minus, times or divided by."""
    if not kind and rng.random() < 0.12:
        return make_signed_sum(rng, thinking)
    kind = kind or rng.choices("-*/", [4, 5, 3])[0]
    words = rng.random() < 0.08
    numbers, signs = draw(rng, kind)
    if words:
        numbers = [abs(n) % 21 for n in numbers]
        numbers[1] = max(1, numbers[1])
        signs[0] = kind
    if not held_out and not words and len(numbers) == 2 and min(numbers) >= 0 and rng.random() < 0.2:
        user = dress(rng, join(rng.choice(SAID[kind])) + rng.choice(["", ".", "."])).replace("?.", "?").format(a=numbers[0], b=numbers[1])
    else:
        user = short_request(rng, spelled(rng, numbers, signs, words), held_out)
    lines, answer, value = worked(numbers, signs)
    if words:
        lines[0] = "In digits: " + lines[0]
    task = {"-": "difference", "*": "product", "/": "quotient"}[kind]
    if not thinking:
        return Turn(task, user, "", NEEDS_THINKING, "ask again.")
    return Turn(task, user, "\n".join(lines), answer, value, held_out=held_out)


def make_difference(rng, held_out=False, core=False, thinking=True):
    return make_arithmetic(rng, held_out, core, thinking, "-")


def make_product(rng, held_out=False, core=False, thinking=True):
    return make_arithmetic(rng, held_out, core, thinking, "*")


def make_quotient(rng, held_out=False, core=False, thinking=True):
    return make_arithmetic(rng, held_out, core, thinking, "/")


# ---------------------------------------------------------------- what is declined

UNITS = """kg g km m cm mm miles feet inches litres pounds euros dollars seconds minutes hours days weeks months years
degrees percent grams metres watts volts bits bytes""".split()
FUNCTIONS = """sqrt sin cos tan log ln exp abs floor ceil round max min gcd lcm mod cbrt factorial sum avg mean median""".split()
THINGS = """apples pens books coins eggs cookies cars dogs birds stones flowers balls marbles stamps tickets sheep sweets
chairs bottles cards""".split()
BIG_WORDS = "hundred thousand million billion thirty forty fifty sixty seventy eighty ninety dozen half twice".split()


def long_number(rng, low, high):
    digits = rng.randint(low, high)
    return rng.randint(10 ** (digits - 1), 10 ** digits - 1)


def decimal(rng):
    mark = "," if rng.random() < 0.1 else "."
    whole = sized(rng, 3)
    return rng.choice([f"{whole}{mark}{rng.randint(0, 99)}", f"{whole}{mark}{rng.randint(1, 9)}", f"{whole}{mark}{rng.randint(1, 9)}",
                       f"{mark}{rng.randint(1, 99)}" if rng.random() < 0.3 else f"0{mark}{rng.randint(1, 9)}"])


def beyond_expression(rng):
    """An expression outside the ranges or with signs that are not known."""
    c, n = rng.choice, lambda: sized(rng, 3)
    sign = lambda kinds="+-*/": c(SIGNS[c(kinds)])
    kind = rng.randrange(24)
    if kind < 4:       # decimals
        parts = [decimal(rng), c([decimal(rng), str(n())])]
        rng.shuffle(parts)
        return parts[0] + sign() + parts[1]
    if kind < 7:       # too long
        which = c("+-*/")
        low = {"+": 7, "-": 7, "*": 4, "/": 5}[which]
        parts = [long_number(rng, low, c([low, low + 1, 12])), c([n(), long_number(rng, low, low + 4)])]
        if which == "/" :
            parts = c([parts, [n() + 100, long_number(rng, 3, 5)]])
        elif rng.random() < 0.5:
            parts.reverse()
        return f"{parts[0]}{sign(which)}{parts[1]}"
    if kind == 7:
        return c([f"{n()}^{n()}", f"{n()}**{n()}", f"{n()} ^ {n()}", f"{n()} ** {n()}", f"{n()}²", f"{n()}³", f"{n()} to the {c(['second', 'third', 'fourth', 'tenth'])}",
                  f"{n()} to the power {n()}", f"{n()} {c(['squared', 'cubed'])}", f"e^{n()}", f"2 to the {n()}", f"{n()} raised to {n()}"])
    if kind == 8:
        f = c(FUNCTIONS)
        return c([f"{f}({n()})", f"{f} {n()}", f"{f}({n()}, {n()})", f"the {f} of {n()}", f"{f} of {n()}", f"the {f} of {n()} and {n()}", f"{n()}!", f"√{n()}", f"the root of {n()}",
                  f"the {c(['cube', 'square', 'third'])} root of {n()}", f"|{-n()}|"])
    if kind == 9:
        return c([f"{n()}%", f"{n()} % {n()}", f"{n()}%{n()}", f"{n()}% of {n()}", f"{n()} percent of {n()}", f"{n()} mod {n()}", f"{n()} per cent of {n()}", f"{n()} plus {n()}%"])
    if kind < 12:
        a, b, d = n(), n(), n()
        s, t = c([("+", "*"), ("*", "+"), ("-", "*"), ("*", "-"), ("+", "/"), ("/", "+"), ("*", "/"), ("/", "*"), ("*", "*"), ("/", "/"), ("/", "-")])
        gap = c(["", " "])
        return c([f"{a}{gap}{s}{gap}{b}{gap}{t}{gap}{d}", f"({a}{gap}{s}{gap}{b}){gap}{t}{gap}{d}", f"{a}{gap}{s}{gap}({b}{gap}{t}{gap}{d})", f"{a}({b}{gap}+{gap}{d})",
                  f"({a}{gap}{c('+-')}{gap}{b})", f"{a}{IN_WORDS[s]}{b}{IN_WORDS[t]}{d}"])
    if kind == 12:
        return c([f"{n()}/0", f"{n()} / 0", f"{n()} divided by 0", f"{n()} divided by zero", f"{n()} ÷ 0", "1/0", "0/0"])
    if kind == 13:
        return c([f"{n()}/{n()}{c(SIGNS[c('+-*')])}{n()}/{n()}", f"1/{n()} of {n()}", f"half of {n()}", f"a {c(['half', 'third', 'quarter', 'tenth'])} of {n()}", f"{n()} and a half", f"double {n()}",
                  f"twice {n()}", f"{n()} 1/2 + {n()}", f"one {c(['half', 'third', 'quarter'])} plus one {c(['half', 'third', 'quarter'])}"])
    if kind == 14:
        group = lambda: f"{rng.randint(1, 999)},{rng.randint(0, 999):03d}" + (f",{rng.randint(0, 999):03d}" if rng.random() < 0.3 else "")
        return c([f"{group()}{sign()}{n()}", f"{group()}{sign()}{group()}", f"{n()}{sign()}{group()}", f"{rng.randint(1, 99)} {rng.randint(100, 999)} {rng.randint(100, 999)}{sign()}{n()}"])
    if kind == 15:
        unit, coin = c(UNITS), c("$€£¥")
        return c([f"{n()} {unit}{sign('+-*')}{n()} {c(UNITS)}", f"{n()}{unit}{sign('+-')}{n()}{unit}", f"{coin}{n()}{sign('+-')}{coin}{n()}", f"{n()}{coin}{sign('+-')}{n()}{coin}", f"{n()} {unit} in {c(UNITS)}",
                  f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}{sign('+-')}{n()}{c([' minutes', '', ' hours', ':30'])}", f"{n()} {unit}", f"{n()} {c(THINGS)}"])
    if kind == 16:
        big = lambda: f"{c(NUMBER_WORDS[1:])} {c(BIG_WORDS)}" + (f" {c(['and ', ''])}{c(NUMBER_WORDS[1:])}" if rng.random() < 0.5 else "")
        return c([f"{big()}{IN_WORDS[c('+-*/')]}{big()}", f"{big()}{IN_WORDS[c('+-*/')]}{c(NUMBER_WORDS)}", f"{c(BIG_WORDS[2:])}-{c(NUMBER_WORDS[1:10])}{IN_WORDS[c('+-*')]}{big()}", big()])
    if kind == 17:
        roman = lambda: "".join(c(["X", "V", "I", "M", "C", "L", "II", "XX", "IV"]) for _ in range(rng.randint(1, 3)))
        return c([f"0x{rng.randrange(4096):x}{sign('+-*')}{n()}", f"0b{rng.randrange(64):b}{sign('+-')}{n()}", f"{roman()}{sign('+-*')}{roman()}", f"{n()} in {c(['binary', 'hex', 'octal', 'roman numerals'])}",
                  f"{n()} & {n()}", f"{n()} | {n()}", f"{n()} << {n()}", f"{n()} // {n()}", f"{n()} @ {n()}", f"{n()} ? {n()}", f"{n()} # {n()}", f"{n()} and {n()}", f"{n()} or {n()}", f"{n()} ~ {n()}"])
    if kind == 18:
        return c([f"{n()} {c(['>', '<', '>=', '<=', '==', '!=', '≠', '≤'])} {n()}", f"{n()}{c('><')}{n()}", f"{n()} = {n()}", f"{n()}:{n()}", f"{n()} : {n()}", f"{n()}..{n()}", f"{n()}, {n()}, ...", f"{n()} {n()}",
                  f"{n()}, {n()}", f"{n()}-", f"+{n()}", f"{n()}+", f"{n()} *", f"{n()} + +", f"* {n()}", f"{n()} plus", f"-{n()}", f"{n()} + x", f"{n()} + ?", f"? + {n()}", f"{n()} + {c(THINGS)}"])
    if kind == 19:
        return c([str(n()), str(n()), str(long_number(rng, 1, 12)), decimal(rng), f"{c(NUMBER_WORDS)}", f"{n()}/{n()}/{rng.randint(1900, 2100)}"])
    low, top = rng.choice([(1, n()), (n(), n()), (0, n())])
    to = c([" to ", " to ", "-", "..", " through ", " up to ", " till "])
    return c([f"sum of {low}{to}{top}", f"the sum of {low}{to}{top}", f"the sum from {low}{to}{top}", f"all numbers from {low}{to}{top}", f"{low} + ... + {top}", f"{low} + {low + 1} + ... + {top}", f"{low}+{low + 1}+...+{top}",
              f"sum of the first {n()} {c(['numbers', 'primes', 'squares', 'integers', 'even numbers', 'odd numbers'])}", f"the {c(['average', 'mean', 'median', 'product', 'maximum', 'minimum', 'largest'])} of {n()}, {n()} and {n()}",
              f"the average of {n()} and {n()}", f"sum of squares up to {n()}", f"sum({low}..{top})", f"product of {low}{to}{top}", f"the {c(['digits', 'divisors', 'factors', 'digit sum'])} of {n()}", f"the largest of {n()}, {n()} and {n()}"])


BEYOND_PHRASES = ["calculate {n} for me", "find {n}", "compute {n}.", "can you tell me {n}?", "I want {n}", "show {n}", "say {n}", "explain {n}"]


def loose_numbers(rng):
    """A phrase with one to three numbers that asks for nothing the model knows."""
    c, n = rng.choice, lambda: sized(rng, 3)
    word = lambda: any_word(rng)
    filler_word = lambda: c(["of", "in", "out of", "within", "without", "under", "above", "beside", "per", "against", "inside", "before", "after", "versus", "near", word(), word()])
    start = c(["which is", "what is", "who is", "is", "why is", "can", "how is", "where is", "give me", "", "show me", "I have", "I am", "the", "what about", "are there", "tell me about", "how many", "which", "what"])
    body = c([f"{n()} {filler_word()} {n()}", f"{n()} {word()} {filler_word()} {n()}", f"{n()} {word()}", f"{word()} {n()}", f"{n()} {word()} {n()} {word()}", f"{word()} {n()} {word()} {n()}", f"{n()} {filler_word()} {filler_word()} {n()}", f"{n()} {word()} {word()} {n()} {word()} {n()}"])
    return f"{start} {body}".strip() + c(["", "?", ".", "?", "!"])


def word_problem(rng):
    """A small story with numbers, which the model does not solve."""
    c, n, t = rng.choice, lambda: rng.randint(2, rng.choice([9, 30, 99])), rng.choice(THINGS)
    who, other = c(["I", W.any_name(rng), "my brother", "a farmer", "she", "Tom"]), c(["friend", "sister", "teacher", "mother", W.any_name(rng)])
    has, gives = ("have", "give") if who == "I" else ("has", "gives")
    return c([f"{c(['If ', '', 'Suppose '])}{who} {has} {n()} {t} and {gives} {n()} to a {other}, how many are left?", f"{who} {has} {n()} {t} and {c(['buys', 'finds', 'loses', 'sells'])} {n()} more. How many {t} now?",
              f"{n()} {t} cost {n()} {c(['dollars', 'euros', 'coins'])}. What does one cost?", f"There are {n()} rows of {n()} {t}. How many {t} in all?", f"A {c(['train', 'car', 'bike'])} goes {n()} km in {n()} {c(['hours', 'minutes'])}. How fast is it?",
              f"How many {t} are in {n()} boxes of {n()}?", f"What comes next: {n()}, {n()}, {n()}, {n()}?", f"What comes after {n()}?", f"which number is missing: {n()}, {n()}, ?, {n()}", f"How many {c(UNITS)} are in {c(['a', 'one', n()])} {c(UNITS)}?",
              f"is {n()} {c(['prime', 'odd', 'even', 'a prime', 'a square', 'divisible by ' + str(n()), 'bigger than ' + str(n())])}?", f"{c(['count', 'please count', 'can you count'])} {c(['to', 'from 1 to', 'up to', 'down from', 'backwards from'])} {n()}",
              f"{c(['guess', 'think of', 'choose', 'say', 'give me'])} a number {c(['from', 'between'])} {n()} {c(['to', 'and'])} {n()}", f"what is the {c(['next', 'biggest', 'smallest', 'largest known', 'tenth', 'first'])} {c(['prime', 'number', 'even number', 'square'])}?",
              f"{who} {c(['is', 'was'])} {n()} years old and {other} is {n()}. Who is older?", f"round {decimal(rng)}", f"simplify {n()}/{n()}", f"factor {n()}", f"{n()} people share {n()} {t}. How many does each get?",
              f"what is the {c(['area', 'perimeter', 'volume'])} of a {c(['square', 'circle', 'rectangle', 'cube'])} with {c(['side', 'radius', 'length'])} {n()}?", f"list the {c(['primes', 'even numbers', 'numbers', 'squares'])} {c(['below', 'up to', 'under'])} {n()}"])


def odd_equations(rng):
    """Equations that are not linear in one unknown, or not with whole numbers."""
    c, n, x = rng.choice, lambda: rng.randint(2, rng.choice([9, 30, 99])), rng.choice("xyzabnt")
    y = rng.choice([v for v in "xyzabnt" if v != x])
    s = lambda: rng.choice([" + ", " - ", "+", "-"])
    body = c([f"{x}^2 = {n()}", f"{x}²{s()}{n()}{x}{s()}{n()} = 0", f"{n()}{x}^2{s()}{n()} = {n()}", f"{x}*{x} = {n()}", f"{x}^3{s()}{n()} = {n()}", f"{n()}{x}{s()}{n()}{y} = {n()}", f"{x}{s()}{y} = {n()}",
              f"{x}/{n()} = {n()}", f"{x}/{n()}{s()}{n()} = {n()}", f"{n()}/{x} = {n()}", f"{decimal(rng)}{x} = {n()}", f"{n()}{x}{s()}{decimal(rng)} = {n()}", f"sqrt({x}) = {n()}", f"{n()}({x}{s()}{n()}) = {n()}",
              f"{x}{s()}{y} = {n()}{c([', ', ' and ', '; ', chr(10)])}{x}{s()}{y} = {n()}", f"{x} > {n()}", f"{n()}{x}{s()}{n()} < {n()}", f"|{x}| = {n()}", f"2^{x} = {n()}", f"{x}{y} = {n()}", f"{n()}{x}{s()}{n()}", f"{x}{s()}{n()}"])
    return c(["{e}", "Solve {e}", "solve {e} for {v}", "What is {v} if {e}?", "Find {v}: {e}", "{e}, what is {v}?", "Solve the equation {e}.", "{e}. Find {v}.", "factor {e}", "simplify {e}"]).format(e=body, v=x)


def odd_lists(rng):
    """Lists to sort or add that hold something else than whole numbers within the ranges."""
    c, count = rng.choice, rng.randint(3, 9)
    kind = rng.randrange(5)
    few = lambda make: [make() if rng.random() < 0.5 else str(rng.randint(0, 999)) for _ in range(count - 1)] + [make()]
    if kind == 0:
        items = few(lambda: str(-rng.randint(1, 999)))
    elif kind == 1:
        items = few(lambda: decimal(rng).replace(",", "."))
    elif kind == 2:
        items = few(lambda: str(long_number(rng, 4, 9)))
    else:
        source = c([W.NAMES, W.NOUNS, W.CITIES, W.COLOURS, W.ADJECTIVES, list("abcdefghijklmnopqrstuvwxyz"), NUMBER_WORDS])
        items = [c(source) for _ in range(count)]
    rng.shuffle(items)
    what = c(["these", "the list", "this", "these names", "these words", "the following", "the letters", "alphabetically", "this list", ""])
    verb = c(["sort", "order", "arrange", "rank", "sort", "put in order", "sort"])
    if kind == 1 and rng.random() < 0.3:
        verb = c(["add", "sum up", "total"])
    text = c([", ", " ", ",", "\n", "; ", " and "]).join(items)
    way = c(["", "", "", " descending", " ascending", ", biggest first", " from small to large", " alphabetically"])
    return c([f"{verb} {what}: {text}", f"{verb} {text}{way}", f"{text}\n{verb} {what}{way}", f"{join(verb, what)}:\n{text}", f"{text} {verb} them{way}", f"please {verb} {text}{way}"])


ORDINALS = """last first second third fourth fifth sixth seventh tenth 2nd 3rd 5th 10th final middle next previous largest smallest biggest highest lowest greatest longest
shortest odd even missing most-frequent second-largest second-last""".split()
ONE_OF = ["What is the {o} {i}?", "What is the {o} {i}?", "what's the {o} {i}?", "Which is the {o} {i}?", "the {o} {i}?", "Tell me the {o} {i}.", "Give me the {o} {i}.", "What is the {o} {i} in the list?", "Which {i} is the {o}?", "What was the {o} {i}?",
          "What is the {o} {i} of these?", "Which {i} comes {o}?", "What does the {o} {i} say?", "{o} {i}?", "Name the {o} {i}.", "Repeat the {o} {i}.", "Read the {o} {i}.", "Show me the {o} {i}.", "What is the {o}?", "Which is the {o}?",
          "How many {i}s are there?", "How many {i}s are in the list?", "count the {i}s", "Which {i} comes after {a}?", "What comes after {a}?", "Which {i}s are above {a}?", "Is {a} in the list?", "Where is {a}?", "Remove {a} from the list.", "What is the average?"]


def one_of_list(rng):
    """A pasted list and a question for one of its places or sizes, which the model does not answer."""
    c, kind, count = rng.choice, rng.randrange(5), rng.choice([3, 4, 5, 8, 12, 20, rng.randint(3, 60)])
    item, start, step = c(["item", "line", "row", "entry", any_word(rng), "no.", "number", "value"]), rng.choice([0, 1, 1, 1, rng.randint(2, 99)]), rng.choice([1, 1, 1, 2, 5, 10])
    numbers = [start + step * i for i in range(count)] if rng.random() < 0.5 else [sized(rng, 4) for _ in range(count)]
    if kind == 0:
        text = c([", ", ", ", " ", "; ", "\n", ","]).join(map(str, numbers))
    elif kind < 4:
        label = c(["{i} number {n}", "{i} {n}", "{i}: {n}", "- {i} {n}", "{i} number {n}.", "{i} no. {n}", "{w} {n}", "{w}: {n}", "{i} {n} {w}"])
        text = c(["\n", "\n", "\n", ", ", " "]).join(label.format(i=item, n=n, w=any_word(rng)) for n in numbers)
    else:
        units, joiner, _ = make_text(rng, rng.randint(30, 300), numbers=True)
        text = joiner.join(units).strip() or "1 2 3"
    ask = c(ONE_OF).format(o=c(ORDINALS).replace("-", " "), i=c(["number", "number", "number", "value", item, "line", "item", "entry", "one"]), a=c(numbers))
    return f"{text}{c([chr(10), chr(10) + chr(10), ' ', '. '])}{ask}" if rng.random() < 0.7 else f"{ask}{c([chr(10), ' ', ': '])}{text}"


def make_beyond(rng, held_out=False, core=False, thinking=True):
    """Arithmetic that looks like the model's own and is not; declined like anything else."""
    from data.tasks_talk import OFF_TOPIC_ANSWER, OFF_TOPIC_THINK
    kind = rng.random()
    if held_out or kind < 0.58:
        expression = beyond_expression(rng)
        user = short_request(rng, expression, held_out) if held_out or rng.random() < 0.85 else rng.choice(BEYOND_PHRASES).format(n=expression)
    elif kind < 0.71:
        user = word_problem(rng) if rng.random() < 0.6 else loose_numbers(rng)
    elif kind < 0.78:
        user = odd_equations(rng)
    elif kind < 0.84:
        user = program_beyond(rng)
    elif kind < 0.9 or core:
        user = odd_lists(rng)
    else:
        user = one_of_list(rng)
    if not held_out and kind >= 0.58 and rng.random() < 0.3:
        user = dress(rng, user)
    return Turn("beyond", user, OFF_TOPIC_THINK if thinking else "", OFF_TOPIC_ANSWER, OFF_TOPIC_ANSWER, held_out=held_out)
