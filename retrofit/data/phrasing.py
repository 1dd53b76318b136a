"""Many ways to say the same request, put together from parts; the held-out phrasings are never among them."""
from data.sort_phrasing import compose_direction_sort

PREFIXES = ["Please ", "Can you ", "Could you ", "Could you please ", "Hey, ", "Hello! ", "Hi. ", "OK, ", "Ok. ", "Now ", "Next: ",
            "Then ", "And ", "Also, ", "I want you to ", "I need help: ", "Quick one: ", "My task: ", "Task: ", "Here is one: ",
            "Another one: ", "Thanks. ", "Good. ", "For homework: ", "So, ", "Tell me: ", "Question: ", "One more: ", "Hm, ",
            "Great! ", "Let's go. ", "I have a task. ", "This is the next one. ", "Be careful. ", "Help me. ", "Well, ", "Try this: "]
SUFFIXES = [" Thanks.", " Thank you!", " please", ", please.", " Show your steps.", " Be careful.", " Take your time.",
            " Step by step.", " Thanks a lot.", "\nThanks!", " Think first.", " No hurry.", " Can you do that?", " I need it now.",
            " That is my task.", " Show the work.", " What do you get?", "\n", " ", " Do it.", " Tell me the result.", " Quickly!"]


def dress(rng, text):
    """Now and then a few words before or after a request, or another spelling of its start and end."""
    if rng.random() < 0.25:
        prefix = rng.choice(PREFIXES)
        if prefix[-2] not in ".:!" and rng.random() < 0.8:
            text = text[0].lower() + text[1:]
        text = prefix + text
    if rng.random() < 0.15:
        text += rng.choice(SUFFIXES)
    if rng.random() < 0.08:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.06:
        text = text.rstrip(".?!") or text
    return text


def join(*parts):
    """Parts with single spaces between those that are not empty, first letter large."""
    text = " ".join(p for p in parts if p)
    return text[0].upper() + text[1:]


def things(rng):
    return rng.choice(["these numbers", "the numbers", "this list", "the following", "the following numbers", "these values",
                       "the list below", "all of these", "these", "my numbers", "this list of numbers", "those numbers", "the values", ""])


def compose_sort(rng, descending):
    """A template with {n} for the list."""
    kind = rng.random()
    if kind < 0.4:
        return compose_direction_sort(rng, descending)
    if kind < 0.6:
        return compose_own_sort(rng, descending)
    if descending:
        way = rng.choice(["in descending order", "in decreasing order", "from large to small", "from highest to lowest", "biggest first",
                          "in falling order", "from largest to smallest", "from the largest to the smallest", "largest first",
                          "in reverse order", "downwards", "from high to low", "from big to small", "descending"])
    else:
        way = rng.choice(["", "", "", "in ascending order", "in increasing order", "from small to large", "from lowest to highest",
                          "smallest first", "in rising order", "from smallest to largest", "from the smallest to the largest",
                          "upwards", "from low to high", "ascending"])
    verb = rng.choice(["sort", "sort", "sort", "order", "arrange", "rank", "line up", "organise", "reorder", "put in order"])
    past = rng.choice(["sorted", "sorted", "ordered", "in order", "arranged", "put in order"])
    what = things(rng)
    return rng.choice([
        lambda: join(verb, what, way) + rng.choice([": ", ":\n", " "]) + "{n}",
        lambda: "{n}\n" + join(verb, what or "these", way) + rng.choice([".", "", "!"]),
        lambda: join(verb, "{n}", way) + rng.choice([".", ""]),
        lambda: join(rng.choice(["I want", "give me", "return", "show me", "I need", "I would like"]), what, past, way) + ": {n}",
        lambda: join(rng.choice(["I want", "give me", "I need", "write", "show me"]), "{n}", past, way) + rng.choice([".", ""]),
        lambda: "{n} " + join(past, way).lower() + rng.choice([".", "?", ", please"]),
        lambda: "{n}" + rng.choice(["; ", "\n", " - ", ". "]) + rng.choice(["can you", "please", "could you", "you should"]) + " "
        + " ".join(p for p in (verb, "them", way) if p) + rng.choice(["?", "."]),
        lambda: join(rng.choice(["here is a list", "these are my numbers", "my list", "numbers", "the list is", "list", "take these"])) + ": {n}"
        + rng.choice([". ", "\n"]) + join(verb, rng.choice(["it", "them", "the list", "the numbers"]), way) + ".",
        lambda: join("what is the", rng.choice(["sorted order", "right order", "sorted list", "order"]), "of {n}", way) + "?",
        lambda: join("{n}", rng.choice(["must be", "should be", "have to be", "need to be"]), past, way) + ".",
        lambda: join("the numbers {n}", rng.choice(["must be", "have to be", "need to be", "are to be"]), past, way) + ".",
        lambda: join("put", what or "these", rng.choice(["in order", "into order", "in the right order"]) if not way else way) + ": {n}",
        lambda: join("put {n}", rng.choice(["in order", "into order"]) if not way else way) + rng.choice(["", "."]),
    ])()


