"""Following variables through a list of assignments, some of which do not matter."""
from data.tasks_math import LETTERS, NEEDS_THINKING
from data.phrasing import compose_variables, dress
from data.texts import any_word
from data.turn import Turn, phrase
from data.words import NAMES, VARIABLE_WORDS

PHRASINGS = [
    "{p}\nWhat is {v}?", "{p}\nWhat is the value of {v}?", "What is {v} after this?\n{p}", "{p}\nFind {v}.",
    "Run this and tell me {v}.\n{p}",
    "Follow these assignments:\n{p}\nWhat is {v}?", "{p}\n{v} = ?", "Consider this program:\n{p}\nWhat is {v} at the end?",
    "What does {v} hold in the end?\n{p}", "Given these steps:\n{p}\nTell me the value of {v}.",
    "Track the variables.\n{p}\nWhat is {v} now?", "Here are some assignments.\n{p}\nPlease find {v}.",
    "{p}\nTell me {v}.", "Compute {v}:\n{p}", "Here is a program:\n{p}\nWhich value does {v} have?",
    "Execute:\n{p}\nprint({v})", "Read this:\n{p}\nWhat is the final value of {v}?", "{p}\nprint({v})",
    "Find the value of {v}.\n{p}", "Assignments:\n{p}\nGive me {v} at the end.",
]

STYLES = ["{v} = {e}", "{v} = {e}", "{v} = {e}", "{v}={e}", "let {v} = {e}", "{v} := {e}", "{v} = {e};", "set {v} = {e}"]
OWN_STYLES = ["{v} = {e}", "{v}={e}", "{v} = {e};", "let {v} be {e}", "let {v} be {e}", "{v} is {e}", "{v} is {e}", "{v} equals {e}", "set {v} to {e}", "{v} <- {e}", "int {v} = {e};", "let mut {v} = {e};",
              "var {v} = {e};", "const {v} = {e};", "assign {e} to {v}", "{v} gets {e}", "make {v} {e}", "{v}: {e}", "put {e} into {v}", "{v} becomes {e}", "now {v} is {e}", "store {e} in {v}", "{v} ={e}", "${v} = {e};", "{v} shall be {e}", "start with {v} = {e}", "`{v} = {e}`", "`{v}={e}`", "{v} starts at {e}", "{v} has the value {e}", "initially {v} is {e}", "first {v} is {e}", "the {v} is {e}", "the {v} are {e}", "{v} amounts to {e}", "{v} -> {e}", "my {v} is {e}", "we have {v} = {e}", "then {v} = {e}", "begin with {v} at {e}", "{v} = ({e})", "so {v} is {e}"]
PLUS = ["{a} + {b}", "{a} + {b}", "{a}+{b}", "{a} plus {b}", "{b} more than {a}", "the sum of {a} and {b}"]
MINUS = ["{a} - {b}", "{a} - {b}", "{a}-{b}", "{a} minus {b}", "{b} less than {a}", "{a} take away {b}"]
UP = ["{a} += {b}", "{a} += {b};", "add {b} to {a}", "increase {a} by {b}", "{a} goes up by {b}", "{a} grows by {b}", "raise {a} by {b}"]
DOWN = ["{a} -= {b}", "{a} -= {b};", "subtract {b} from {a}", "decrease {a} by {b}", "{a} goes down by {b}", "{a} shrinks by {b}", "take {b} from {a}"]
ASK = ["what is {v}?", "What is {v}?", "{v}?", "what's {v}", "{v} = ?", "{v} is?", "print({v})", "print {v}", "how much is {v}?", "What is {v} now?", "Value of {v}?", "tell me {v}", "what does {v} equal?", "So what is {v}?",
       "And {v} is?", "Find {v}.", "find the final {v}", "what would {v} be?", "What is {v} in the end?", "Now tell me what {v} is.", "echo {v}", "return {v}", "I want {v}", "compute {v}", "What will {v} be?", "what number is {v}?",
       "what is the value of {v} after this?", "Which number is stored in {v}?", "console.log({v})", "how many {v} are there?", "how big is {v} at the end?", "how high is {v}?", "How much is left in {v}?", "{v} please", "result: {v}", "what do I get for {v}?", "calculate {v}", "And now {v}?", "What number does {v} stand for?", "how much is {v} then?", "show {v}", "How much {v} is that?"]
FIRST_VERBS = "let set assign make put now store add increase raise subtract decrease take".split()
NO_NAMES = set(FIRST_VERBS + """and the is be to plus minus of then from by for than more less with into var int mut const gets get sum what
becomes equals goes grows shrinks shall given suppose if when after code how print echo return tell find value number not are was""".split())
LIMIT = 999


