"""One exchange of a conversation, and the small helpers every generator shares."""
from dataclasses import dataclass, field

from phrasing import dress


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