DOWN = """descending|biggest first|from biggest to smallest|largest first|from high to low|dearest first|oldest to youngest|highest first|longest to shortest|newest to oldest|
best to worst|heaviest first|tallest first|decreasing|from the top down|largest at the front|high to low|most to fewest|starting with the largest|beginning with the biggest|desc|in descending order|the big ones first|
richest first|last to first|big to small|falling""".replace("\n", "").split("|")
UP = """ascending|smallest first|from smallest to biggest|from low to high|cheapest first|shortest to longest|earliest to latest|lowest first|lightest to heaviest|worst to best|youngest first|increasing|from the bottom up|
smallest at the front|low to high|fewest to most|starting with the smallest|beginning with the least|asc|in ascending order|the small ones first|poorest first|first to last|small to big|rising|in order|sorted|tidy|in the right order""".replace("\n", "").split("|")


def compose_own_sort(rng, descending):
    """Requests to sort as they come up in passing: {n} is the list."""
    c, way = rng.choice, rng.choice(DOWN if descending else UP)
    things = c(["scores", "prices", "ages", "heights", "results", "points", "weights", "numbers", "costs", "years", "times", "grades", "sizes", "lengths", "values", "bids", "amounts", "house numbers", "distances"])
    them = c(["them", "these", "those", "it", "the " + things, "all of them", "everything"])
    verb = c(["sort", "list", "order", "rank", "write", "bring", "arrange", "put", "show", "return", "give", "print", "name", "place", "line up", "set"])
    return c([
        lambda: join(way) + c([": ", " - ", ":\n", ", please: "]) + "{n}",
        lambda: "{n}" + c([" ", ", ", "\n", " -> ", ": "]) + way + c(["", " please", "!", "?", ", please."]),
        lambda: join(c(["our", "my", "the", "their", "today's"]), things, c(["are", "were", "come to", "read"])) + " {n}" + c([". ", "; ", ", "]) + join(verb, them, way) + c([".", "", "?"]),
        lambda: join(c(["here come", "there are", "I have", "I have got", "I've got", "we got", "take", "here we have"]), c(["some", "the", "my", "these"]), things) + c([": ", " - ", ", "]) + "{n}" + c([" - ", ". ", ", "])
        + c(["and I want", "I want", "now I need", "please give me", "I would like", "can I have"]) + f" {them} {way}" + c([".", "", "?"]),
        lambda: c(["sort({n})", "sorted({n})", "sorted([{n}])", "sort {n} " + way, "order by value: {n}", "sort [{n}] " + way, "ORDER {n} " + way.upper(), "{n} | sort"]) if not descending else "sort({n}, " + way + ")",
        lambda: join(c(["which", "what"]), "order do", "{n}", c(["go in", "belong in", "come in"])) + (", " + way if descending or rng.random() < 0.4 else "") + "?",
        lambda: join(verb, things, way) + c([": ", ":\n", " "]) + "{n}",
        lambda: "{n}. " + join(c(["turn", "bring", "get", "put", "shuffle", "move"]), them, c(["into order", "around", "into shape"]), way) + ".",
        lambda: join(way, c(["one", "value", "number", ""]), c(["", "please", "thanks"])) + ": {n}" if "first" in way else join(verb, "{n}", way),
    ])()


