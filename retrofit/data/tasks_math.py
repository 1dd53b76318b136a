"""Equations, sums and sorting: problem, step-by-step reasoning and answer.

Reasoning writes one fact per line. Where digits carry, numbers stand lowest digit first
("backwards"), so that a carry runs in the direction of the text.
"""
from data.phrasing import compose_equation, compose_sort, compose_sum, dress
from data.turn import Turn, backwards, phrase, pick_phrasing
from data.words import NOUNS, made_up_word

LETTERS = "abcdefghijklmnopqrstuvwxyz"

NEEDS_THINKING = "This task needs steps. Switch thinking on with /think on and ask again."

EQUATION_PHRASINGS = [
    "Solve {e} for {v}.", "Solve {e}", "What is {v} if {e}?", "Find {v}: {e}", "Solve for {v}: {e}",
    "{e}", "Solve the equation {e}.", "{e}. What is {v}?", "Please solve {e} for {v}.", "Find {v} when {e}.",
    "Given {e}, find {v}.", "Which {v} solves {e}?", "Can you solve {e}?", "If {e}, what is {v}?",
    "Determine {v} from {e}.",
    "solve {e}", "Calculate {v}: {e}", "{e} {v}=?", "I need the solution of {e}.", "For which {v} is {e} true?",
    "Help me solve this equation: {e}", "Let {e}. Find {v}.", "Work out {v} if {e}.", "What value of {v} solves {e}?",
    "Tell me {v} if {e}.",
    "solve for {v} {e}", "Solve this linear equation: {e}", "Equation: {e}", "{e} solve for {v}",
    "Now solve {e} for {v}, please.",
]

SUM_PHRASINGS = [
    "Add these numbers: {n}", "What is {n}?", "Sum: {n}", "Calculate {n}", "Please add up {n}.",
    "Add {n}", "What is the sum of {n}?", "Compute {n}", "{n} = ?", "Find the sum of {n}.",
    "Sum up these numbers: {n}", "What is the total of {n}?", "How much is {n}?", "Add up: {n}",
    "Give me the sum of {n}.",
    "{n}", "Total: {n}", "Please sum {n}", "Can you add {n}?", "I want the total of these: {n}",
    "Add all of these together: {n}", "sum of {n}", "Work out the total: {n}", "add {n}", "What do these add up to? {n}",
    "Here are some numbers: {n}. What is their sum?", "Calculate the sum: {n}", "The numbers are {n}. Add them.",
    "Tell me the sum of {n}", "Add the following numbers. {n}",
]

SORT_PHRASINGS = [
    "Sort these numbers: {n}", "Sort {n}", "Please sort {n}", "Put these numbers in order: {n}",
    "Order these numbers: {n}",
    "Sort the list {n}.", "Arrange in ascending order: {n}", "Can you sort {n}?", "sort: {n}",
    "Please put {n} in ascending order.",
    "Sort from smallest to largest: {n}", "Sort this list: {n}", "Sort ascending: {n}", "Bring these into order: {n}",
    "I need these numbers sorted: {n}",
    "Sort the following numbers. {n}", "Order from low to high: {n}", "Arrange {n} from smallest to largest.",
    "Here is a list: {n}. Sort it.", "The numbers {n} should be sorted.",
]

SORT_DOWN_PHRASINGS = [
    "Sort these numbers in descending order: {n}", "Sort from largest to smallest: {n}", "Sort descending: {n}",
    "Arrange in descending order: {n}", "Please sort {n} in descending order.",
    "Sort {n} from largest to smallest.", "Order from high to low: {n}", "Sort downwards: {n}",
    "Sort these, largest first: {n}", "Put {n} in descending order.",
]


def term(coefficient, letter, style):
    """A coefficient times the unknown in one of the spellings a user may type."""
    size = abs(coefficient)
    if size == 1 and style["bare_one"]:
        body = letter
    else:
        body = f"{size}{style['times']}{letter}"
    return body


def side(rng, coefficient, constant, letter, style):
    """One side of the equation as text."""
    parts = []
    if coefficient != 0:
        parts.append((coefficient < 0, term(coefficient, letter, style)))
    if constant != 0 or not parts:
        parts.append((constant < 0, str(abs(constant))))
    if len(parts) == 2 and rng.random() < style["swap"]:
        parts.reverse()
    minus, gap = style["minus"], style["gap"]
    text = (minus if parts[0][0] else "") + parts[0][1]
    for negative, body in parts[1:]:
        text += f"{gap}{minus if negative else '+'}{gap}{body}"
    return text


