"""Search tasks: reasoning that tries at random, sees that a try fails, tries again, and checks what it found.

Every try is one line, drawn independently of the tries before it, and says whether it succeeds. The number of tries is
therefore geometric, and the loss on a try's choices has its minimum at the distribution that drew them: sampling at
temperature 1 searches, more tokens or more chains find more, and nothing but the request and the current try matters.
In a few chains a try is wrong in its arithmetic and claims success; the check that follows sees it and the search goes on.
"""
from data.phrasing import dress, join
from data.tasks_math import NEEDS_THINKING
from data.turn import Turn, phrase, pick_phrasing

SLIPS = 0.03              # share of the chains with one false success

COUNTDOWN_PHRASINGS = [
    "Reach {t} with three of {n}.", "Reach {t} from three of the numbers {n}.", "Make {t} from three of {n}.", "Countdown: {t} from three of {n}",
    "Get {t} out of three of these numbers: {n}",
    "How do I get {t} from three of {n}?", "Use three of {n} to make {t}.", "Combine three of {n} to reach {t}.", "Which calculation with three of {n} gives {t}?",
    "From three of {n}, make {t}.",
]
SUBSET_PHRASINGS = [
    "Which three of {n} add up to {t}?", "Find three numbers that add up to {t}: {n}", "Find three of {n} that add up to {t}.", "Three of {n} make {t}. Which?",
    "Pick three of {n} with the sum {t}.",
    "Which three of these numbers have the sum {t}: {n}", "Choose three of {n} so that their sum is {t}.", "Subset of three with sum {t}: {n}",
    "Select three of {n} that make {t} together.", "Which three numbers give {t} together? {n}",
]
FACTOR_PHRASINGS = [
    "Split {t} into two factors.", "Factor {t} by trial.", "Find two factors of {t}.", "Which two numbers multiply to {t}?", "Write {t} as a product.",
    "Find a number that divides {t}.", "Find a divisor of {t} by trial.", "Factor {t} by trial division.", "{t} is a product of two primes. Which?",
    "By what can {t} be divided?",
]
PATH_PHRASINGS = [
    "Find a path from {a} to {b}: {n}", "Find a way from {a} to {b}: {n}", "How do I get from {a} to {b}? {n}", "Path from {a} to {b} in this graph: {n}",
    "Which path leads from {a} to {b}? {n}",
    "Go from {a} to {b} along these edges: {n}", "Edges: {n}. Find a path from {a} to {b}.", "Graph: {n}. Path from {a} to {b}?",
    "The edges are {n}. How do I get from {a} to {b}?", "Search a path from {a} to {b}: {n}",
]
PRIMES = [p for p in range(2, 1000) if all(p % d for d in range(2, int(p ** 0.5) + 1))]
TRIAL_PRIMES = [p for p in PRIMES if 11 <= p <= 97]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


REACH = "reach make get build hit form obtain produce calculate compose".split()


def compose_countdown(rng):
    """A template with {t} for the target and {n} for the numbers, of which three are used."""
    c, verb = rng.choice, rng.choice(REACH)
    return c([
        lambda: join(c(["", "", "can you", "please", "try to", "could you"]), verb, "{t}", c(["with", "with", "using", "from", "out of"]), "three of", c(["", "", "these", "the numbers", "the list"]), "{n}") + c([".", ".", "", "?"]),
        lambda: join(c(["with", "using", "from", "taking"]), "three of", c(["", "the numbers"]), "{n}", c(["reach", "make me", "get", "I need", "what gives", "how do I make", "find"]), "{t}") + c(["", ".", "?"]),
        lambda: join(c(["how do I", "how can I", "how would you", "how does one", "is there a way to"]), verb, "{t}", c(["with", "using", "from"]), "three of", "{n}") + "?",
        lambda: join(c(["the numbers are", "my numbers are", "numbers:", "given", "take"]), "{n}") + c([". ", "; ", ", "]) + join(verb, "{t}", c(["with", "from", "using"]), c(["three of them", "any three", "three of these"])) + c([".", "", "?"]),
        lambda: join(c(["target", "goal", "countdown", "result"]), c(["{t}", "is {t}"])) + c([", ", "; ", ". "]) + c(["numbers are {n}, use three", "use three of {n}", "take three of {n}", "three of {n}"]) + c([".", ""]),
    ])()