def compose_own_sum(rng):
    """Requests to add as they come up in passing: {n} is the list."""
    c = rng.choice
    ask = c(["what's that altogether", "what is the total", "total", "how much is that in all", "altogether", "what does it add up to", "what do they come to", "the sum", "sum", "how much in total", "what is that together", "what's the sum", "in total"])
    return c([
        lambda: join(c(["tally", "count up", "total up", "add up", "sum", "total", "add", "sum of", "total of", "addition", "in sum", "altogether", "my total", "reckon up", "put together", "all in all"])) + c([": ", " - ", ":\n"]) + "{n}",
        lambda: join(c(["my", "our", "the", "these"]), c(["costs", "points", "scores", "trips", "bills", "hours", "steps", "prices", "marks", "goals"]), c(["are", "were"]), "{n}") + c([". ", "; ", ", "]) + join(ask) + c(["?", "", "."]),
        lambda: join(c(["I", "we", "she", "my children", "they", "the cats", "he", "the team"]), c(["ate", "paid", "spent", "got", "counted", "walked", "scored", "drove", "read", "baked", "sold"]), "{n}", c(["cookies", "euros", "pages", "miles", "points", "things", "cakes", ""])) + c([". ", "; "]) + join(ask) + "?",
        lambda: "{n} " + ask + c(["?", "", " please"]),
        lambda: join(c(["what do", "how much do"]), "{n}", c(["make together", "come to", "add up to", "give", "total", "sum to"])) + "?",
    ])()


def compose_sum(rng):
    """A template with {n} for the numbers."""
    if rng.random() < 0.45:
        return compose_own_sum(rng)
    verb = rng.choice(["add", "add up", "sum", "sum up", "total", "add together", "compute the sum of", "find the total of",
                       "calculate the sum of", "work out the sum of", "get the total of", "count together"])
    noun = rng.choice(["sum", "total", "sum total", "result", "grand total"])
    what = things(rng)
    return rng.choice([
        lambda: join(verb, what) + rng.choice([": ", ":\n", " "]) + "{n}",
        lambda: "{n}\n" + join(verb, what or "these") + rng.choice([".", "", "!"]),
        lambda: join(verb, "{n}") + rng.choice([".", "", "!"]),
        lambda: join("what is the", noun, "of", what) + rng.choice(["? ", ": ", "?\n"]) + "{n}",
        lambda: join("what's the", noun, "of {n}") + "?",
        lambda: "{n}" + rng.choice(["; ", "\n", ". "]) + f"What is the {noun}?",
        lambda: "{n}" + rng.choice([" =", "=", " = ", "=?", " is?", " makes?", " equals?"]),
        lambda: join(rng.choice(["here is a list", "these are my numbers", "my costs", "numbers", "the bill", "I paid", "take these"])) + ": {n}"
        + rng.choice([". ", "\n"]) + join(rng.choice(["what is the total", "what is the sum", "how much is that together", "what do they make"])) + "?",
        lambda: join(rng.choice(["here is a list", "these are my numbers", "my list", "numbers", "take these"])) + ": {n}"
        + rng.choice([". ", "\n"]) + join(verb, rng.choice(["them", "it", "the numbers", "all"])) + ".",
        lambda: join(rng.choice(["I want", "give me", "I need", "tell me", "show me", "find"]), "the", noun, "of", what) + ": {n}",
        lambda: join(rng.choice(["I want", "give me", "I need", "show me", "find"]), "the", noun, "of {n}") + ".",
        lambda: join(rng.choice(["how much is", "how much are", "what is", "what do", "what's"]), "{n}", rng.choice(["", "together", "in total"])) + "?",
    ])()


