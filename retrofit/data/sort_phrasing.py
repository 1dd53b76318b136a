"""Requests to sort put together from a direction, a verb and a place for the list; {n} is the list."""

# (the small end, the large end) as comparatives, superlatives and plain words.
ENDS = [("small", "large", "smallest", "largest"), ("small", "big", "smallest", "biggest"), ("little", "big", "littlest", "biggest"), ("low", "high", "lowest", "highest"), ("least", "greatest", "least", "greatest"),
        ("less", "more", "least", "most"), ("minimum", "maximum", "minimum", "maximum"), ("min", "max", "minimal", "maximal"), ("cheap", "expensive", "cheapest", "most expensive"), ("cheap", "dear", "cheapest", "dearest"), ("young", "old", "youngest", "oldest"),
        ("short", "long", "shortest", "longest"), ("short", "tall", "shortest", "tallest"), ("light", "heavy", "lightest", "heaviest"), ("early", "late", "earliest", "latest"), ("few", "many", "fewest", "most"), ("slow", "fast", "slowest", "fastest"),
        ("weak", "strong", "weakest", "strongest"), ("thin", "thick", "thinnest", "thickest"), ("narrow", "wide", "narrowest", "widest"), ("near", "far", "nearest", "farthest"), ("poor", "rich", "poorest", "richest"), ("bottom", "top", "lowest", "topmost"),
        ("minor", "major", "tiniest", "hugest"), ("shallow", "deep", "shallowest", "deepest"), ("bad", "good", "worst", "best"), ("worst", "best", "worst", "best"), ("small", "great", "smallest", "greatest"), ("low", "high", "lowest", "highest"), ("small", "large", "smallest", "largest")]
RISING = ["ascending", "increasing", "rising", "growing", "climbing", "upward", "upwards", "going up", "in ascending order", "in increasing order", "in rising order", "in growing order", "in upward order", "asc", "up", "numerically", "in numeric order",
          "in order", "in the usual order", "in counting order", "as on a number line", "by size", "by value", "in sequence", "the normal way", "counting up", "so that they grow", "so that they go up", "each larger than the one before", "by number"]
FALLING = ["descending", "decreasing", "falling", "sinking", "shrinking", "downward", "downwards", "going down", "in descending order", "in decreasing order", "in falling order", "in reverse order", "in downward order", "desc", "down", "backwards by size",
           "counting down", "reversed", "in reverse", "the other way round, large to small", "so that they fall", "so that they go down", "each smaller than the one before", "by size, falling", "by value, highest first"]
VERBS = ["sort", "sort", "sort", "order", "arrange", "rank", "put", "list", "line up", "bring", "organise", "organize", "reorder", "write", "print", "show", "give", "return", "place", "set", "sequence", "reorganise", "tidy up", "rearrange", "name", "read out", "display"]
THINGS = """numbers values scores prices ages heights results points weights costs years times grades sizes lengths bids amounts distances figures items entries marks
temperatures pages rooms levels ranks speeds widths digits counts data readings measurements houses lap-times""".split()
LABELS = ["numbers", "values", "list", "the list", "my list", "data", "input", "here", "given", "these", "scores", "ages", "prices", "items", "the numbers", "my numbers", "figures", "results", "heights", "times", "list of numbers", "the data", "array", "set", "sequence", "measurements"]


def direction(rng, descending):
    """Words that say which way."""
    c = rng.choice
    if rng.random() < 0.4:
        return c(FALLING if descending else RISING)
    low, high, lowest, highest = c(ENDS)
    first, last, most, other = (high, low, highest, lowest) if descending else (low, high, lowest, highest)
    return c([f"from {first} to {last}", f"{first} to {last}", f"from {most} to {other}", f"{most} to {other}", f"from the {most} to the {other}", f"{most} first", f"the {most} first", f"{most} one first", f"{most} at the front",
              f"{most} at the start", f"{most} up front", f"{other} last", f"the {other} last", f"{other} at the end", f"with the {most} first", f"with the {most} at the start", f"with the {other} at the end", f"starting with the {most}",
              f"starting from the {most}", f"beginning with the {most}", f"ending with the {other}", f"{first} ones first", f"the {first} ones first", f"{most} number first", f"{most} value first", f"{most} before {other}", f"{most} to {other}", f"{first} -> {last}",
              f"{first}-to-{last}", f"{most} goes first", f"{other} goes last", f"{most}, then the next, down to the {other}" if descending else f"{most}, then the next, up to the {other}"])


def large(text):
    text = " ".join(text.split())
    return text[0].upper() + text[1:]


