"""Simple prose with a number of something, and recalling what was told in earlier turns."""
import data.words as W
from data.phrasing import compose_ask, dress
from data.recall_phrasing import ask_for
from data.turn import Turn, phrase, shape_of_line

# ---------------------------------------------------------------- filler text

def sentence(rng):
    """One plain English sentence; some carry a harmless number."""
    c = rng.choice
    kind = rng.random()
    if kind < 0.22:
        text = f"the {c(W.ADJECTIVES)} {c(W.NOUNS)} {c(W.VERBS_PAST)} the {c(W.NOUNS)} {c(W.TIMES)}"
    elif kind < 0.40:
        text = f"{c(W.NAMES)} {c(W.VERBS_PAST)} a {c(W.ADJECTIVES)} {c(W.NOUNS)} {c(W.PREPOSITIONS)} the {c(W.NOUNS)}"
    elif kind < 0.55:
        text = f"the {c(W.NOUNS)} and the {c(W.NOUNS)} {c(W.VERBS_MOVE)} {c(W.PREPOSITIONS)} the {c(W.ADJECTIVES)} {c(W.NOUNS)}"
    elif kind < 0.66:
        text = f"{c(W.TIMES)} {c(W.NAMES)} {c(W.VERBS_MOVE)} to {c(W.CITIES)} with a {c(W.NOUNS)}"
    elif kind < 0.74:
        text = f"there were {rng.randint(2, 99)} {c(W.ADJECTIVES)} {c(W.NOUNS)}s {c(W.PREPOSITIONS)} the {c(W.NOUNS)}"
    elif kind < 0.80:
        text = f"{c(W.NAMES)} paid {rng.randint(1, 999)} for the {c(W.ADJECTIVES)} {c(W.NOUNS)} in {rng.randint(1800, 2030)}"
    elif kind < 0.90:
        text = f"it was a {c(W.ADJECTIVES)} and {c(W.ADJECTIVES)} {c(W.NOUNS)}, and {c(W.NAMES)} {c(W.VERBS_PAST)} it"
    else:
        text = f"no {c(W.NOUNS)} is as {c(W.ADJECTIVES)} as the {c(W.NOUNS)} that {c(W.NAMES)} {c(W.VERBS_PAST)}"
    if rng.random() < 0.15:
        text = f"{c(W.LINKS)}, {text}"
    return text[0].upper() + text[1:] + c([".", ".", ".", ".", "!"])


