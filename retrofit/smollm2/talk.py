"""Rows of tokens for training and evaluation, put together from generated text; some refer back over a distance."""
import json
import lzma
import random

from generate import turn
from model import SYSTEM

NAMES = {"train": """Marta Jonas Priya Oscar Lena Tomas Aisha Victor Nora Felix Diego Hanna Peter Olga Simon Carla Ahmed Julia Kevin Rosa
Emma Liam Noah Grace Henry Lucy Omar Nina Paul Vera Hugo Ella Marco Irene Ivan Leo Tara Adam Ruth Karl""".split(),
         "test": """Clara Samuel Ingrid Rafael Yuki Bruno Alice Martin Sofia Daniel Helen Jack Maria Robert Laura Thomas Anna David""".split()}
TOWNS = {"train": "Lisbon Oslo Denver Kyoto Cairo Prague Boston Lima Paris Rome Sydney Toronto Moscow Dallas Berlin Delhi".split(),
         "test": "Dublin Vienna Chicago Madrid Athens Seattle London Tokyo Geneva Houston".split()}
PEOPLE = {"train": "brother,aunt,teacher,neighbour,boss,cousin,daughter,doctor,horse,cat,friend,uncle".split(","),
          "test": "sister,son,dog,grandmother,wife,dentist".split(",")}
PLACES = {"train": "locker,garage,blue door,bicycle lock,office,cellar,library card,server,mailbox,north gate".split(","),
          "test": "safe,red door,garden gate,alarm,boat house".split(",")}
THINGS = {"train": "colour:green red white brown pink;fruit:apples grapes bananas cherries;sport:tennis golf rugby boxing;drink:tea milk cocoa".split(";"),
          "test": "animal:horses cats tigers rabbits;season:spring winter autumn summer;subject:history biology music geography".split(";")}
ITEMS = {"train": "apples candles rope coffee pencils salt tape honey paper nails sugar shoes rice glue eggs onions".split(),
         "test": "lemons batteries soap butter ribbons pepper matches flour cheese bread".split()}
JOBS = {"train": "nurse carpenter lawyer farmer pilot teacher cook painter".split(), "test": "baker doctor driver musician engineer".split()}
DAYS = {"train": "Monday Tuesday Friday Sunday".split(), "test": "Wednesday Thursday Saturday".split()}
OBJECTS = {"train": "umbrella passport hammer camera blanket map".split(), "test": "keys book guitar lamp".split()}
ROOMS = {"train": "attic cellar hall garage office".split(), "test": "kitchen bathroom bedroom garden".split()}
SYSTEMS = {"train": ["You are a helpful assistant.", "You are a patient teacher. Answer in full sentences.", "Answer briefly.",
                     "You are a travel guide for a small town.", "You write for a newspaper.", "Reply as a pirate would.",
                     "You are an expert in science, and you explain things with examples from everyday life.",
                     "Today is a Monday. The user's time zone is UTC. Be polite, and never guess."],
           "test": ["You are a careful assistant who remembers what the user says.", "You are a friendly chatbot.",
                    "Always answer with facts, and say so when you do not know."]}


