"""Check generated turns by other means than those that made them: values, quotes, and declines that should be answers.

    python -m data.check_data --count 60000
    python -m data.check_data --damage 200          how many search turns with one wrong digit or node the checks notice
"""
import argparse
import random
import re
from fractions import Fraction

from data import check_search
from data.conversation import SEARCHES, Memory, WEIGHTS, next_turn, search_turn

NUMBER = re.compile(r"-?\d+")
SIMPLE = re.compile(r"\D*?(-?\d{1,3}) ?(\+|-|−|–|\*|x|X|×|·|/|÷|plus|minus|times|divided by|multiplied by) ?(\d{1,2})\D*", re.IGNORECASE)


def check_value(turn):
    """The answer's own equation holds, and its numbers are those of the request."""
    if turn.task == "sum":
        numbers = [int(n) for n in NUMBER.findall(turn.user)]
        lines = [int(l.split(":")[0]) for l in turn.think.split("\n") if re.match(r"\d+:", l)]
        return sum(lines) == int(turn.expected) and ("In digits" in turn.think or lines == numbers[-len(lines):] or set(lines) <= set(map(abs, numbers)))
    left, right = turn.answer.split(" = ")
    value = right.split(", rest ")
    if turn.task == "quotient":
        a, b = map(int, left.split(" / "))
        return int(value[0]) * b + (int(value[1]) if len(value) > 1 else 0) == a and (len(value) == 1 or 0 < int(value[1]) < b)
    typed = re.sub(r"[−–]", "-", turn.user)
    same = "In digits" in turn.think or sorted(re.findall(r"\d+", typed)) == sorted(re.findall(r"\d+", left))
    return eval(left) == int(right) and same          # noqa: S307: our own digits and signs


def check_equation(turn):
    """The value solves the equation as the reasoning restates it."""
    left, right = (re.match(r"\w+: (-?\d+)\*\w and (-?\d+)", line) for line in turn.think.split("\n")[:2])
    a, b, c, d = (int(m.group(i)) for m in (left, right) for i in (1, 2))
    if a == c:
        return "solution" in turn.answer or "Every" in turn.answer
    return Fraction(turn.answer.split(" = ")[1]) == Fraction(d - b, a - c)


def check_sort(turn):
    numbers = [int(n) for n in re.findall(r"\d+", turn.user)]
    for told in turn.facts.values():        # a fact told in front of the list
        if told.isdigit() and int(told) in numbers:
            numbers.remove(int(told))
    got = [int(n) for n in turn.answer.removeprefix("Sorted: ").split(", ")]
    return got in (sorted(numbers), sorted(numbers, reverse=True)) or sorted(got) == sorted(n for n in numbers if n in got)


def check_variables(turn):
    """Runs the canonical assignments of the reasoning."""
    values = {}
    for line in turn.think.split("\n"):
        known = re.match(r"(\S+) is (-?\d+)$", line)
        step = re.match(r"(\S+) = (\S+)(?: ([+-]) (\S+))?: ", line)
        if step:
            name, first, sign, second = step.groups()
            get = lambda x: int(x) if x.isdigit() else values[x]
            values[name] = get(first) + (0 if not sign else get(second) if sign == "+" else -get(second))
            if "not within" in line:
                return not -999 <= values[name] <= 999 and "leaves" in turn.answer
            sizes = re.search(r"(\d+ [+-] \d+) is (\d+), ", line)
            if not line.endswith(f"{name} is {values[name]}") or sizes and not eval(sizes[1]) == int(sizes[2]) == abs(values[name]):   # noqa: S307: digits and signs
                return False
        elif known:
            values[known.group(1)] = int(known.group(2))
    if "no value" in turn.answer:
        return turn.answer.split(" has ")[0] not in values
    name, value = turn.answer.split(" = ")
    return values[name] == int(value)


def check_hidden(turn):
    if "do not find" in turn.answer:
        return True
    quote = turn.think.split("The text says: ")[1]
    return quote in turn.user and turn.expected in quote


def check_beyond(turn):
    """A request that is declined must not be one of the model's own."""
    return not SIMPLE.fullmatch(turn.user) or re.search(r"[.,:%()^!=<>$€£¥]|[a-z]{3}|0\b", re.sub(r"plus|minus|times|divided|by|multiplied|\.$|what|calc\w*|much|how|is", "", turn.user.lower())) is not None


