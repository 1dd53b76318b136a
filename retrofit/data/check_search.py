"""Says whether an answer to a search task is right, from the texts of the request and the answer alone.

    python -m data.check_search "Factor 1517 by trial." "Answer: 37*41"        exit status 0 if it is right
"""
import re
import sys

NUMBER_LIST = re.compile(r"\d+(?:, \d+)+(?: and \d+)?")


def numbers_and_target(request):
    """(the listed numbers, the one number beside the list), or None."""
    found = NUMBER_LIST.search(request)
    if not found:
        return None
    beside = re.findall(r"\d+", request[:found.start()] + " " + request[found.end():])
    return ([int(n) for n in re.findall(r"\d+", found.group())], int(beside[0])) if len(beside) == 1 else None


def part_of(chosen, numbers):
    """Whether `chosen` uses each listed number at most as often as it is listed."""
    return all(chosen.count(n) <= numbers.count(n) for n in chosen)


def right_countdown(request, answer):
    told = numbers_and_target(request)
    if not told or not re.fullmatch(r"\d{1,3}(?:[-+*]\d{1,3}){1,2}|\d{1,3}\*\(\d{1,3}[-+]\d{1,3}\)", answer):
        return False
    chosen = [int(n) for n in re.findall(r"\d+", answer)]
    return part_of(chosen, told[0]) and not re.search(r"\b0\d", answer) and eval(answer) == told[1]      # noqa: S307: digits and signs


def right_subset(request, answer):
    told = numbers_and_target(request)
    if not told or not re.fullmatch(r"\d+(?:\+\d+){1,2}", answer):
        return False
    chosen = [int(n) for n in answer.split("+")]
    return part_of(chosen, told[0]) and sum(chosen) == told[1]


def right_factor(request, answer):
    number, said = re.search(r"\d{3,4}", request), re.fullmatch(r"(\d+)\*(\d+)", answer)
    return bool(number and said) and min(int(said[1]), int(said[2])) > 1 and int(said[1]) * int(said[2]) == int(number.group())


def right_path(request, answer):
    edges, ends = set(re.findall(r"\b([a-z]>[a-z])\b", request)), re.search(r"\bfrom ([a-z]) to ([a-z])\b", request)
    walk = answer.split("-")
    return bool(ends) and len(walk) > 1 and (walk[0], walk[-1]) == ends.groups() and all(f"{a}>{b}" in edges for a, b in zip(walk, walk[1:]))


RIGHT = {"countdown": right_countdown, "subset": right_subset, "factor": right_factor, "path": right_path}


def task_of(request):
    """The search task that a request belongs to."""
    if ">" in request:
        return "path"
    told = numbers_and_target(request)
    return "factor" if not told else "countdown" if len(told[0]) == 4 else "subset"


def right(request, text, task=None):
    """Whether the text's last line `Answer: ...` answers the request."""
    found = re.findall(r"^Answer: (\S+)$", text, re.MULTILINE)
    return bool(found) and RIGHT[task or task_of(request)](request, found[-1])


if __name__ == "__main__":
    sys.exit(not right(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else sys.stdin.read()))