def own_names(rng, count):
    """Names of variables as users choose them: letters, words, words with digits or underscores."""
    kind = rng.random()
    word = lambda: any_word(rng)
    make = word
    if kind < 0.3:
        make = lambda: rng.choice(LETTERS)
    elif kind < 0.38:
        make = lambda: rng.choice(LETTERS).upper()
    elif kind < 0.48:
        letter = rng.choice(LETTERS)
        make = lambda: f"{letter}{rng.randint(1, 9)}"
    elif kind < 0.6:
        make = lambda: f"{word()}_{word()}"
    elif kind < 0.66:
        make = lambda: word() + word().capitalize()
    elif kind < 0.72:
        make = lambda: rng.choice([word().capitalize(), rng.choice(NAMES)])
    names = []
    while len(names) < count:
        name = make()
        if name not in names and name.lower() not in NO_NAMES:
            names.append(name)
    return names


def draw_expression(rng, values, target, low=0):
    """A right-hand side: (text, names it reads, value); all values stay within low..999."""
    known = list(values)
    for _ in range(20):
        kind = rng.random()
        if not known or kind < 0.22:
            break
        name = target if target in values and rng.random() < 0.4 else rng.choice(known)
        if kind < 0.36:
            return name, [name], values[name]
        sign = rng.choice("+-")
        if kind < 0.82:
            amount = rng.randint(1, rng.choice([9, 99]))
            right, read = str(amount), [name]
        else:
            right = rng.choice(known)
            amount, read = values[right], [name, right]
        value = values[name] + amount if sign == "+" else values[name] - amount
        if low <= value <= LIMIT:
            return f"{name} {sign} {right}", read, value
    value = rng.randint(0, rng.choice([9, 30, 99, 99] if low else [9, 99, 99, 999])) * (-1 if low and rng.random() < 0.15 else 1)
    return str(value), [], value


def signed_step(text, values, value):
    """The sizes of a step with a value below zero, "45 - 12 is 33, ", so that the sign is left; else nothing."""
    left, sign, right = text.split(" ")
    first, second = values[left], values[right] if right in values else int(right)
    if min(first, second, value) >= 0:
        return ""
    first, second = abs(first), second if (first < 0) == (sign == "-") else -second
    if second >= 0:
        return f"{first} + {second} is {abs(value)}, "
    return f"{max(first, -second)} - {min(first, -second)} is {abs(value)}, "


def worked_line(name, text, read, values, value):
    """The line of reasoning for one assignment; `values` are those before it."""
    looked_up = "".join(f"{n} is {values[n]}, " for n in dict.fromkeys(read))
    step = signed_step(text, values, value) if " " in text else ""
    return f"{name} = {text}: {looked_up}{step}{name} is {value}" if read else f"{name} is {value}"


def own_statement(rng, name, text, read, style):
    """An assignment as somebody may say it."""
    if " + " in text or " - " in text:
        plus = " + " in text
        left, right = text.split(" + " if plus else " - ")
        if left == name and rng.random() < 0.5:
            return rng.choice(UP if plus else DOWN).format(a=left, b=right)
        text = rng.choice(PLUS if plus else MINUS).format(a=left, b=right)
    return style.format(v=name, e=text)


def draw_program(rng, count, pool, style, tight, own=False, low=0):
    """`count` assignments with values of at least `low`: (statements as typed, reasoning lines, final values)."""
    values, statements, lines, seen = {}, [], [], set()
    mixed = own and rng.random() < 0.45
    while len(statements) < count:
        fresh = [n for n in pool if n not in values]
        name = rng.choice(fresh) if own and fresh and rng.random() < 0.6 else rng.choice(pool)
        text, read, value = draw_expression(rng, values, name, low)
        if (name, text) in seen and rng.random() < 0.9:
            continue
        seen.add((name, text))
        if own:
            statements.append(own_statement(rng, name, text, read, rng.choice(OWN_STYLES) if mixed else style))
        else:
            statements.append(style.format(v=name, e=text.replace(" ", "") if tight else text))
        lines.append(worked_line(name, text, read, values, value))
        values[name] = value
    return statements, lines, values


def joined(rng, statements):
    """Statements as a text: lines, sentences or one line."""
    joiner = rng.choice(["\n", "\n", "; ", ";", ", ", ". ", ". ", " and ", ", then ", ". Then ", "\n\n", " ", "1"])
    if any(s.endswith(";") for s in statements) or joiner == " ":
        joiner = "\n" if rng.random() < 0.6 else " "
        statements = [s if s.endswith(";") else s + ";" for s in statements]
    if joiner == "1":
        return "\n".join(f"{i + 1}. {s}" for i, s in enumerate(statements))
    if joiner.startswith(".") and rng.random() < 0.7:
        statements = [s[0].upper() + s[1:] if s.split()[0] in FIRST_VERBS else s for s in statements]
    text = joiner.join(statements)
    if joiner == "\n" and rng.random() < 0.15:
        return f"```{rng.choice(['', '', 'python', 'rust', 'js'])}\n{text}\n```"
    return text


INTROS = ["", "", "", "", "Suppose ", "If ", "Given ", "Let's say ", "Code: ", "Assume that ", "Here: ", "We know: ", "I have ", "ok, ", "Imagine: "]


