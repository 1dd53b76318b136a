"""Texts of many kinds in which a number can be hidden: prose, letters, lists, tables, code, this repository's own files.

No outside text: sentences come from a grammar over word lists, the rest from files of this repository. HELD_OUT_FILES
never occur in training; own_words.jsonl quotes them.
"""
import glob
import os
import re

import data.words as W

REPOSITORY = os.environ.get("REPOSITORY", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PATTERNS = ["README.md", "CHANGELOG.md", "docs/*.md", "src/**/*.rs", "tests/it/*.rs", "retrofit/[de]*/*.py", "retrofit/README.md", "kernels/*.cu", "build.rs"]
HELD_OUT_FILES = re.compile(r"docs/(cuda|fidelity)\.md|src/ui/|LICENSE|kernels/[m-z]|retrofit/eval/(evaluate|first_lines)")
LABEL_WORDS = re.compile(r"code|number|pin|key|password|room|ticket|secret|invoice|order|hidden|magic", re.IGNORECASE)


class Repository:
    """Paragraphs, comments and blocks of source of this repository's files, read once a process."""
    prose, source, vocabulary = [], [], []

    @classmethod
    def load(cls):
        if cls.prose:
            return cls
        words = {}
        for pattern in PATTERNS:
            for path in sorted(glob.glob(os.path.join(REPOSITORY, pattern), recursive=True)):
                name = os.path.relpath(path, REPOSITORY)
                if HELD_OUT_FILES.search(name):
                    continue
                with open(path, encoding="utf-8", errors="replace") as f:
                    text = f.read()
                if name.endswith(".md"):
                    for block in text.split("\n\n"):
                        if not block.startswith(("|", "    ", "```")) and len(block) > 60:
                            cls.prose.append(" ".join(block.split()))
                        elif len(block) > 60:
                            cls.source.append(block.split("\n"))
                else:
                    lines = text.split("\n")
                    cls.source += [lines[i:i + 40] for i in range(0, len(lines), 40)]
                    cls.prose += [" ".join(m.split()) for m in comments(lines)]
                for word in re.findall(r"\b[a-z]{3,12}\b", text):
                    words[word] = words.get(word, 0) + 1
        cls.vocabulary = sorted(w for w, n in words.items() if n >= 2)
        if not cls.prose:
            raise SystemExit(f"no files of the repository below {REPOSITORY}: set REPOSITORY")
        return cls


def comments(lines):
    """The blocks of comments of a source file as plain text."""
    block = []
    for line in lines + [""]:
        mark = re.match(r"\s*(?:///?!?|#)\s?(.*)", line)
        if mark and not line.lstrip().startswith("#["):
            block.append(mark.group(1))
        elif block:
            text = " ".join(block)
            if len(text) > 60:
                yield text
            block = []


def any_word(rng):
    """A word of any kind: from the lists, from the repository, or made up."""
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(rng.choice([W.NOUNS, W.NOUNS, W.ADJECTIVES]))
    return rng.choice(Repository.load().vocabulary) if kind < 0.8 else W.made_up_word(rng)


# ---------------------------------------------------------------- prose of a grammar

VERBS = """finds makes keeps shows brings takes needs likes watches follows writes reads opens closes builds moves cleans
holds carries sells buys paints counts measures checks repairs explains describes forgets remembers changes loses""".split()
BASE_VERBS = """find make keep show bring take need watch follow write read open close build move clean hold carry sell buy
paint count measure check repair explain describe forget remember change lose send call wait stay leave start finish try""".split()
ADVERBS = """slowly quickly quietly often never always sometimes rarely carefully gladly hardly almost already still again
together outside upstairs yesterday today tomorrow soon early late twice there here""".split()
JOINTS = [", and ", ", but ", " because ", " although ", " while ", "; ", ", so ", " before ", " after ", " until ", " when ", " if ", ", which is why ", " - ", ", as "]
OPENINGS = """In the beginning|For years|By the time we arrived|To be honest|At the end of the day|As far as I know|According to the report|
On the other hand|In most cases|As a rule|Since the merger|During the war|Under normal conditions|On the second floor|Strictly speaking|
Like every year|As the manual says|Without much hope|With a smile|From here on|If in doubt|Once installed|When it rains|
Before you begin|Apart from that|To make things worse|Early in the morning|After the meeting|Not far from the station|As usual""".replace("\n", "").split("|")
OPINIONS = """It is well known that|I think that|She said that|He wrote to me that|Nobody knew that|We hope that|They were told that|The report says that|
It turned out that|I was surprised that|Most people believe that|The guide explained that|You should know that|My grandmother used to say that|Please note that|
It seems that|The letter mentions that|Some claim that|There is no doubt that|I had forgotten that""".replace("\n", "").split("|")
ENDINGS = """as everyone knows|at least for now|to everybody's surprise|in spite of the weather|more or less|without asking anybody|for no good reason|
on both sides of the road|year after year|if I remember correctly|as if nothing had happened|with the help of a friend|under the table|
in the middle of nowhere|from morning to night|as described above|in the usual way|at no extra cost|for the first time|to this day""".replace("\n", "").split("|")
QUESTIONS = ["Who would have thought that?", "What could we do?", "Why not?", "Does it matter?", "How did it come to this?", "Was that all?", "Would you believe it?", "And then?", "Is that so?",
             "Have you ever seen such a thing?", "Where were they now?", "What for?"]
ASIDES = ["Nothing more.", "That was all.", "So be it.", "No wonder.", "A pity.", "Silence.", "Not yet.", "It was late.", "We laughed.", "Nobody answered.", "The end.", "Enough of that.", "Well, well."]


def noun_phrase(rng, numbers=True):
    c = rng.choice
    kind = rng.random()
    word = lambda: any_word(rng)
    if kind < 0.14:
        return W.any_name(rng)
    if kind < 0.3:
        return c(["he", "she", "it", "we", "they", "you", "nobody", "everybody", "somebody", "this", "one of them", "everything", "the others", "my " + word(), "her " + word(), "our " + word(), "his " + word(), "their " + word()])
    if kind < 0.5:
        return f"the {c(W.ADJECTIVES)} {word()}"
    if kind < 0.72:
        return f"the {word()}"
    if kind < 0.82:
        return f"the {word()} of the {word()}"
    if kind < 0.88:
        return f"a {c(W.ADJECTIVES)} {word()} from {c(W.CITIES)}"
    if kind < 0.94 or not numbers:
        return f"every {word()} in the {word()}"
    return f"{c(['about ', 'some ', 'all ', 'only ', 'over ', ''])}{rng.randint(2, c([20, 99, 999, 9999]))} {word()}s"


def clause(rng, numbers=True):
    c = rng.choice
    np = lambda: noun_phrase(rng, numbers)
    kind = rng.random()
    if kind < 0.3:
        text = f"{np()} {c(W.VERBS_PAST)} {np()}"
    elif kind < 0.42:
        text = f"{np()} {c(VERBS)} {np()} {c(ADVERBS)}"
    elif kind < 0.54:
        text = f"{np()} {c(W.VERBS_MOVE)} {c(W.PREPOSITIONS)} {np()}"
    elif kind < 0.64:
        text = f"{np()} {c(['is', 'was', 'seems', 'became', 'looks', 'had been', 'will be', 'remained'])} {c(['', 'very ', 'rather ', 'too ', 'not '])}{c(W.ADJECTIVES)}"
    elif kind < 0.74:
        text = f"{np()} {c(['wants', 'wanted', 'tried', 'has', 'had', 'decided', 'used', 'hopes', 'began', 'promised'])} to {c(BASE_VERBS)} {np()}"
    elif kind < 0.84:
        text = f"{np()} {c(['can', 'could', 'must', 'should', 'will', 'would', 'may', 'might', 'did not', 'does not', 'cannot'])} {c(BASE_VERBS)} {np()}"
    elif kind < 0.92:
        text = f"{c(['there is', 'there was', 'there are', 'there were', 'here comes', 'that was', 'it is'])} {c(['no', 'a', 'the', 'another', 'some', 'too much'])} {any_word(rng)} {c(W.PREPOSITIONS)} {np()}"
    else:
        text = f"{np()} {c(['was', 'were', 'has been', 'had been', 'is', 'will be', 'can be'])} {c(W.VERBS_PAST)} by {np()}"
    if rng.random() < 0.15:
        text += " " + c([c(W.TIMES), c(ADVERBS), c(ENDINGS)])
    return text


def prose_sentence(rng, numbers=True):
    """One sentence of one to three clauses."""
    c = rng.choice
    kind = rng.random()
    if kind < 0.04:
        return c(QUESTIONS)
    if kind < 0.07:
        return c(ASIDES)
    if numbers and kind < 0.16:
        return number_sentence(rng)
    text = clause(rng, numbers)
    if kind < 0.4:
        text += c(JOINTS) + clause(rng, numbers)
    elif kind < 0.52:
        text = c(OPINIONS) + " " + text
    elif kind < 0.62:
        text = c(OPENINGS) + ", " + text
    elif kind < 0.68:
        text = c(W.LINKS) + ", " + text
    elif kind < 0.72:
        text = c(['"', "'"]) + text + c([',"', '!"', '?"']) + f" {c(['said', 'asked', 'whispered', 'shouted', 'wrote'])} {W.any_name(rng)}"
    elif kind < 0.76:
        text = c(["when ", "if ", "although ", "because ", "while ", "as soon as "]) + text + ", " + clause(rng, numbers)
    elif kind < 0.8:
        text += ", " + c(ENDINGS)
    elif kind < 0.83:
        text += f" ({clause(rng, numbers)})"
    return text[0].upper() + text[1:] + c([".", ".", ".", ".", ".", ".", "!", "?"])


def number_sentence(rng):
    """A sentence with harmless numbers."""
    c, n = rng.choice, lambda: rng.randint(2, c([20, 99, 999, 9999]))
    c2 = lambda: any_word(rng)
    year = rng.randint(1600, 2060)
    return c([f"In {year} {clause(rng, False)}.", f"Chapter {rng.randint(1, 30)} is about the {c2()}.", f"The {c2()} is {n()} {c(['metres', 'years', 'miles', 'pages', 'feet', 'days'])} {c(['long', 'old', 'away', 'high', 'wide'])}.",
              f"About {n()} people came to the {c2()}.", f"It took {n()} {c(['days', 'hours', 'minutes', 'years', 'weeks'])} to {c(BASE_VERBS)} the {c2()}.", f"On {c(['May', 'June', 'March', 'October', 'July'])} {rng.randint(1, 30)}, {year}, {clause(rng, False)}.",
              f"The {c2()} costs {n()} {c(['euros', 'dollars', 'pounds', 'crowns', 'coins'])}.", f"From {year} to {year + rng.randint(1, 40)} {clause(rng, False)}.", f"Only {n()} of {n()} {c2()}s were left.", f"{rng.randint(2, 99)} percent of the {c2()}s are {c(W.ADJECTIVES)}.",
              f"At {rng.randint(0, 23)}:{rng.randint(0, 59):02d} {clause(rng, False)}.", f"See page {rng.randint(2, 400)}.", f"The {c2()} ({n()}%) {c(W.VERBS_PAST)} the {c2()}.", f"{clause(rng, False).capitalize()} ({n()}).", f"{W.any_name(rng)} ({rng.randint(18, 90)}) {c(W.VERBS_PAST)} {n()} {c2()}s and {n()} {c2()}s.", f"Version {rng.randint(0, 9)}.{rng.randint(0, 20)} adds a {c2()}.", f"We walked {n()} steps and {clause(rng, False)}."])


# ---------------------------------------------------------------- texts: (units, joiner); a unit is a sentence or a line

def prose(rng, size, numbers):
    joiner = " "
    units = [prose_sentence(rng, numbers) for _ in range(size)]
    if rng.random() < 0.3:       # paragraphs
        units = [u + ("\n" if rng.random() < 0.12 else "") for u in units]
    return units, joiner


def sentences_of(text):
    return [s for s in re.split(r"(?<=[.!?:;]) +", text) if s]


def repository_prose(rng, size, numbers):
    """Paragraphs and comments of this repository, cut into sentences."""
    units, files = [], Repository.load().prose
    while len(units) < size:
        units += sentences_of(rng.choice(files))
    return units[:size], " "


def repository_source(rng, size, numbers):
    """Consecutive lines of a source file."""
    files, units = Repository.load().source, []
    while len(units) < size:
        block = rng.choice(files)
        start = rng.randrange(len(block))
        units += [line for line in block[start:start + rng.randint(5, 30)] if line.strip()]
    return units[:size], "\n"


def words_text(rng, size, numbers):
    """Words in no order, or letters at random."""
    kind, units = rng.random(), []
    for _ in range(size):
        count = rng.randint(3, 14)
        if kind < 0.6:
            unit = " ".join(any_word(rng) for _ in range(count))
        elif kind < 0.8:
            unit = " ".join(W.made_up_word(rng) for _ in range(count))
        else:
            unit = " ".join("".join(rng.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP,.'-:;()") for _ in range(rng.randint(1, 9))) for _ in range(count))
        units.append(unit + rng.choice(["", "", "."]))
    return units, rng.choice([" ", " ", "\n", ", "])


def list_text(rng, size, numbers):
    """Notes, settings, log lines or rows of a table, one a line."""
    c, kind, units = rng.choice, rng.randrange(6), []
    n = (lambda: rng.randint(0, c([9, 99, 999, 9999]))) if numbers else (lambda: any_word(rng))
    bullet = c(["- ", "* ", "", "+ ", "[ ] "])
    word = lambda: any_word(rng)
    for i in range(size):
        if kind == 0:
            unit = bullet + c([word(), f"{word()} {word()}", f"{n()} {word()}s", f"{c(BASE_VERBS)} the {word()}", f"{c(BASE_VERBS)} {W.any_name(rng)}"])
        elif kind == 1:
            unit = f"{word()}{c(['_', '-', '.', ' '])}{word()}{c([': ', ' = ', '='])}{c([word(), n(), 'true', 'false', 'none'])}"
        elif kind == 2:
            stamp = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d} " if numbers else ""
            unit = f"{stamp}{c(['INFO', 'WARN', 'ERROR', 'DEBUG', 'info:', 'warning:'])} {word()} {word()} {c(['started', 'stopped', 'failed', 'ready', 'not found', 'done'])}"
        elif kind == 3:
            unit = f"| {word()} | {c([word(), n()])} | {c([word(), n()])} |"
        elif kind == 4:
            unit = f"{i + 1}. " * numbers + f"{clause(rng, numbers)}"
        else:
            unit = ",".join(str(c([word(), n()])) for _ in range(4))
        units.append(unit)
    return units, "\n"


def code_text(rng, size, numbers):
    """Small functions in the manner of some languages."""
    c, units = rng.choice, []
    n = (lambda: rng.randint(0, c([9, 99, 999]))) if numbers else (lambda: any_word(rng))
    style = rng.randrange(3)
    word = lambda: any_word(rng)
    while len(units) < size:
        f, a, b = f"{word()}_{word()}", word(), word()
        units += c([[f"def {f}({a}, {b}):", f"    {a} = {b}.{word()}({n()})", f"    return {a}"], [f"for {a} in {b}:", f"    {word()}({a})  # {clause(rng, numbers)}"]]) if style == 0 else \
            c([[f"fn {f}({a}: u32) -> u32 {{", f"    let {b} = {a} + {n()};", f"    {b}.{word()}()", "}"], [f"// {clause(rng, numbers)}", f"let {a} = {f}(&{b});"]]) if style == 1 else \
            c([[f"function {f}({a}) {{", f"  const {b} = {a}.{word()};", f"  return {b};", "}"], [f"if ({a} > {n()}) {{", f"  {f}({b});", "}"], [f"/* {clause(rng, numbers)} */"]])
    return units[:size], "\n"


def letter(rng, size, numbers):
    """A letter or an e-mail."""
    units = [rng.choice(["Dear {x},\n", "Hi {x},\n", "Hello {x},\n", "Subject: {x}\n\nDear all,\n", "To whom it may concern,\n"]).format(x=W.any_name(rng))]
    units += [prose_sentence(rng, numbers) for _ in range(max(1, size - 2))]
    return units + [rng.choice(["\nBest regards,\n{x}", "\nYours,\n{x}", "\nThanks, {x}", "\nSee you,\n{x}", "\nKind regards {x}"]).format(x=W.any_name(rng))], " "


KINDS = [prose, prose, prose, repository_prose, repository_prose, repository_source, words_text, list_text, code_text, letter]


def make_text(rng, tokens, numbers=True, kind=None):
    """(units, joiner, kind): about `tokens` tokens of one kind; without `numbers` no unit holds a digit."""
    kind = kind or rng.choice(KINDS)
    each = {"repository_source": 26, "words_text": 26, "list_text": 12, "code_text": 16, "repository_prose": 42}.get(kind.__name__, 26)
    units, joiner = kind(rng, max(1, round(tokens / each)), numbers)
    clean = []
    for unit in units:
        if re.search(r"\d", unit) and (not numbers or LABEL_WORDS.search(unit)):
            continue
        clean.append(unit)
    return clean, joiner, kind.__name__