def compose_subset(rng):
    """A template with {t} for the sum and {n} for the numbers, of which three are taken."""
    c = rng.choice
    return c([
        lambda: join("which three", c(["of", "numbers of", "out of"]), "{n}", c(["sum to", "add to", "total", "have the sum", "have the total", "make", "give", "add up to", "come to"]), "{t}") + c(["?", "?", ""]),
        lambda: join(c(["find", "pick", "choose", "select", "take", "show me", "give me", "name"]), "three", c(["of", "numbers of", "from"]), "{n}", c(["that sum to", "whose sum is", "with sum", "with the total", "that add up to", "adding up to", "that make"]), "{t}") + c([".", "", "!"]),
        lambda: "{n}" + c([". ", ": ", "; ", "\n"]) + join(c(["which three", "find three that", "three of them"]), c(["sum to", "add up to", "make"]), "{t}") + c(["?", ".", ""]),
        lambda: join(c(["what", "which"]), "three of", c(["these", "these numbers"]), c(["sum to", "add up to", "make"]), "{t}: {n}") + c(["", "?"]),
    ])()


UNCOUNTED = ["Which numbers of {n} add up to {t}?", "Which of {n} add up to {t}?", "Which of these numbers add up to {t}: {n}", "Find numbers of {n} with the sum {t}.", "Find a subset of {n} with the sum {t}.", "Subset of {n} with the sum {t}",
             "Which numbers of {n} sum to {t}?", "Which of {n} make {t}?", "Some of {n} add up to {t}. Which?", "Find a subset of {n} that adds up to {t}.", "What numbers out of {n} make {t} together?", "{n}: which of them add up to {t}?",
             "Pick numbers from {n} that sum to {t}.", "Which numbers in {n} have the sum {t}?", "Choose some of {n} so that they add up to {t}.", "Which of the numbers {n} give {t}?", "subset sum {t}: {n}"]
MORE_FACTOR = ["factorise {t}", "Factorize {t}.", "Factorise {t} by trial.", "What are the factors of {t}?", "What are the prime factors of {t}?", "Which primes divide {t}?", "Find the prime factors of {t}.", "prime factors of {t}", "{t} = ? * ?",
               "Which number divides {t}?", "What divides {t}?", "Break {t} into two factors.", "Find p and q with p*q = {t}.", "Express {t} as a product of two numbers.", "decompose {t} into factors", "factor the number {t}", "Which two primes give {t}?"]
MORE_PATH = ["Find a route from {a} to {b}: {n}", "How can I go from {a} to {b} with {n}?", "Is there a way from {a} to {b}: {n}", "{n}\nWhich way leads from {a} to {b}?", "Walk from {a} to {b}: {n}", "Show me a path from {a} to {b} in {n}", "The graph is {n}. How do I get from {a} to {b}?",
             "I want to go from {a} to {b}. The edges: {n}", "path from {a} to {b}: {n}", "Which nodes lead from {a} to {b}? {n}", "Get from {a} to {b}: {n}", "{n}. Find a way from {a} to {b}."]


def listed(rng, numbers):
    """The numbers as typed: with commas, now and then "and" before the last."""
    text = ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if rng.random() < 0.08 else text


def of_two(template):
    """The template of a request for three numbers as one for two."""
    return template.replace("three", "two").replace("Three", "Two")


def easy(rng, core):
    """In training every fourth problem has another size than those of the evaluation, mostly a smaller one."""
    return not core and rng.random() < 0.25


def search_turn(task, rng, user, tries, weights, check, answer, slip, thinking, held_out):
    """A turn whose reasoning draws lines from `tries` [(line, what it found or None)] until one succeeds.

    `check(found)` is the line that verifies a success, `slip()` a false success and the check that refutes it.
    """
    if not thinking:
        return Turn(task, user, "", NEEDS_THINKING, "ask again.")
    lines, slips = [], rng.random() < SLIPS
    while True:
        line, found = rng.choices(tries, cum_weights=weights)[0] if weights else rng.choice(tries)
        if slips and rng.random() < 0.1:
            false = slip()
            lines += false or []
            slips = not false
            continue
        lines.append(f"{line} {'no' if found is None else 'yes'}")
        if found is not None:
            break
    lines.append(f"check {check(found)} yes")
    text = answer(found)
    return Turn(task, user, "\n".join(lines), f"Answer: {text}", text, held_out=held_out)


