"""One exchange of a conversation, and the small helpers every generator shares."""
import os
import re
from dataclasses import dataclass, field

from data.phrasing import dress


@dataclass
class Turn:
    """A user message with the reasoning and the answer the model is to give."""
    task: str
    user: str
    think: str
    answer: str
    expected: str = ""           # what the answer must end in (or contain, for recall)
    facts: dict = field(default_factory=dict)   # what the user told in this turn: kind -> value
    held_out: bool = False


def shape_of_line(text):
    """A line without case, marks and values: two lines of one shape differ in numbers only."""
    return re.sub(r"\d+", "#", re.sub(r"[^\w+*/^%=<>()×÷−-]+", " ", text.lower())).strip()


def kept_out_shapes():
    """The shapes of the first lines that are kept out of training."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "eval", "first_lines.txt")
    with open(path, encoding="utf-8") as f:
        lines = [line.rstrip("\n").split("\t") for line in f if line.startswith("*")]
    return {shape_of_line(line[1].replace("\\n", "\n")) for line in lines}


KEPT_OUT = kept_out_shapes()


def pick_phrasing(rng, phrasings, held_out, compose=None):
    """A template: in training from the list or put together by `compose`, never one of the held-out fifth.

    Every fifth phrasing of the list is kept out of training.
    """
    if held_out:
        return rng.choice(phrasings[4::5])
    while True:
        if compose and rng.random() < 0.6:
            template = compose(rng)
            if template not in phrasings[4::5]:
                return template
        else:
            index = rng.randrange(len(phrasings))
            if index % 5 != 4:
                return phrasings[index]


def phrase(rng, phrasings, held_out, compose=None, **values):
    """A request: a template filled in, in training now and then with words around it."""
    text = pick_phrasing(rng, phrasings, held_out, compose).format(**values)
    return text if held_out else dress(rng, text)


def backwards(number):
    """The digits of a number, lowest first."""
    return str(number)[::-1]