def facts(rng, split, count):
    """`count` facts of different kinds: (told, question, start of the answer, fact). The answer begins as the fact was told,
    which is what a model of this size can use to find it again."""
    name, other = rng.sample(NAMES[split], 2)
    (person, second), (place, another) = rng.sample(PEOPLE[split], 2), rng.sample(PLACES[split], 2)
    thing, values = rng.choice(THINGS[split]).split(":")
    town, job, day, thing_lost, room = (rng.choice(x[split]) for x in (TOWNS, JOBS, DAYS, OBJECTS, ROOMS))
    verb = "are" if thing_lost.endswith("s") else "is"
    code, short = str(rng.randrange(1000, 9999)), str(rng.randrange(100, 999))
    items = ", ".join(rng.sample(ITEMS[split], 3))
    value = rng.choice(values.split())
    made = [
        (f"My {person} is called {name}.", f"What is my {person} called?", f"Your {person} is called", name),
        (f"The name of my {second} is {other}.", f"What is the name of my {second}?", f"The name of your {second} is", other),
        (f"The code of the {place} is {code}.", f"What is the code of the {place}?", f"The code of the {place} is", code),
        (f"The number of the {another} is {short}.", f"What is the number of the {another}?", f"The number of the {another} is", short),
        (f"I live in {town}.", "Where do I live?", "You live in", town),
        (f"My favourite {thing} is {value}.", f"What is my favourite {thing}?", f"Your favourite {thing} is", value),
        (f"I work as a {job}.", "What do I work as?", "You work as a", job),
        (f"The party is on {day}.", "When is the party?", "The party is on", day),
        (f"The {thing_lost} {verb} in the {room}.", f"Where {verb} the {thing_lost}?", f"The {thing_lost} {verb} in the", room),
        (f"My shopping list is: {items}.", "What is on my shopping list?", "Your shopping list is:", items),
    ]
    if split == "test":     # the kinds that the dense model can find again, so that there is something to lose
        made = [made[i] for i in (0, 1, 2, 3, 7, 9)]
    return [(t, q, b, " " + f) for t, q, b, f in rng.sample(made, count)]