def compose_direction_sort(rng, descending):
    """A template with {n}: the list first, last or in the middle."""
    c = rng.choice
    way = direction(rng, descending)
    if not descending and rng.random() < 0.2:
        way = ""
    thing, verb = c(THINGS).replace("-", " "), c(VERBS)
    if not way:
        verb = c(["sort", "sort", "order", "arrange", "rank"])
    them = c(["them", "them", "these", "it", "those", "all", f"the {thing}", "everything", "the list", "the numbers"])
    what = c([f"these {thing}", f"the {thing}", f"my {thing}", "these", "this list", "the list", "the following", f"the following {thing}", "this", f"those {thing}", f"all {thing}", "", ""])
    colon, end = c([": ", ":\n", ": ", " - ", " ", ", "]), c([".", "", "", "!", " please", ", please", " please."])
    ask = c(["", "", "", "can you ", "could you ", "please ", "would you ", "I want you to ", "now ", "just ", "let us ", "you should ", "I need you to "])
    mark = "?" if ask.split(" ")[0] in ("can", "could", "would") else end
    text = c([
        lambda: f"{ask}{verb} {what} {way}".rstrip() + c([": ", ":\n", ": ", " "]) + "{n}",
        lambda: f"{ask}{verb} {{n}} {way}{mark}",
        lambda: f"{{n}}{c([' ', ', ', chr(10), '; ', '. ', ': ', ' - ', ' -- '])}{ask}{verb} {them} {way}{mark}",
        lambda: f"{{n}}{c([' ', ', ', chr(10), ' - ', ' -- ', ': ', '; '])}{way or 'sorted'}{end}",
        lambda: f"{way or 'sorted'}{colon}{{n}}",
        lambda: f"{c(LABELS)}{c([': ', ': ', ' = ', ' ', ':' + chr(10)])}{{n}}{c(['. ', chr(10), '; ', ', ', ' '])}{ask}{verb} {c([them, them, ''])} {way}{mark}",
        lambda: f"{c(LABELS)}{c([': ', ': ', ' = ', ' '])}{{n}}{c(['. ', chr(10), '; ', ', ', ' - '])}{way or 'in order'}{end}",
        lambda: f"{way or 'in order'}{c(['; ', ', ', ' - ', '. ', ': '])}{c(['here they are', 'these are', 'here is the list', 'the list', 'my ' + thing, 'the ' + thing, 'I have', 'they are', 'take', 'use', 'list', 'numbers'])}{c([': ', ' ', ':' + chr(10)])}{{n}}",
        lambda: f"{c(['my', 'our', 'the', 'these', 'their', 'today the'])} {thing} {c(['are', 'were', 'read', 'came out as', 'go'])} {{n}}{c(['. ', '; ', ', ', ' - '])}{ask}{verb} {them} {way}{mark}",
        lambda: f"{c(['I want', 'I need', 'give me', 'show me', 'I would like', 'write', 'return', 'we need', 'let me see', 'let me have'])} {{n}} {c(['', 'sorted', 'ordered', 'arranged', 'in order', 'listed'])} {way or 'sorted'}{end}",
        lambda: f"{c(['I want', 'I need', 'give me', 'show me', 'I would like', 'return'])} {what or 'these'} {c(['sorted', 'ordered', 'arranged', 'listed'])} {way}{c([': ', ':' + chr(10), ' - '])}{{n}}",
        lambda: f"{{n}} {c(['sorted', 'ordered', 'in order', 'arranged', 'ranked', 'listed'])} {way}{c(['', '?', '.', ' please', ', please'])}",
        lambda: f"{c(['what is', 'what would be', 'show me', 'tell me'])} {{n}} {c(['sorted', 'ordered', 'in order', 'when sorted', 'put in order'])} {way}{c(['?', '', '.'])}",
        lambda: f"{c(['how would you', 'how do you', 'in which order would you'])} {c(['sort', 'order', 'rank', 'arrange'])} {{n}}{' ' + way if way else ''}?",
        lambda: f"{c(['sort', 'order', 'rank', 'sorting', 'sorted'])}{c([' ', ', ', ': ', ' '])}{way}{c([': ', ' ', chr(10), ' - '])}{{n}}",
        lambda: f"{c(['can', 'could', 'would'])} you {c(['put', 'bring', 'get', 'sort', 'order', 'line up', 'arrange', 'list'])} {c(['{n}', 'the ' + thing + ' {n}'])} {c(['in order', '', 'in a row'])} {way or 'in order'}?",
        lambda: f"{ask}{verb} {way or 'in order'}{c([': ', ' ', ':' + chr(10)])}{{n}}{c(['', '', '.', ' please', ' - thanks', ', thanks'])}",
    ])()
    text = text if "\n" in text else " ".join(text.split())
    text = text.replace("  ", " ").replace(" ?", "?").replace(" .", ".").replace(" ,", ",").replace(" :", ":").replace(" ;", ";")
    return text[0].upper() + text[1:] if rng.random() < 0.6 else text