# ---------------------------------------------------------------- countdown

TOP = 199                 # no intermediate result is larger


def apply(a, sign, b):
    """a sign b, or None where the task does not allow it: results from 1 to TOP, one factor of a single digit."""
    value = a + b if sign == "+" else a - b if sign == "-" else a * b
    if not 1 <= value <= TOP or (sign == "*" and min(a, b) > 9):
        return None
    return value


def countdown_tries(numbers):
    """Every (a, sign, b, result, sign, c, result) with three of the four numbers, calculated from left to right."""
    tries = []
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers):
            for s in "+-*" if i != j else "":
                first = apply(a, s, b)
                if first is None:
                    continue
                for k, c in enumerate(numbers):
                    for z in "+-*" if k not in (i, j) else "":
                        last = apply(first, z, c)
                        if last is not None:
                            tries.append((a, s, b, first, z, c, last))
    return tries


def countdown_line(t):
    return "{}{}{}={} {}{}={}".format(*t)


def pair_tries(numbers):
    """Every (a, sign, b, result) with two of the numbers."""
    made = [(a, s, b, apply(a, s, b)) for i, a in enumerate(numbers) for j, b in enumerate(numbers) if i != j for s in "+-*"]
    return [t for t in made if t[-1] is not None]


def make_pair(rng, thinking):
    """Two of three to six numbers and + - * that reach a target."""
    numbers = rng.sample(range(1, 26), rng.randint(3, 6)) if rng.random() < 0.7 else [rng.randint(1, 12) for _ in range(rng.randint(3, 5))]
    every = pair_tries(numbers)
    target = rng.choice(every)[-1]
    user = dress(rng, of_two(pick_phrasing(rng, COUNTDOWN_PHRASINGS, False, compose_countdown)).format(t=target, n=listed(rng, numbers)))
    line = lambda t: "{}{}{}={}".format(*t)
    tries = [(line(t), t if t[-1] == target else None) for t in every]

    def slip():
        t = rng.choice(every)
        return None if t[-1] == target else [line(t[:-1] + (target,)) + " yes", f"check {line(t)} no"]

    return search_turn("countdown", rng, user, tries, None, line, lambda t: "{}{}{}".format(*t), slip, thinking, False)


def expression(t):
    """A try in the usual order of operations; it never begins with a bracket."""
    a, s, b, _, z, c, _ = t
    return f"{c}*({a}{s}{b})" if z == "*" and s != "*" else f"{a}{s}{b}{z}{c}"


def draw_countdown(rng, other=False):
    """(numbers, target, tries): the share of tries that reach the target is between 1/60 and 1/35.

    `other`: three, four or five numbers and any share above 1/120.
    """
    least, most = (1, 120) if other else (35, 60)
    while True:
        numbers = rng.sample(range(1, 26), rng.randint(3, 5)) if other else rng.sample(range(2, 10), 2) + rng.sample(range(2, 26), 2)
        if not other and len(set(numbers)) < 4:
            continue
        rng.shuffle(numbers)
        tries, counts = countdown_tries(numbers), {}
        for t in tries:
            counts[t[-1]] = counts.get(t[-1], 0) + 1
        targets = [v for v, n in counts.items() if 10 <= v and v not in numbers and least <= len(tries) / n <= most]
        if targets:
            return numbers, rng.choice(targets), tries


def make_countdown(rng, held_out=False, core=False, thinking=True):
    """Three of four numbers and + - * that reach a target; in training also two, and other lists."""
    if not core and not held_out and rng.random() < 0.25:
        return make_pair(rng, thinking)
    numbers, target, every = draw_countdown(rng, not core and rng.random() < 0.2)
    user = phrase(rng, COUNTDOWN_PHRASINGS, held_out, None if core else compose_countdown, t=target, n=", ".join(map(str, numbers)) if core or held_out else listed(rng, numbers))
    tries = [(countdown_line(t), t if t[-1] == target else None) for t in every]

    def slip():
        t = rng.choice([t for t in every if t[-1] != target])
        return [countdown_line(t[:-1] + (target,)) + " yes", f"check {countdown_line(t)} no"]

    return search_turn("countdown", rng, user, tries, None, countdown_line, expression, slip, thinking, held_out)


