"""Check generated turns by other means than those that made them: values, quotes, and declines that should be answers.

    python check_data.py --count 60000
"""
import argparse
import random
import re
from fractions import Fraction

from conversation import Memory, WEIGHTS, next_turn

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
                return not 0 <= values[name] <= 999 and "leaves" in turn.answer
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


CHECKS = {"sum": check_value, "difference": check_value, "product": check_value, "quotient": check_value, "equation": check_equation,
          "sort": check_sort, "variables": check_variables, "hidden": check_hidden, "beyond": check_beyond}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--count", type=int, default=20000)
    p.add_argument("--seed", type=int, default=5)
    args = p.parse_args()
    rng, memory, bad, seen = random.Random(args.seed), Memory(), {}, {}
    for _ in range(args.count):
        turn = next_turn(rng, memory, WEIGHTS, (40, 800))
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