def load(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def load_texts(path, split):
    """{kind: [text]} of a split of fetch_text.py's file."""
    found = {}
    with lzma.open(path, "rt", encoding="utf-8") as f:
        for line in f:
            text = json.loads(line)
            if text["split"] == split:
                found.setdefault(text["kind"], []).append(text["text"])
    return found


class Talk:
    """Makes rows of a split out of generated text (answers of load()), of this repository's `files`, and of `outside`
    texts (of load_texts())."""

    def __init__(self, base, answers, split, files=(), outside=None):
        encode, encode_all = base.encode, base.encode_all
        self.encode, self.split, self.files = encode, split, encode_all(files)
        self.outside = {kind: encode_all(texts) for kind, texts in (outside or {}).items()}
        self.turns = encode_all(turn("user", a["user"]) + turn("assistant", a["answer"]) for a in answers if a["user"])
        self.texts = encode_all(a["answer"] + "\n\n" for a in answers)

    def pick(self, rng, texts):
        """One of the texts: in training as often as it is long, in tests each as often as any other."""
        return rng.choices(texts, [len(t) for t in texts])[0] if self.split == "train" else rng.choice(texts)

    def fill(self, rng, length, pieces):
        """Exactly `length` tokens of pieces in random order."""
        ids = []
        while len(ids) < length:
            ids += rng.choice(pieces)
        return ids[:length]

    def piece(self, rng, length, texts):
        """Exactly `length` tokens from somewhere in one of the texts; where it ends, more texts follow."""
        text = self.pick(rng, texts)
        at = rng.choice([0, rng.randrange(max(1, len(text) - length // 2))])
        return (text[at:] + self.fill(rng, length, texts))[:length]

    def pasted(self, rng, length):
        """A chat whose turns are pieces of outside texts."""
        kinds, ids = sorted(self.outside), self.start(rng)
        begin, end = ({role: self.encode(part) for role, part in (("user", a), ("assistant", b))}
                      for a, b in (("<|im_start|>user\n", "<|im_start|>assistant\n"), ("<|im_end|>\n", "<|im_end|>\n")))
        while len(ids) < length:
            for role, most in (("user", 200), ("assistant", 400)):
                text = self.piece(rng, rng.randint(20, most), self.outside[rng.choice(kinds)])
                ids = ids + begin[role] + text + end[role]
        return ids[:length]

    def start(self, rng):
        """The template's own system prompt, another one, or none."""
        kind = rng.random()
        if kind > 0.75:
            return []
        return self.encode(turn("system", SYSTEM if kind < 0.5 else rng.choice(SYSTEMS[self.split])))

    def row(self, length, seed, kind):
        """(ids, spans): exactly `length` tokens; spans are (begin, end) of facts inside answers, empty but for `recall` and `far`.

        chat: the template's system prompt, then turns.  other: another system prompt or none.
        bare: text that begins anywhere, without a template (whatever stands first is the attention sink).
        file: a piece of this repository's texts.  A kind of `outside`: a piece of those texts, in training one row in
        eight behind a turn of a chat.  pasted: a chat in which both sides quote such pieces.  recall: facts told and
        asked for later; in training at any place and distance (far: early and late in the row), in tests told at once
        and asked at the end.
        """
        rng = random.Random(f"{self.split} {seed} {kind}")
        if kind == "file" or kind in self.outside:
            wrapped = kind != "file" and self.split == "train" and rng.random() < 0.125
            head = self.start(rng) + rng.choice(self.turns) if wrapped else []
            return (head + self.piece(rng, length, self.outside.get(kind, self.files)))[:length], []
        if kind == "pasted":
            return self.pasted(rng, length), []
        if kind == "bare":
            first = rng.choice([self.texts, self.turns])
            ids = self.fill(rng, length + 1500, first)
            at = rng.choice([0, rng.randrange(1500)])
            odd = [rng.randrange(100, 49000) for _ in range(rng.randint(1, 3))] if rng.random() < 0.2 else []
            return (odd + ids[at:])[:length], []
        if kind not in ("recall", "far"):
            head = self.encode(turn("system", SYSTEM)) if kind == "chat" else self.start(rng)
            return (head + self.fill(rng, length, self.turns))[:length], []
        return self.recall(rng, length, kind == "far")

    def tell(self, rng, told):
        text = rng.choice(["Please remember this. ", "Here are some facts about me. ", "Keep this in mind: ", ""] if self.split == "train"
                          else ["Please remember this about me. ", "Some things to know: "]) + " ".join(t for t, *_ in told)
        if self.split == "test" or rng.random() < 0.6:     # said again as it will be asked for: a small model needs that
            reply = "I will remember this. " + " ".join(f"{b}{f}." for _, _, b, f in told)
        else:
            reply = "Thank you, I will remember that."
        return self.encode(turn("user", text) + turn("assistant", reply))

    def ask(self, asked):
        """(ids, spans) of questions with their answers."""
        ids, spans = [], []
        for _, question, begin, fact in asked:
            ids += self.encode(turn("user", question) + f"<|im_start|>assistant\n{begin}")
            part = self.encode(fact)
            spans.append((len(ids), len(ids) + len(part)))
            ids += part + self.encode(".<|im_end|>\n")
        return ids, spans

    def recall(self, rng, length, far=False):
        end = self.encode("<|im_end|>\n")    # closes the turn that the filling was cut in
        known = facts(rng, self.split, 6 if self.split == "test" else 10)
        cut = len(known) if self.split == "test" or far or rng.random() < 0.4 else 5
        first, second = known[:cut], known[cut:]
        early = rng.sample(first, 2) if second else []
        late = [x for x in known if x not in early]
        rng.shuffle(late)
        begin = self.start(rng) if self.split == "train" else self.encode(turn("system", SYSTEM))
        if far and rng.random() < 0.5:     # so that the distance is two thirds of the row or more, not always the same
            begin += self.fill(rng, rng.randrange(length // 3), self.turns) + end
        parts = [begin + self.tell(rng, first)]
        middle, middle_spans = self.ask(early)
        if second:
            middle = end + middle + self.tell(rng, second)
            middle_spans = [(a + len(end), b + len(end)) for a, b in middle_spans]
        tail, tail_spans = self.ask(late)
        tail = end + tail
        room = length - len(parts[0]) - len(middle) - len(tail)
        before = int(room * rng.uniform(0.3, 0.7)) if second else 0
        ids = parts[0] + self.fill(rng, before, self.turns)
        spans = [(a + len(ids), b + len(ids)) for a, b in middle_spans]
        ids += middle + self.fill(rng, room - before, self.turns)
        spans += [(a + len(ids) + len(end), b + len(ids) + len(end)) for a, b in tail_spans]
        return ids + tail, spans