# ---------------------------------------------------------------- subset sum

def subset_line(three):
    a, b, c = three
    return f"{a}+{b}={a + b} +{c}={a + b + c}"


def draw_subset(rng, sizes=(7, 8)):
    """(numbers, target): exactly one set of three of the seven or eight numbers has the target as its sum."""
    while True:
        numbers = rng.sample(range(2, 100 if rng.random() < 0.7 else 50), rng.choice(sizes))
        count, sums = len(numbers), {}
        for i in range(count):
            for j in range(i):
                for k in range(j):
                    total = numbers[i] + numbers[j] + numbers[k]
                    sums[total] = sums.get(total, 0) + 1
        targets = [v for v, n in sums.items() if n == 1 and v not in numbers]
        if targets:
            return numbers, rng.choice(targets)


def sum_line(chosen):
    """A try of two or three numbers."""
    return subset_line(chosen) if len(chosen) == 3 else f"{chosen[0]}+{chosen[1]}={sum(chosen)}"


def make_few(rng, thinking):
    """Two of three to eight numbers with a given sum, or two or three where the request does not say how many."""
    pairs = rng.random() < 0.5
    numbers = rng.sample(range(1, rng.choice([13, 30, 100])), rng.randint(3, 8 if pairs else 6))
    twos = [(a, b) for a in numbers for b in numbers if a != b]
    threes = [] if pairs else [(a, b, c) for a, b in twos for c in numbers if c not in (a, b)]
    target = sum(rng.choice(threes if threes and rng.random() < 0.5 else twos))
    threes = [t for t in threes if t[0] + t[1] != target]      # a pair that succeeds ends the try
    template = of_two(pick_phrasing(rng, SUBSET_PHRASINGS, False, compose_subset)) if pairs else rng.choice(UNCOUNTED)
    user = dress(rng, template.format(t=target, n=listed(rng, numbers)))
    tries = [(sum_line(t), t if sum(t) == target else None) for t in twos + threes]
    weights = [(i + 1) / len(twos) for i in range(len(twos))] + [1 + (i + 1) / len(threes) for i in range(len(threes))]    # as many of each

    def slip():
        t = rng.choice(twos)
        return None if sum(t) == target else [f"{t[0]}+{t[1]}={target} yes", f"check {sum_line(sorted(t))} no"]

    return search_turn("subset", rng, user, tries, weights, lambda t: sum_line(sorted(t)), lambda t: "+".join(map(str, sorted(t))), slip, thinking, False)


def make_subset(rng, held_out=False, core=False, thinking=True):
    """Three of seven or eight numbers with a given sum; in training also two, and requests that do not say how many."""
    if not core and not held_out and rng.random() < 0.3:
        return make_few(rng, thinking)
    numbers, target = draw_subset(rng, (4, 5, 6, 9) if easy(rng, core) else (7, 8))
    user = phrase(rng, SUBSET_PHRASINGS, held_out, None if core else compose_subset, t=target, n=", ".join(map(str, numbers)) if core or held_out else listed(rng, numbers))
    tries = [(subset_line((a, b, c)), (a, b, c) if a + b + c == target else None)
             for a in numbers for b in numbers if b != a for c in numbers if c not in (a, b)]

    def slip():
        three = rng.sample(numbers, 3)
        if sum(three) == target:
            return None
        a, b, c = three
        return [f"{a}+{b}={a + b} +{c}={target} yes", f"check {subset_line(sorted(three))} no"]

    return search_turn("subset", rng, user, tries, None, lambda three: subset_line(sorted(three)), lambda three: "+".join(map(str, sorted(three))),
                       slip, thinking, held_out)


# ---------------------------------------------------------------- factors

def division(number, divisor):
    """(long division on one line, quotient, rest): heads that are smaller than the divisor are passed over."""
    rest, quotient, steps = 0, 0, []
    for digit in str(number):
        head = rest * 10 + int(digit)
        k, rest = divmod(head, divisor)
        quotient = quotient * 10 + k
        if quotient:
            steps.append(f"{head}={k}*{divisor}+{rest}")
    return f"{divisor}: " + " ".join(steps), quotient, rest