def sound(line, turn):
    """Whether the steps of a try or a check are true and within the request."""
    edges = set(re.findall(r"[a-z]>[a-z]", turn.user))
    if turn.task == "path":
        return all(f"{a}>{b}" in edges for a, b in zip(line.split("-"), line.split("-")[1:])) and set(line.split()) <= edges | {line}
    if turn.task == "factor":
        divisor, number = line.split(":")[0], re.search(r"\d{3,4}", turn.user).group()
        rest, left = "0", number
        for head, k, by, more in re.findall(r"(\d+)=(\d+)\*(\d+)\+(\d+)", line):
            before = next(i for i in range(1, len(left) + 1) if int(rest + left[:i]) == int(head))
            rest, left = more, left[before:]
            if by != divisor or int(k) * int(by) + int(more) != int(head) or int(more) >= int(by):
                return False
        return not left
    first, value, more, last = re.fullmatch(r"(\S+)=(\d+)(?: (\S+)=(\d+))?", line).groups()
    used, listed = re.findall(r"\d+", first + (more or "")), check_search.numbers_and_target(turn.user)[0]
    return eval(first) == int(value) and (not more or eval(value + more) == int(last)) and check_search.part_of([int(n) for n in used], listed)


def claims(line, turn):
    """Whether a try's last value is what the request wants."""
    if turn.task == "path":
        return line[-1] == re.search(r"from . to (.)", turn.user).group(1)
    return line.endswith("+0") if turn.task == "factor" else int(line.rsplit("=")[-1]) == check_search.numbers_and_target(turn.user)[1]


def check_tries(turn):
    """Every try is true and says rightly whether it succeeds; a false one claims success and the check after it refutes it."""
    lines = [line.rsplit(" ", 1) for line in turn.think.split("\n")]
    for (line, verdict), (after, refuted) in zip(lines, lines[1:] + [("", "")]):
        if line.startswith("check "):
            line = line.removeprefix("check ")
            fine = verdict == "no" or sound(line, turn)
        else:
            fine = claims(line, turn) == (verdict == "yes") and (sound(line, turn) or verdict == "yes" and refuted == "no") and after.startswith("check ") == (verdict == "yes")
        if not fine:
            return False
    return lines[-1][0].startswith("check ") and lines[-1][1] == "yes" and check_search.right(turn.user, turn.answer, turn.task)


CHECKS = {**{task: check_tries for task in SEARCHES}, "sum": check_value, "difference": check_value, "product": check_value, "quotient": check_value, "equation": check_equation,
          "sort": check_sort, "variables": check_variables, "hidden": check_hidden, "beyond": check_beyond}


def noticed(task, count, rng):
    """How many of `count` search turns the checks refuse once one digit (one node of a path) of their reasoning is changed."""
    refused = 0
    for _ in range(count):
        turn = SEARCHES[task](rng)
        at = rng.choice([m.start() for m in re.finditer(r"(?<=-)[a-z]" if task == "path" else r"\d", turn.think)])
        letters = "abcdefghijklmnopqrstuvwxyz" if task == "path" else "0123456789"
        turn.think = turn.think[:at] + rng.choice(letters.replace(turn.think[at], "")) + turn.think[at + 1:]
        try:
            refused += not check_tries(turn)
        except (AttributeError, StopIteration, SyntaxError, ValueError):      # a line that has lost its form
            refused += 1
    return refused


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--count", type=int, default=20000)
    p.add_argument("--search", type=float, default=0.2, help="share of search turns")
    p.add_argument("--damage", type=int, default=0, help="damage so many turns of each search task instead")
    p.add_argument("--seed", type=int, default=5)
    args = p.parse_args()
    rng, memory, bad, seen = random.Random(args.seed), Memory(), {}, {}
    for task in SEARCHES if args.damage else ():
        print(f"{task}: {noticed(task, args.damage, rng)} of {args.damage} damaged turns noticed")
    if args.damage:
        return
    for _ in range(args.count):
        turn = search_turn(rng, memory) if rng.random() < args.search else next_turn(rng, memory, WEIGHTS, (40, 800))
        seen[turn.task] = seen.get(turn.task, 0) + 1
        if turn.task in CHECKS and turn.think and not CHECKS[turn.task](turn):
            bad.setdefault(turn.task, []).append(turn)
    print(seen)
    for task, turns in bad.items():
        print(f"{task}: {len(turns)} wrong")
        for turn in turns[:5]:
            print("   ", repr(turn.user[-300:]), "->", repr(turn.think[-200:]), repr(turn.answer))
    if not bad:
        print("all right")


if __name__ == "__main__":
    main()
