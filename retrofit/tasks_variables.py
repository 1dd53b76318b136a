"""Following variables through a list of assignments, some of which do not matter."""
from tasks_math import LETTERS, NEEDS_THINKING
from phrasing import compose_variables
from turn import Turn, phrase
from words import VARIABLE_WORDS

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
LIMIT = 999


def draw_expression(rng, values, target):
    """A right-hand side: (text, names it reads, value); all values stay within 0..999."""
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
        if 0 <= value <= LIMIT:
            return f"{name} {sign} {right}", read, value
    value = rng.randint(0, rng.choice([9, 99, 99, 999]))
    return str(value), [], value


def draw_program(rng, count, pool, style, tight):
    """`count` assignments: (statements as typed, reasoning lines, final values)."""
    values, statements, lines, seen = {}, [], [], set()
    while len(statements) < count:
        name = rng.choice(pool)
        text, read, value = draw_expression(rng, values, name)
        if (name, text) in seen and rng.random() < 0.9:
            continue
        seen.add((name, text))
        statements.append(style.format(v=name, e=text.replace(" ", "") if tight else text))
        looked_up = "".join(f"{n} is {values[n]}, " for n in dict.fromkeys(read))
        values[name] = value
        lines.append(f"{name} = {text}: {looked_up}{name} is {value}" if read else f"{name} is {value}")
    return statements, lines, values


def make_variables(rng, held_out=False, core=False, thinking=True, most=60):
    """A program of 10 to `most` assignments and the question for one variable."""
    count = rng.randint(10, most) if core or rng.random() > 0.1 else rng.randint(2, 10)
    size = rng.randint(3, min(26, max(4, count // 2)))
    pool = rng.sample(LETTERS, size) if rng.random() < 0.75 else rng.sample(VARIABLE_WORDS, min(size, 12))
    style = rng.choice(STYLES)
    statements, lines, values = draw_program(rng, count, pool, style, rng.random() < 0.15)
    asked = rng.choice(list(values))
    joiner = "\n" if rng.random() < 0.8 or style.endswith(";") else "; "
    program = joiner.join(statements)
    user = phrase(rng, PHRASINGS, held_out, compose_variables, p=program, v=asked)
    lines.append(f"So {asked} is {values[asked]}.")
    if not thinking:
        return Turn("variables", user, "", NEEDS_THINKING, "ask again.")
    return Turn("variables", user, "\n".join(lines), f"{asked} = {values[asked]}", str(values[asked]), held_out=held_out)