def equation_text(rng, a, b, c, d, letter):
    """The equation a*x + b = c*x + d in a random spelling."""
    tight = rng.random() < 0.25
    style = {
        "times": rng.choice(["*", "*", "*", "", "", " * ", "·", "×"]),
        "minus": "−" if rng.random() < 0.15 else "-",
        "gap": "" if tight else " ",
        "bare_one": rng.random() < 0.8,
        "swap": rng.choice([0.0, 0.0, 0.5]),
    }
    left, right = side(rng, a, b, letter, style), side(rng, c, d, letter, style)
    equals = "=" if tight else " = "
    return left + equals + right


def signed_sum_lines(first, second):
    """Lines that add two signed numbers of up to four digits, lowest digit first."""
    total = first + second
    size1, size2 = abs(first), abs(second)
    big, small = max(size1, size2), min(size1, size2)
    same = (first < 0) == (second < 0) or size1 == 0 or size2 == 0
    lead = first if size1 >= size2 else second
    sign = "-" if lead < 0 else "+"
    width = len(str(big))
    top, low = backwards(big), backwards(small).ljust(width, "0")
    operator, kind = ("+", "same signs") if same else ("-", "different signs")
    size = big + small if same else big - small
    result = backwards(size).ljust(width, "0")
    return [f"{kind}: {big} {operator} {small}, sign {sign}", f"backwards: {top} {operator} {low} = {result}"], total


def division_lines(numerator, divisor):
    """Long division with the table of the divisor; returns the lines, quotient and rest."""
    lines = [f"{divisor}*{k}={divisor * k}" for k in range(2, 10)]
    rest, quotient = 0, ""
    for digit in str(numerator):
        head = rest * 10 + int(digit)
        k = head // divisor
        rest = head - k * divisor
        quotient += str(k)
        lines.append(f"{head} = {k}*{divisor} + {rest}")
    return lines, int(quotient), rest


def equation_reasoning(a, b, c, d, letter):
    """The reasoning and the answer for a*x + b = c*x + d."""
    p = a - c
    lines = [f"Left: {a}*{letter} and {b}", f"Right: {c}*{letter} and {d}",
             f"{letter} to the left: {a} {'+' if c <= 0 else '-'} {abs(c)} = {p}",
             f"numbers to the right: {d} {'+' if b <= 0 else '-'} {abs(b)}"]
    more, q = signed_sum_lines(d, -b)
    lines += more
    lines.append(f"{p}*{letter} = {q}")
    if p == 0:
        if q == 0:
            return lines, f"Every number solves it, because both sides are equal for any {letter}.", f"any {letter}."
        return lines, f"There is no solution, because 0*{letter} is never {q}", str(q)
    negative = (p < 0) != (q < 0) and q != 0
    lines.append(f"divide {abs(q)} by {abs(p)}, sign {'-' if negative else '+'}")
    more, quotient, rest = division_lines(abs(q), abs(p))
    lines += more
    sign = "-" if negative else ""
    if rest:
        lines.append(f"rest {rest}, so no whole number")
        value = f"{sign}{abs(q)}/{abs(p)}"
    else:
        value = f"{sign}{quotient}"
    lines.append(f"{letter} = {value}")
    return lines, f"{letter} = {value}", value


def bounded(rng, digits):
    """A number with up to `digits` digits; half of the time all lengths are equally likely."""
    if rng.random() < 0.6:
        return rng.randint(0, 10 ** digits - 1)
    return rng.randint(0, 10 ** rng.randint(1, digits) - 1)


def draw_equation(rng):
    """Coefficients of a*x + b = c*x + d with a whole solution of up to two digits."""
    while True:
        a, c = bounded(rng, 2), bounded(rng, 2)
        a, c = rng.choice([a, -a]), rng.choice([c, -c])
        if rng.random() < 0.25:
            c = 0
        elif rng.random() < 0.05:
            a = 0
        if a == c:
            continue
        x = bounded(rng, 2) * rng.choice([1, -1])
        b = bounded(rng, 4) * rng.choice([1, -1])
        if rng.random() < 0.08:
            b = 0
        d = b + (a - c) * x
        if rng.random() < 0.04:
            d, b = 0, -(a - c) * x
        if abs(d) <= 9999 and abs(b) <= 9999:
            return a, b, c, d