def compose_equation(rng):
    """A template with {e} for the equation and {v} for the unknown."""
    verb = rng.choice(["solve", "solve", "find", "work out", "calculate", "compute", "determine", "get", "figure out"])
    thing = rng.choice(["{v}", "{v}", "the value of {v}", "the unknown {v}", "the number {v}", "the solution for {v}"])
    kind = rng.choice(["equation", "linear equation", "problem", "following", "following equation", "exercise"])
    return rng.choice([
        lambda: join(rng.choice(["solve", "please solve", "can you solve", "let us solve"]), rng.choice(["this", "the", "my"]), kind) + rng.choice([": ", ":\n", " "]) + "{e}",
        lambda: "{e}" + rng.choice(["; ", "\n", ". ", ", "]) + rng.choice(["find", "get", "compute", "what is", "solve for", "give me"]) + " {v}" + rng.choice(["", ".", "?"]),
        lambda: join(verb if verb != "solve" else "find", thing, rng.choice(["in", "if", "where", "given", "so that", "when", "from"]), "{e}") + rng.choice([".", "", "?"]),
        lambda: join(rng.choice(["what is", "how much is", "what's", "how big is"]), thing.replace("the solution for ", ""), rng.choice(["in", "if", "when", "given"]), "{e}") + "?",
        lambda: "{e}" + rng.choice(["", " ?", "; {v}?", " solve", "\n", ". Solve it.", ". Solve for {v}."]),
        lambda: join(rng.choice(["I have", "we know that", "suppose", "assume", "given", "it holds that", "my equation is", "we have"]), "{e}")
        + rng.choice([". ", "\n", "; "]) + rng.choice(["What is {v}?", "Find {v}.", "Solve for {v}.", "Which {v}?", "Tell me {v}.", "{v}?"]),
        lambda: join(rng.choice(["solve for {v}", "solve", "find {v}", "solution", "{v}", "unknown {v}"])) + rng.choice([": ", ":\n", " | ", " - "]) + "{e}",
        lambda: join("solve", "{e}", rng.choice(["", "for {v}", "please", "and tell me {v}", "step by step", "for the unknown {v}"])) + rng.choice([".", "", "!"]),
        lambda: join(rng.choice(["for what", "which number", "what value of"]), rng.choice(["{v}", "{v}"]), rng.choice(["does {e} hold", "makes {e} true", "gives {e}", "satisfies {e}"])) + "?",
    ])()


def compose_variables(rng):
    """A template with {p} for the program and {v} for the variable."""
    code = rng.choice(["program", "code", "list of steps", "assignments", "steps", "list", "lines", "script"])
    intro = rng.choice(["here is a {c}", "look at this {c}", "run this {c}", "follow this {c}", "this is my {c}", "read the {c}", "take this {c}",
                        "consider the {c}", "go through this {c}", "I have this {c}", "here are some {c}", "execute the {c}", "{c}", "work through the {c}"])
    intro = join(intro.replace("{c}", code))
    ask = rng.choice(["what is {v}", "what is the value of {v}", "what is {v} at the end", "what value does {v} have", "how much is {v}", "what is {v} now",
                      "what does {v} hold", "which value has {v}", "what is the last value of {v}", "what is {v} in the end", "what's {v}",
                      "what is {v} after that", "what does {v} contain"])
    tell = rng.choice(["find {v}", "tell me {v}", "give me {v}", "compute {v}", "tell me the value of {v}", "give me the value of {v}", "print {v}",
                       "work out {v}", "I want to know {v}", "report {v}", "say what {v} is", "tell me what {v} is", "show me {v} at the end"])
    question = rng.choice([join(ask) + "?", join(tell) + rng.choice([".", "", "!"]), join(rng.choice(["please", "then", "now", "and"]), tell) + "."])
    colon = rng.choice([":\n", ".\n", "\n", ":\n"])
    return rng.choice([
        lambda: intro + colon + "{p}\n" + question,
        lambda: intro + ". " + question + "\n{p}",
        lambda: "{p}\n" + question,
        lambda: "{p}\n\n" + question,
        lambda: question.rstrip("?.!") + rng.choice([":\n", "?\n", " after\n", " here:\n", ".\n"]) + "{p}",
        lambda: intro + " and " + tell + rng.choice([":\n", ".\n"]) + "{p}",
    ])()


