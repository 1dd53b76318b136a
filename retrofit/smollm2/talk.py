"""Conversations for training and evaluation, put together from generated answers; some refer back over a distance."""
import json
import random

from generate import turn
from model import SYSTEM

NAMES = {"train": ["Marta", "Jonas", "Priya", "Oscar", "Lena", "Tomas", "Aisha", "Victor", "Nora", "Felix", "Diego", "Hanna"],
         "test": ["Clara", "Samuel", "Ingrid", "Rafael", "Yuki", "Bruno", "Alice", "Martin", "Sofia", "Daniel"]}
TOWNS = {"train": ["Lisbon", "Oslo", "Denver", "Kyoto", "Cairo", "Prague", "Boston", "Lima"],
         "test": ["Dublin", "Vienna", "Chicago", "Madrid", "Athens", "Seattle"]}
PETS = {"train": ["parrot", "rabbit", "turtle", "pony", "kitten", "hamster"], "test": ["goldfish", "puppy", "canary", "lizard"]}
ITEMS = {"train": ["apples", "candles", "rope", "coffee", "pencils", "salt", "tape", "honey", "paper", "nails"],
         "test": ["lemons", "batteries", "soap", "butter", "ribbons", "pepper", "matches", "flour"]}


def facts(rng, split):
    """(what the user tells, [(question, start of the answer, fact, rest)]) about one person."""
    name, town, pet = (rng.choice(x[split]) for x in (NAMES, TOWNS, PETS))
    number, items = str(rng.randrange(1000, 9999)), ", ".join(rng.sample(ITEMS[split], 3))
    told = [f"My name is {name}.", f"I live in {town}.", f"I have a {pet}.", f"My locker code is {number}.",
            f"My shopping list is: {items}."]
    asked = [("What is my name?", "Your name is", f" {name}", "."), ("Which city do I live in?", "You live in", f" {town}", "."),
             ("Which pet do I have?", "You have a", f" {pet}", "."),
             ("What is my locker code?", "Your locker code is", f" {number}", "."),
             ("What is on my shopping list?", "Your shopping list is:", f" {items}", ".")]
    pick = rng.sample(range(5), 4)
    return "Please remember this about me. " + " ".join(told[i] for i in pick), [asked[i] for i in rng.sample(pick, 4)]


def load(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def conversation(encode, answers, length, split, seed, kind):
    """(ids, spans): exactly `length` tokens of a `chat`, of `bare` text that begins anywhere (no system prompt: whatever
    stands first is the attention sink), or of a chat with `recall`: facts at the start and questions at the end,
    spans being (begin, end) of the facts inside the answers. Else spans are empty."""
    rng = random.Random(f"{split} {seed} {kind}")
    fill = [t for a in rng.sample(answers, len(answers)) for t in encode(turn("user", a["user"]) + turn("assistant", a["answer"]))]
    start = encode(turn("system", SYSTEM))
    if kind != "recall":
        ids = start + fill if kind == "chat" else fill[rng.randrange(len(fill) // 2):]
        return (ids * (length // len(ids) + 1))[:length], []
    told, asked = facts(rng, split)
    head = start + encode(turn("user", told) + turn("assistant", "Thank you, I will remember that."))
    tail, spans = encode("<|im_end|>\n"), []
    for question, begin, fact, rest in asked:
        tail += encode(turn("user", question) + f"<|im_start|>assistant\n{begin}")
        spans.append((len(tail), len(tail) + len(encode(fact))))
        tail += encode(fact) + encode(f"{rest}<|im_end|>\n")
    room = length - len(head) - len(tail)
    ids = head + (fill * (room // len(fill) + 1))[:room] + tail
    return ids, [(a + len(head) + room, b + len(head) + room) for a, b in spans]