def draw_odd_equation(rng):
    """An equation outside the core: larger or fractional solution, none, or all numbers."""
    kind = rng.random()
    a, c = rng.randint(-20, 20), rng.choice([0, 0, rng.randint(-20, 20)])
    b, d = rng.randint(-99, 99), rng.randint(-999, 999)
    if kind < 0.12:
        a = c = rng.randint(1, 30)
        d = b if kind < 0.05 else d
    elif kind < 0.6:
        a = rng.choice([1, 1, 2, 3, 4, 5, 10])
        c, x = 0, rng.randint(-999, 999)
        d = b + a * x
    if a == 0 and c == 0:
        a = 3
    return a, b, c, d


def draw_easy_equation(rng):
    """The equations people try first: 2x = 10, x + 4 = 7, 3x - 1 = 8."""
    a, x = rng.choice([1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, -1]), rng.randint(-5 if rng.random() < 0.2 else 0, rng.choice([5, 12, 30]))
    b = rng.choice([0, 0, rng.randint(1, 20), rng.randint(1, 20), -rng.randint(1, 20)]) if a != 1 else rng.choice([1, -1]) * rng.randint(1, 30)
    return (a, b, 0, a * x + b) if rng.random() < 0.85 else (0, a * x + b, a, b)


def make_equation(rng, held_out=False, core=False, thinking=True):
    """A linear equation; `core` keeps to whole solutions of up to two digits."""
    letter = rng.choice(LETTERS)
    if rng.random() < 0.3:
        letter = rng.choice("xyzabntkm")
    elif rng.random() < 0.06:
        letter = letter.upper()
    odd, easy = not core and rng.random() < 0.06, not core and rng.random() < 0.25
    a, b, c, d = draw_odd_equation(rng) if odd else draw_easy_equation(rng) if easy else draw_equation(rng)
    equation = equation_text(rng, a, b, c, d, letter)
    user = phrase(rng, EQUATION_PHRASINGS, held_out, compose_equation, e=equation, v=letter)
    lines, answer, value = equation_reasoning(a, b, c, d, letter)
    if not thinking:
        return Turn("equation", user, "", NEEDS_THINKING, "ask again.")
    return Turn("equation", user, "\n".join(lines), answer, value, held_out=held_out)


def number_list(rng, numbers, plus):
    """The numbers as a user may type them: with +, commas, spaces or one a line."""
    if not plus and rng.random() < 0.08:
        separator = rng.choice(["/", " / ", "/", " ~ ", "...", " & ", "   ", " ; ", " , ", "\t\t", ",\n", "\n\n", "_", " or ", ",, "])
        return separator.join(map(str, numbers))
    separator = rng.choice([" + ", " + ", "+", "+ "] if plus else [", ", ", ", ", ", " ", " ", ",", "\n", " and ", "; ", "bracket", " | ", "\t", "\n- ", ";", "  "])
    if separator == "bracket":
        return "[" + rng.choice([", ", ","]).join(map(str, numbers)) + "]"
    if separator == "\n- ":
        return "".join(f"\n{rng.choice('-*')} {n}" for n in numbers)
    if separator == "\n":
        return "\n" + "\n".join(map(str, numbers))
    if separator == " and " and len(numbers) > 2:
        return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    return separator.join(map(str, numbers))


def draw_numbers(rng, count, digits):
    """Numbers of up to `digits` digits: mostly of full length, sometimes of mixed length."""
    kind = rng.random()
    if kind < 0.6:
        return [rng.randint(1, 10 ** digits - 1) for _ in range(count)]
    if kind < 0.85:
        return [rng.randint(0, 10 ** rng.randint(1, digits) - 1) for _ in range(count)]
    top = 10 ** rng.randint(min(2, digits), digits) - 1
    return [rng.randint(0, top) for _ in range(count)]


SHORT_SUMS = [   # every fifth is kept out of training
    "{n}", "{n} =", "{n}=", "what is {n}?", "Work out {n}.",
    "{n}", "{n} = ?", "{n}=?", "What is {n}", "{n} gives?",
    "{n}", "{n}?", "{n} ?", "what's {n}?", "Do you know what {n} is?",
    "How much is {n}?", "how much is {n}", "Calculate {n}.", "Compute {n}.", "So {n} is how much?",
    "{n} is?", "{n} makes?", "And {n}?", "Now {n}", "Give me {n}.",
    "Tell me {n}.", "{n}, please", "What does {n} make?", "What do you get for {n}?", "What would {n} be?",
    "Do {n}", "Can you do {n}?", "hey {n}", "{n} equals", "Try {n}.",
]