def own_program(rng):
    """(user text, reasoning lines, asked name, its value or None where it cannot be followed)."""
    count = rng.choice([1, 2, 2, 3, 3, 4, 4, 5, 6, 8, rng.randint(5, 25)])
    pool = own_names(rng, rng.randint(min(2, count), max(2, min(8, count))))
    low = -LIMIT if rng.random() < 0.5 else 0
    statements, lines, values = draw_program(rng, count, pool, rng.choice(OWN_STYLES), False, own=True, low=low)
    asked, value, kind = rng.choice(list(values)[-3:]), 0, rng.random()
    value = values[asked]
    if kind < 0.09:              # never assigned
        asked = own_names(rng, 1)[0]
        value = values.get(asked)
        if value is None:
            lines.append(f"Nothing says what {asked} is.")
    elif kind < 0.14:            # leaves the range
        name, other = rng.choice(pool), rng.choice(list(values))
        below = rng.random() < 0.3
        amount = LIMIT + 1 + values[other] * (1 if below else -1) + rng.randint(0, 300)
        text = f"{other} {'-' if below else '+'} {amount}"
        statements.append(own_statement(rng, name, text, [other], rng.choice(OWN_STYLES)))
        lines.append(f"{name} = {text}: {other} is {values[other]}, {name} is not within -{LIMIT} to {LIMIT}")
        return rng.choice(INTROS) + joined(rng, statements), lines, name, False
    return rng.choice(INTROS) + joined(rng, statements), lines, asked, value


def make_own(rng, thinking):
    """Variables in a user's own words."""
    program, lines, asked, value = own_program(rng)
    ask = rng.choice(ASK).format(v=asked)
    end = program.rstrip()[-1:]
    gap = "\n" if "\n" in program else rng.choice(["\n", ". ", "; ", ", ", " ", "? "[1:]]) if end not in ".;`" else rng.choice(["\n", " "])
    user = program + gap + ask if rng.random() < 0.85 else rng.choice(ASK).format(v=asked).rstrip("?.") + rng.choice([" if ", ": ", " when ", " after "]) + program
    user = dress(rng, user) if user[0].islower() and rng.random() < 0.5 else user      # never a name in another case
    if not thinking:
        return Turn("variables", user, "", NEEDS_THINKING, "ask again.")
    if value is None:
        answer = f"{asked} has no value there."
    elif value is False:
        answer = f"I cannot follow that: {asked} leaves -{LIMIT} to {LIMIT}."
    else:
        lines.append(f"So {asked} is {value}.")
        answer = f"{asked} = {value}"
    return Turn("variables", user, "\n".join(lines), answer, answer if not value else str(value))


TIMES = ["{a} * {b}", "{a} * {b}", "{a}*{b}", "{a} times {b}", "{a} / {b}", "{a} ** {b}", "{a} % {b}", "twice {a}", "half of {a}", "{b}{a}", "{a} squared", "sqrt({a})", "max({a}, {b})", "{b} * {a} + 1", "{a} + {b} + {b}", "{a}.5", "f({a})"]


def program_beyond(rng):
    """A program with operations that the model does not follow."""
    program = own_program(rng)[0]
    names = own_names(rng, 2)
    style = rng.choice(OWN_STYLES)
    last = [style.format(v=names[0], e=str(rng.randint(0, 99))), style.format(v=names[1], e=rng.choice(TIMES).format(a=names[0], b=rng.randint(2, 20)))]
    text = joined(rng, last if rng.random() < 0.7 else [program] + last)
    return f"{text}{rng.choice([chr(10), '. ', '; '])}{rng.choice(ASK).format(v=rng.choice(names[1:]))}"


def make_variables(rng, held_out=False, core=False, thinking=True, most=60):
    """A program of 10 to `most` assignments and the question for one variable; or a few in a user's own words."""
    if not core and not held_out and rng.random() < 0.45:
        return make_own(rng, thinking)
    count = rng.randint(10, most) if core or rng.random() > 0.1 else rng.randint(2, 10)
    size = rng.randint(3, min(26, max(4, count // 2)))
    pool = rng.sample(LETTERS, size) if rng.random() < 0.75 else rng.sample(VARIABLE_WORDS, min(size, 12))
    style = rng.choice(STYLES)
    low = -LIMIT if not core and not held_out and rng.random() < 0.2 else 0
    statements, lines, values = draw_program(rng, count, pool, style, rng.random() < 0.15, low=low)
    asked = rng.choice(list(values))
    joiner = "\n" if rng.random() < 0.8 or style.endswith(";") else "; "
    program = joiner.join(statements)
    user = phrase(rng, PHRASINGS, held_out, compose_variables, p=program, v=asked)
    lines.append(f"So {asked} is {values[asked]}.")
    if not thinking:
        return Turn("variables", user, "", NEEDS_THINKING, "ask again.")
    return Turn("variables", user, "\n".join(lines), f"{asked} = {values[asked]}", str(values[asked]), held_out=held_out)