def compose_hidden(rng):
    """A template with {t} for the text and {s} for what is looked for."""
    intro = rng.choice(["here is a text", "read this", "read the text", "this is a text", "look at the text", "text", "a story", "here is a story", "document",
                        "the text", "I found this", "a long text", "here is something to read", "study this"])
    ask = rng.choice(["what is the {s}", "what was the {s}", "which is the {s}", "what does it say about the {s}", "do you see the {s}", "where is the {s}",
                      "can you find the {s}", "what's the {s}"])
    tell = rng.choice(["find the {s}", "tell me the {s}", "give me the {s}", "look for the {s}", "search for the {s}", "I want the {s}", "I need the {s}",
                       "show me the {s}", "report the {s}", "extract the {s}", "name the {s}"])
    question = rng.choice([join(ask) + "?", join(tell) + rng.choice([".", "", "!"]), join(rng.choice(["please", "now", "and"]), tell) + "."])
    return rng.choice([
        lambda: join(intro) + rng.choice([": ", ":\n", ".\n", ". "]) + "{t}" + rng.choice(["\n", "\n\n", " "]) + question,
        lambda: "{t}" + rng.choice(["\n", "\n\n", " "]) + question,
        lambda: question + rng.choice(["\n", "\n\n", " "]) + "{t}",
        lambda: join(tell, rng.choice(["in this text", "in the text", "in this", "in the story", "from the text", "hidden in this text"])) + rng.choice([": ", ":\n", ".\n"]) + "{t}",
        lambda: join(intro, "and", tell) + rng.choice([": ", ":\n", ".\n"]) + "{t}",
    ])()


def compose_ask(rng):
    """A template with {f} for what is to be recalled."""
    know = rng.choice(["do you know", "do you remember", "can you say", "can you recall", "could you tell me", "do you still have",
                       "can you repeat", "would you tell me", "did you keep", "have you kept", "will you tell me", "can you give me"])
    tell = rng.choice(["tell me", "give me", "repeat", "say", "name", "show me", "recall", "remember", "remind me what", "bring back", "print",
                       "write", "state", "remind me:", "I need", "I want", "I forgot", "look up", "report"])
    what = rng.choice(["what is", "what was", "which is", "what's", "and what is", "so what is", "what exactly is", "what again is", "and what was"])
    told = rng.choice(["I told you", "I gave you", "I said", "I mentioned", "I gave before", "from before", "from earlier", "that I told you"])
    tail = rng.choice(["", "", "again", "now", "once more", "please", "then", "right now", "exactly"])
    return rng.choice([
        lambda: join(know, "my {f}", tail) + "?",
        lambda: join(tell.replace(" what", ""), "my {f}", tail) + rng.choice([".", "", "!"]),
        lambda: join(what, "my {f}", tail) + rng.choice(["?", "?", ""]),
        lambda: join(what, "the {f}", told) + "?",
        lambda: join(tell.replace(" what", ""), "the {f}", told) + ".",
        lambda: join("remind me", rng.choice(["what my {f} is", "what my {f} was", "about my {f}", "which {f} I gave you"])) + ".",
        lambda: join("do you", rng.choice(["know", "remember"]), rng.choice(["what my {f} is", "which {f} I gave you", "the {f} I told you"])) + "?",
        lambda: join(rng.choice(["I can't remember", "I don't know", "I do not recall", "I have forgotten", "I lost"]), "my {f}") + rng.choice([".", ". Help me.", ". Do you know it?"]),
        lambda: join(rng.choice(["which", "what"]), "{f}", rng.choice(["did I mention", "did I say", "have I given you", "have I told you", "was mine", "is mine", "do I have"])) + "?",
    ])()