NUMBER_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty""".split()
SAID_SUMS = ["Add {n}", "add {n}.", "What is the sum of {n}?", "Sum {n}.", "Can you add {n}?", "add up {n}", "the sum of {n}", "total of {n}",
             "what do {n} make?", "what do you get when you add {n}?", "please add {n}", "{n} together?", "how much are {n} together?",
             "what is the total of {n}?", "{n} in total", "I need the sum of {n}", "put {n} together", "{n} added", "{n} summed up", "adding {n} gives?", "{n} make?", "when I add {n} I get?", "what's {n} added up?"]


def make_short_sum(rng, held_out=False, core=False, thinking=True):
    """The small sums people type to try a model out: "2+2", "what is 5 plus 7?"."""
    count = rng.choice([2, 2, 2, 2, 2, 2, 3, 3, 4])
    digits = rng.choice([1, 1, 1, 2, 2, 3, 3, 4, 5, 6])
    numbers = [rng.randint(0, 10 ** (digits if rng.random() < 0.8 else rng.randint(1, 6)) - 1) for _ in range(count)]
    if rng.random() < 0.08:
        numbers = [numbers[0]] * count
    plus = rng.choice(["+", "+", "+", " + ", " + ", " + ", "+ ", " +", " plus "])
    show, words = str, not held_out and rng.random() < 0.07
    if words:
        numbers, plus, show = [n % 21 for n in numbers], rng.choice([" plus ", " plus ", " and ", " + "]), lambda n: NUMBER_WORDS[n]
    together = ", ".join(map(show, numbers[:-1])) + f" and {show(numbers[-1])}"
    user = pick_phrasing(rng, SHORT_SUMS, held_out).format(n=plus.join(map(show, numbers)))
    if not held_out and (rng.random() < 0.15 or plus == " and "):
        user = rng.choice(SAID_SUMS).format(n=together)
    elif not held_out and rng.random() < 0.4:
        user = dress(rng, user)
    return sum_turn(user, numbers, thinking, held_out, words)


def make_sum(rng, held_out=False, core=False, thinking=True, most=60):
    """A sum with running totals; outside of evaluation four in ten are short ones."""
    if not core and not held_out and rng.random() < 0.4:
        return make_short_sum(rng, thinking=thinking)
    count = rng.randint(5, most) if core or rng.random() > 0.3 else rng.randint(3, 8)
    numbers = draw_numbers(rng, count, 4)
    if not core and not held_out and rng.random() < 0.08:
        return sum_turn(dress(rng, bill(rng, numbers[:12])), numbers[:12], thinking)
    phrasing = pick_phrasing(rng, SUM_PHRASINGS, held_out, compose_sum)
    bare = "um" not in phrasing and "dd" not in phrasing and "otal" not in phrasing   # nothing but + says what to do
    plus = bare or rng.random() < 0.35
    user = phrasing.format(n=number_list(rng, numbers, plus))
    return sum_turn(user if held_out else dress(rng, user), numbers, thinking, held_out)


def spent(rng, things, numbers):
    """A sentence that says what was paid for what."""
    c = rng.choice
    parts = [f"{n} {c(['on', 'for'])} {c(['', 'the ', 'a ', 'my '])}{t.split()[0].strip(':')}" for t, n in zip(things, numbers)]
    text = ", ".join(parts[:-1]) + f" and {parts[-1]}"
    return f"{c(['I spent', 'We paid', 'She spent', 'They gave', 'It was', 'He paid', 'I need'])} {text}{c(['. ', '; ', ', '])}{c(['What is the total?', 'total?', 'How much altogether?', 'what is that in all?', 'Sum?', 'How much together?', 'Add that up.', 'what does that come to?'])}"


def bill(rng, numbers):
    """A bill: things and their prices, and the question for the total."""
    things = [f"{made_up_word(rng) if rng.random() < 0.3 else rng.choice(NOUNS)}{rng.choice([' ', ': ', ' for ', ' - '][:2])}{n}" for n in numbers]
    if rng.random() < 0.4:
        return spent(rng, things, numbers)
    ask = rng.choice(["What is the total?", "total?", "How much is that?", "What did I pay?", "Add it up.", "sum please", "How much together?", "What do I owe?"])
    intro = rng.choice(["", "", "I bought ", "My bill: ", "Costs:\n", "We paid ", "Expenses: ", "On the list: "])
    return f"{intro}{rng.choice([', ', chr(10), '; ', ' and ']).join(things)}{rng.choice(['. ', chr(10), '; '])}{ask}"


def sum_turn(user, numbers, thinking, held_out=False, words=False):
    """The reasoning and the answer for a sum; `words` says that the numbers were typed as words."""
    lines, total = ["Each line: number:backwards=total backwards"], 0
    if words:
        lines.insert(0, "In digits: " + " + ".join(map(str, numbers)))
    for number in numbers:
        total += number
        lines.append(f"{number}:{backwards(number)}={backwards(total)}")
    lines.append(f"The last total is {backwards(total)} backwards, so {total}.")
    if not thinking:
        return Turn("sum", user, "", NEEDS_THINKING, "ask again.")
    return Turn("sum", user, "\n".join(lines), f"The sum is {total}", str(total), held_out=held_out)


def sort_lines(numbers, descending):
    """Groups by the hundreds (or tens) digit, each group sorted, one a line."""
    ordered = sorted(numbers, reverse=descending)
    unit, name = (100, "hundreds") if max(numbers) >= 100 else (10, "tens")
    groups = range(9, -1, -1) if descending else range(10)
    lines = [f"{'Falling' if descending else 'Rising'}, by {name}:"]
    for group in groups:
        members = [str(n) for n in ordered if n // unit == group]
        lines.append(f"{group}: " + (" ".join(members) if members else "none"))
    return lines, ordered


def close_numbers(rng, count):
    """Numbers that lie close together, as ages, scores and years of a user's list do; now and then one stands apart."""
    spread = rng.choice([count, count, count + rng.randint(1, 4), count + rng.randint(1, 12), 2 * count + 3])
    low = rng.randint(0, rng.choice([20, 100, 999]) - 1)
    low = min(low, 999 - spread) if rng.random() < 0.9 else max(0, rng.randint(1, 9) * 100 - rng.randint(0, spread))
    numbers = rng.sample(range(low, low + spread), count)
    step = rng.choice([1, 1, 1, 1, 2, 5, 10])
    if numbers and max(numbers) * step <= 999:
        numbers = [n * step for n in numbers]
    if rng.random() < 0.25:
        numbers[rng.randrange(count)] = rng.choice([rng.choice(numbers), rng.randint(0, 999), rng.randint(0, 99)])
    return numbers