def draw_factors(rng, small=False):
    """A prime from 11 to 97 and one above 97 with a product of four digits; `small`: two from 11 to 97."""
    while True:
        p, q = rng.choice(TRIAL_PRIMES), rng.choice(TRIAL_PRIMES if small else PRIMES)
        if small or q > 97 and 1000 <= p * q <= 9999:
            return p, q


def make_factor(rng, held_out=False, core=False, thinking=True):
    """Two prime factors of a number of four digits by trial division."""
    p, q = draw_factors(rng, easy(rng, core))
    number = p * q
    user = phrase(rng, FACTOR_PHRASINGS, held_out, None if core else lambda r: r.choice(MORE_FACTOR), t=number)
    tries = [(division(number, d)[0], None if number % d else d) for d in TRIAL_PRIMES]

    def slip():
        d = rng.choice(TRIAL_PRIMES)
        line, _, rest = division(number, d)
        if not rest:
            return None
        return [line[:line.rindex("+")] + "+0 yes", f"check {line} no"]

    return search_turn("factor", rng, user, tries, None, lambda d: division(number, d)[0], lambda d: f"{d}*{number // d}", slip, thinking, held_out)


# ---------------------------------------------------------------- paths

def walks(edges, start, goal):
    """[(nodes, probability)] of every random walk from start to the goal or to a node without edges."""
    done, open_walks = [], [((start,), 1.0)]
    while open_walks:
        nodes, chance = open_walks.pop()
        following = edges.get(nodes[-1], [])
        if nodes[-1] == goal or not following:
            done.append((nodes, chance))
        else:
            open_walks += [(nodes + (n,), chance / len(following)) for n in following]
    return done


def chances(edges, order, start):
    """{node: probability that a random walk from `start` comes by}; `order` is topological."""
    chance = {start: 1.0}
    for node in order:
        share = chance.get(node, 0.0) / max(1, len(edges.get(node, ())))
        for n in edges.get(node, ()) if share else ():
            chance[n] = chance.get(n, 0.0) + share
    return chance


def draw_graph(rng, small=False):
    """(edges, start, goal, walks): acyclic, and a random walk reaches the goal with a probability from 1/100 to 1/60.

    `small`: fewer nodes and any probability above 1/60.
    """
    least, most = (1 / 60, 1.0) if small else (1 / 100, 1 / 60)
    while True:
        count = rng.randint(5, 10) if small else rng.randint(11, 14)
        nodes = rng.sample(LETTERS, count)
        inner, edges = rng.randint(3, count - 2) if small else rng.randint(6, count - 4), {}
        for i in range(inner):
            later = nodes[i + 1:i + 6]
            rng.shuffle(later)
            edges[nodes[i]] = later[:rng.choice([2, 3, 3, 4])]
        for start in nodes[:3]:
            goals = [n for n, c in chances(edges, nodes, start).items() if n != start and least <= c <= most]
            if goals:
                goal = rng.choice(goals)
                return edges, start, goal, walks(edges, start, goal)


def make_path(rng, held_out=False, core=False, thinking=True):
    """A path from one node to another in a directed graph with dead ends."""
    edges, start, goal, every = draw_graph(rng, easy(rng, core))
    pairs = [f"{a}>{b}" for a, following in edges.items() for b in following]
    rng.shuffle(pairs)
    user = phrase(rng, PATH_PHRASINGS, held_out, None if core else lambda r: r.choice(MORE_PATH), a=start, b=goal, n=", ".join(pairs))
    tries = [("-".join(w), w if w[-1] == goal else None) for w, _ in every]
    weights, total = [], 0.0
    for _, chance in every:
        total += chance
        weights.append(total)

    def steps(walk):
        return " ".join(f"{a}>{b}" for a, b in zip(walk, walk[1:]))

    def slip():
        walk = rng.choice(every)[0][:-1]
        if len(walk) < 2 or goal in edges.get(walk[-1], []):
            return None
        return ["-".join(walk + (goal,)) + " yes", f"check {steps(walk + (goal,))} no"]

    return search_turn("path", rng, user, tries, weights, steps, lambda w: "-".join(w), slip, thinking, held_out)


SEARCHES = {"countdown": make_countdown, "subset": make_subset, "factor": make_factor, "path": make_path}