def noise(rng):
    """A line of made-up words, so that texts outside the lists are seen too."""
    count = rng.randint(4, 14)
    line = " ".join(W.made_up_word(rng) if rng.random() < 0.6 else "".join(
        rng.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ,.'-") for _ in range(rng.randint(1, 9))) for _ in range(count))
    return line[0].upper() + line[1:] + "."


def filler(rng, count):
    """A list of `count` sentences."""
    noisy = rng.choice([0.0, 0.0, 0.1, 0.5])
    return [noise(rng) if rng.random() < noisy else sentence(rng) for _ in range(count)]


# ---------------------------------------------------------------- hidden number

NEEDLES = ["The {k} {o} is {n}.", "The {k} {o} is {n}.", "Remember: the {k} {o} is {n}.", "The {k} {o} was set to {n}.",
           "By the way, the {k} {o} is {n}.", "Note that the {k} {o} is {n}."]
KINDS = ["code for", "number of", "number for", "password for", "pin for", "key number of", "secret number of"]
PLAIN_NEEDLES = ["The {k} is {n}.", "The {k} is {n}.", "Remember that the {k} is {n}.", "The {k} you need is {n}.",
                 "By the way, the {k} is {n}."]
PLAIN_KINDS = ["secret number", "hidden number", "magic number", "secret code", "special number", "access code",
               "password", "winning number", "pass code", "key number"]

HIDDEN_PHRASINGS = [
    "{t}\nWhat is the {s}?", "What is the {s} in this text?\n{t}", "{t}\n\nFind the {s}.", "Find the {s}.\n{t}",
    "Read this text and tell me the {s}.\n{t}",
    "{t}\nWhat was the {s}?", "Text: {t}\nQuestion: what is the {s}?", "Here is a text. {t}\nTell me the {s}.",
    "Look for the {s} in this text:\n{t}", "Tell me the {s}.\n{t}",
    "{t}\n\nPlease find the {s}.", "Somewhere in this text is the {s}. {t}\nWhat is it?",
    "{t}\nQuestion: {s}?", "I am looking for the {s}. {t}", "In the following text, find the {s}: {t}",
    "{t}\nCan you tell me the {s}?", "Please read:\n{t}\n\nWhat is the {s}?", "{t}\n{s}?",
    "A text follows. What is the {s}?\n{t}", "{t}\nThe question is: what is the {s}?",
]


def secret_subject(rng):
    """What the hidden number belongs to, for example 'code for the red door'."""
    if rng.random() < 0.35:
        return rng.choice(PLAIN_KINDS), PLAIN_NEEDLES, None
    owner = rng.choice(W.SECRET_OWNERS)
    if rng.random() < 0.35:
        owner = W.any_name(rng)
    elif rng.random() < 0.25:
        owner = f"the {rng.choice(W.ADJECTIVES)} {rng.choice(W.NOUNS)}"
    return rng.choice(KINDS), NEEDLES, owner


# ---------------------------------------------------------------- telling and recalling

def number_value(rng):
    return str(rng.randint(0, 10 ** rng.randint(2, 6) - 1))


def pet_name(rng):
    return W.any_name(rng)


FACTS = {   # kind: (how it is told, the words for it in the answer, value maker)
    "my name": (["My name is {x}.", "I am {x}.", "I'm {x}.", "Call me {x}.", "Hi, my name is {x}.", "Hello, I am {x}.",
                 "You can call me {x}.", "my name's {x}", "Hey, I'm {x}!", "im {x}", "i am {x}", "The name is {x}.", "This is {x} speaking.", "{x} here.",
                 "People call me {x}.", "My friends call me {x}.", "I'm called {x}.", "hi im {x}", "Good morning, my name is {x}.", "it's me, {x}",
                 "Hello! I'm {x}, nice to meet you."], "Your name is {x}", W.any_name),
    "my number": (["My number is {x}.", "Remember the number {x}.", "Please remember {x}.", "Keep the number {x} in mind.",
                   "Remember this number: {x}", "The number to remember is {x}."], "The number is {x}", number_value),
    "my code": (["My code is {x}.", "Remember my code: {x}", "The code is {x}.", "Please keep my code {x} in mind.",
                 "My secret code is {x}."], "Your code is {x}", number_value),
    "my city": (["I live in {x}.", "My city is {x}.", "I am from {x}.", "My home is in {x}."],
                "You live in {x}", lambda rng: rng.choice(W.CITIES) if rng.random() < 0.75 else W.made_up_word(rng).capitalize()),
    "my dog": (["My dog is called {x}.", "My dog's name is {x}.", "I have a dog named {x}.", "The name of my dog is {x}."],
               "Your dog is called {x}", pet_name),
    "my cat": (["My cat is called {x}.", "My cat's name is {x}.", "I have a cat named {x}.", "The name of my cat is {x}."],
               "Your cat is called {x}", pet_name),
    "my friend": (["My friend is called {x}.", "My friend's name is {x}.", "My best friend is {x}."],
                  "Your friend is called {x}", W.any_name),
    "my sister": (["My sister is called {x}.", "My sister's name is {x}.", "I have a sister named {x}."],
                  "Your sister is called {x}", W.any_name),
    "my brother": (["My brother is called {x}.", "My brother's name is {x}.", "I have a brother named {x}."],
                   "Your brother is called {x}", W.any_name),
    "my colour": (["My favourite colour is {x}.", "I like {x} best of all colours.", "My favorite color is {x}."],
                  "Your favourite colour is {x}", lambda rng: rng.choice(W.COLOURS)),
    "my age": (["I am {x} years old.", "My age is {x}."], "You are {x} years old", lambda rng: str(rng.randint(5, 99))),
    "my room": (["My room number is {x}.", "I am in room {x}.", "My room is {x}."], "Your room number is {x}",
                lambda rng: str(rng.randint(1, 999))),
    "my pin": (["My pin is {x}.", "Remember my pin: {x}", "The pin is {x}."], "Your pin is {x}",
               lambda rng: str(rng.randint(1000, 9999))),
}
FACT_WEIGHTS = [8, 6, 4, 2, 2, 2, 2, 1, 1, 2, 2, 2, 3]

NOUN_OF = {"my name": "name", "my number": "number", "my code": "code", "my dog": "dog's name", "my cat": "cat's name",
           "my friend": "friend's name", "my sister": "sister's name", "my brother": "brother's name",
           "my colour": "favourite colour", "my age": "age", "my room": "room number", "my pin": "pin", "my city": "city"}

ASK_PHRASINGS = [
    "What is my {f}?", "What is my {f}?", "Do you remember my {f}?", "Tell me my {f}.", "What was my {f}?",
    "Can you tell me my {f}?", "Do you still know my {f}?", "Please tell me my {f}.", "my {f}?", "What's my {f}?",
    "Which {f} did I tell you?", "I forgot my {f}. What is it?", "Say my {f}.", "Recall my {f}.", "Remind me of my {f}.",
    "What {f} did I give you?", "Do you know my {f}?", "what is my {f}", "Now, what is my {f}?", "Which is my {f}?",
]
ASK_SPECIAL = {
    "my name": ["Who am I?", "What am I called?", "How am I called?", "Do you know who I am?", "Say who I am."],
    "my number": ["Which number did I ask you to remember?", "What number did I tell you?", "What was the number?",
                  "Which number should you remember?", "What is the number I gave you?"],
    "my city": ["Where do I live?", "Where am I from?", "In which city do I live?", "Which city am I from?", "Where is my home?"],
    "my dog": ["What is my dog called?", "What's the name of my dog?", "How is my dog called?", "Name my dog.",
               "What did I say my dog is called?"],
    "my cat": ["What is my cat called?", "What's the name of my cat?", "How is my cat called?", "Name my cat.",
               "What did I say my cat is called?"],
    "my age": ["How old am I?", "How old did I say I am?", "Do you know how old I am?", "What age am I?", "Tell me how old I am."],
    "my code": ["What is the code I gave you?", "Which code did I tell you?", "What was the code?", "The code?", "Repeat my code."],
    "my colour": ["Which colour do I like best?", "What is my favorite color?", "Which colour is my favourite?",
                  "Tell me my favorite color.", "What colour do I like?"],
    "my friend": ["What is my friend called?", "Who is my friend?", "What's the name of my friend?", "Name my friend.",
                  "How is my friend called?"],
}

ASK_MORE = {   # further questions for single facts, all for training
    "my name": ["Can you say who I am?", "Tell me who I am.", "Who is talking to you?", "What do people call me?", "Do you know who is writing?",
                "Whom are you talking to?", "What did I say I am called?", "Tell me what I am called.", "How do you call me?", "who am i"],
    "my number": ["Repeat the number.", "Say the number.", "Tell me the number.", "What is the number?", "Which number was it?", "The number, please.",
                  "What number did I give you?", "What is the number I told you?", "Give me the number again.", "the number?"],
    "my city": ["Where is home for me?", "Which city is my home?", "Where do I come from?", "Tell me where I live.", "What city do I live in?",
                "Do you know where I live?", "Where did I say I live?", "Where am I at home?", "Say where I live.", "What is my home city?"],
    "my dog": ["Say the name of my dog.", "What do I call my dog?", "Do you know what my dog is called?", "Tell me what my dog is called.",
               "How did I call my dog?", "My dog has which name?", "What is the dog called?", "Which name has my dog?", "Do you remember my dog?"],
    "my cat": ["Say the name of my cat.", "What do I call my cat?", "Do you know what my cat is called?", "Tell me what my cat is called.",
               "How did I call my cat?", "My cat has which name?", "What is the cat called?", "Which name has my cat?", "Do you remember my cat?"],
    "my age": ["Say how old I am.", "Do you remember how old I am?", "Can you tell me how old I am?", "How many years old am I?", "What did I say about my age?",
               "How many years do I have?", "Do I look my age? How old am I?"],
    "my code": ["Say the code again.", "Give me my code.", "Repeat the code.", "What is the code?", "Which code was it?", "What is the code I told you?", "Tell me the code.",
                "Repeat it: what is my code?", "The code, please."],
    "my colour": ["What colour do I love?", "Which colour do I prefer?", "Tell me which colour I like.", "What colour do I like best?", "What is the colour I like?",
                  "My favourite colour?", "Which colour do I like?", "Do you know which colour I like?"],
    "my friend": ["Say the name of my friend.", "What do I call my friend?", "Tell me what my friend is called.", "Do you know my friend?", "My friend has which name?",
                  "What's my friend called?", "Who is my best friend?", "Which name has my friend?"],
    "my sister": ["What is my sister called?", "Who is my sister?", "Name my sister.", "How is my sister called?", "What's the name of my sister?"],
    "my brother": ["What is my brother called?", "Who is my brother?", "Name my brother.", "How is my brother called?", "What's the name of my brother?"],
    "my room": ["In which room am I?", "Which room am I in?", "What room am I in?", "Where is my room?", "Which room is mine?"],
    "my pin": ["Repeat the pin.", "What is the pin?", "Which pin did I tell you?", "The pin, please.", "Tell me the pin."],
}


HELD_OUT_ASKS = {shape_of_line(p.format(f=noun)) for kind, noun in NOUN_OF.items() for p in (ASK_PHRASINGS + ASK_SPECIAL.get(kind, []))
                 if p in ASK_PHRASINGS[4::5] + ASK_SPECIAL.get(kind, [])[4::5]}


def composed_ask(rng, kind):
    """A question put together from parts, never one of the held-out phrasings, nor "remind me of my" in any frame."""
    while True:
        text = ask_for(rng, kind)
        if shape_of_line(text) not in HELD_OUT_ASKS and "emind me of my" not in text:
            return dress(rng, text)


def told_sentence(rng, kind, value):
    """One way of telling the fact."""
    way = rng.choice(FACTS[kind][0])
    if " is " in way and rng.random() < 0.15:
        way = way[0].lower() + way[1:].rstrip(".")
    elif rng.random() < 0.08:
        way = way.rstrip(".!") + rng.choice([", please remember it.", " - remember that.", ", do not forget.", ", keep that in mind", " :)", ", by the way.", "!", ", ok?", ". Remember it."])
    elif rng.random() < 0.07 and kind in ("my number", "my code", "my pin", "my room", "my age", "my city"):
        way = rng.choice(["Remember that {y}", "Please note: {y}", "Keep in mind that {y}", "{y}, remember {x}", "{y}; remember {x}.", "{y}, keep {x} in mind", "Note down that {y}", "Do not forget that {y}", "For later: {y}", "{y} (remember {x})", "Write down that {y}"])
        way = way.replace("{y}", FACTS[kind][1].replace("Your", "my").replace("You live", "I live").replace("You are", "I am").replace("The", "the"))
    return way.format(x=value)


def confirmation(kind, value):
    """What the model says when it is told something."""
    if kind == "my name":
        return f"Nice to meet you, {value}!"
    text = FACTS[kind][1].format(x=value)
    return f"I will remember it. {text}"


def make_tell(rng, thinking=True, kind=None):
    """The user tells one fact, sometimes two."""
    kind = kind or rng.choices(list(FACTS), FACT_WEIGHTS)[0]
    value = FACTS[kind][2](rng)
    if rng.random() < 0.05:
        value = value.lower()
    user, facts = told_sentence(rng, kind, value), {kind: value}
    answer, think = confirmation(kind, value), f"The user tells me {kind.replace('my', 'the')}: {value}"
    if rng.random() < 0.15:
        other = rng.choices(list(FACTS), FACT_WEIGHTS)[0]
        if other != kind and other != "my name":
            value2 = FACTS[other][2](rng)
            user += " " + told_sentence(rng, other, value2)
            facts[other] = value2
            answer += ". " if not answer.endswith("!") else " "
            answer += FACTS[other][1].format(x=value2)
            think += f"\nThe user tells me {other.replace('my', 'the')}: {value2}"
    return Turn("tell", user, think if thinking else "", answer, facts=facts)


def make_recall(rng, known, held_out=False, thinking=True, kind=None):
    """A question for a fact of `known` (kind -> value), or for one that was never told."""
    if kind is None:
        kind = rng.choice(list(known)) if known and rng.random() < 0.93 else rng.choice(list(FACTS))
    phrasings, compose = ASK_PHRASINGS, compose_ask
    if kind in ASK_SPECIAL and rng.random() < 0.4:
        phrasings, compose = ASK_SPECIAL[kind], lambda r: r.choice(ASK_MORE[kind])
    elif kind in ASK_MORE and not held_out and rng.random() < 0.2:
        compose = lambda r: r.choice(ASK_MORE[kind])
    noun = NOUN_OF[kind]
    if not held_out and rng.random() < 0.5:
        user = composed_ask(rng, kind)
    else:
        user = phrase(rng, phrasings, held_out, compose, f=noun)
    if kind not in known:
        think, answer = f"I look for the {noun}.\nThe user has not told me.", f"You have not told me your {noun}."
        return Turn("recall", user, think if thinking else "", answer, answer, held_out=held_out)
    value = known[kind]
    think = f"I look for the {noun}.\nThe user told me: {value}"
    answer = FACTS[kind][1].format(x=value)
    expected = value if answer.endswith(value) else answer
    return Turn("recall", user, think if thinking else "", answer, expected, held_out=held_out)