def make_short_list(rng):
    """Two to eight numbers: close together, of mixed length, or the digits of one another."""
    count, kind = rng.choice([2, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 7, 8]), rng.random()
    if kind < 0.55:
        return close_numbers(rng, count)
    if kind < 0.65:
        digits = rng.choice(["45", "12", "309", "718", "56", "234", "907", "88", "10", "110"])
        return [int("".join(rng.choice(digits) for _ in range(rng.randint(1, 3)))) for _ in range(count)]
    if kind < 0.75:
        ending = rng.choice([1, 10, 100]) * rng.randint(0, 9)
        return [(ending + rng.choice([1, 10, 100]) * rng.randint(0, 9)) % 1000 for _ in range(count)]
    return [rng.randint(0, 10 ** rng.randint(1, 3) - 1) for _ in range(count)]


def make_sort(rng, held_out=False, core=False, thinking=True, most=40):
    """A list to be sorted, rising or (one in six) falling."""
    count = rng.randint(5, most) if core or rng.random() > 0.35 else rng.randint(2, 10)
    numbers = draw_numbers(rng, count, 3)
    if not core and rng.random() < 0.1:      # round numbers, small numbers, doubles
        numbers = rng.choice([[10 * (n % 100) for n in numbers], [n % 10 for n in numbers], [rng.choice(numbers) for _ in numbers]])
    if not core and rng.random() < 0.5:
        numbers = make_short_list(rng) if rng.random() < 0.75 else close_numbers(rng, rng.randint(5, 25))
    descending = rng.random() < (0.17 if core else 0.38)
    phrasings = SORT_DOWN_PHRASINGS if descending else SORT_PHRASINGS
    user = phrase(rng, phrasings, held_out, lambda r: compose_sort(r, descending), n=number_list(rng, numbers, False))
    lines, ordered = sort_lines(numbers, descending)
    answer = "Sorted: " + ", ".join(map(str, ordered))
    if not thinking:
        return Turn("sort", user, "", NEEDS_THINKING, "ask again.")
    return Turn("sort", user, "\n".join(lines), answer, ", ".join(map(str, ordered)), held_out=held_out)
