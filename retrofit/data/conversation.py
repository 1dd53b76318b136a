"""Conversations of many turns: mixed tasks, facts that are told and asked for later, and their token form."""
import os

import numpy as np

import data.words as W
from data.tasks_arithmetic import make_arithmetic, make_beyond, make_difference, make_product, make_quotient
from data.tasks_hidden import make_hidden
from data.tasks_math import make_equation, make_short_sum, make_sort, make_sum
from data.tasks_search import SEARCHES
from data.tasks_talk import make_about, make_off_topic
from data.tasks_text import make_recall, make_tell, told_sentence, FACTS, FACT_WEIGHTS
from data.tasks_variables import make_variables
from data.turn import KEPT_OUT, shape_of_line

MEMORY_TURNS = 8          # facts older than this are not asked for
TASKS = ["equation", "sum", "short", "difference", "product", "quotient", "sort", "variables", "hidden", "recall", "about", "beyond", "other"]
WEIGHTS = {"equation": 0.14, "sum": 0.09, "arithmetic": 0.12, "sort": 0.13, "variables": 0.17, "hidden": 0.17, "tell": 0.10,
           "recall": 0.16, "about": 0.13, "beyond": 0.08, "other": 0.15}
FIRST_WEIGHTS = {"about": 0.25, "other": 0.22, "arithmetic": 0.18, "short": 0.08, "beyond": 0.08, "tell": 0.07, "sort": 0.06, "sum": 0.03, "equation": 0.03}    # of every other first turn
LATE_WEIGHTS = dict(WEIGHTS, hidden=0.20, equation=0.12)
MAKERS = {"equation": make_equation, "sum": make_sum, "short": make_short_sum, "sort": make_sort, "variables": make_variables,
          "difference": make_difference, "product": make_product, "quotient": make_quotient, "arithmetic": make_arithmetic, "beyond": make_beyond,
          "hidden": make_hidden, "about": make_about, "other": make_off_topic, **SEARCHES}
ANSWER, SEARCH = 1, 2     # bits of a row's weights: a token of an answer; a token of a search turn
TOKENIZER_PATH = os.path.join(os.path.dirname(__file__), "..", "..", "assets", "demo", "tokenizer.json")


class Encoder:
    """Text to ids, in the exact form the chat template renders."""

    def __init__(self, path=TOKENIZER_PATH):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(path)
        ids = self.tokenizer.token_to_id
        self.end_of_text, self.start, self.end = ids("<|endoftext|>"), ids("<|im_start|>"), ids("<|im_end|>")
        self.think, self.end_think = ids("<think>"), ids("</think>")
        self.newline = self.encode("\n")
        self.assistant = [self.start] + self.encode("assistant\n")

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def system(self, text):
        return [self.start] + self.encode("system\n" + text) + [self.end] + self.newline

    def turn(self, turn):
        """(ids, number of prompt ids): the response runs from there to <|im_end|>, then one newline."""
        batch = ["user\n" + turn.user, "\n" + turn.think + "\n", "\n\n" + turn.answer]
        user, think, answer = (e.ids for e in self.tokenizer.encode_batch_fast(batch, add_special_tokens=False))
        prompt = [self.start] + user + [self.end] + self.newline + self.assistant
        if turn.think:
            response = [self.think] + think + [self.end_think] + answer + [self.end]
        else:
            prompt = prompt + [self.think] + think + [self.end_think] + answer[:2]
            response = answer[2:] + [self.end]
        return prompt + response + self.newline, len(prompt)


class Memory:
    """What the user has told, with the turn it was told in."""

    def __init__(self):
        self.told, self.turn = {}, 0

    def recent(self):
        return {k: v for k, (v, t) in self.told.items() if self.turn - t <= MEMORY_TURNS}

    def note(self, turn):
        for kind, value in turn.facts.items():
            self.told[kind] = (value, self.turn)
        self.turn += 1


def recall_turn(rng, memory, thinking):
    """A recall of a recent fact, or (rarely) of one never told."""
    recent = memory.recent()
    missing = [k for k in FACTS if k not in memory.told]
    if (not recent or rng.random() < 0.08) and missing:
        return make_recall(rng, {}, thinking=thinking, kind=rng.choice(missing))
    if not recent:
        return make_tell(rng, thinking)
    return make_recall(rng, recent, thinking=thinking, kind=rng.choice(list(recent)))


def next_turn(rng, memory, weights, hidden_tokens):
    """The next turn of a conversation; never a first line that is kept out of training."""
    while True:
        turn = any_turn(rng, memory, weights, hidden_tokens)
        if len(turn.user) > 200 or shape_of_line(turn.user) not in KEPT_OUT:
            memory.note(turn)
            return turn


def any_turn(rng, memory, weights, hidden_tokens):
    """A turn of one of the tasks."""
    task = rng.choices(list(weights), list(weights.values()))[0]
    thinking = rng.random() >= 0.06
    if task == "recall":
        turn = recall_turn(rng, memory, thinking)
    elif task == "tell":
        turn = make_tell(rng, thinking)
    elif task == "hidden":
        low, high = hidden_tokens
        turn = make_hidden(rng, thinking=thinking, tokens=int(low * (high / low) ** rng.random()))
    else:
        turn = MAKERS[task](rng, thinking=thinking)
        if task in ("equation", "sum", "sort") and rng.random() < 0.04:
            kind = rng.choices(list(FACTS), FACT_WEIGHTS)[0]
            value = FACTS[kind][2](rng)
            turn.user = told_sentence(rng, kind, value).rstrip(".") + ". " + turn.user
            turn.facts = {kind: value}
    return turn


def search_turn(rng, memory, paths=0.0):
    """A turn of one of the search tasks; a share `paths` of them are paths beforehand."""
    task = "path" if paths and rng.random() < paths else rng.choice(list(SEARCHES))
    turn = SEARCHES[task](rng, thinking=rng.random() >= 0.03)
    memory.note(turn)
    return turn


def make_row(rng, encoder, length, late=False, search=0.0, paths=0.0):
    """One conversation cut to length + 1 tokens: (ids uint16 [length+1], bits ANSWER and SEARCH uint8 [length+1]).

    `search` is the share of search turns, `paths` that of paths among them (`search_turn`).
    """
    ids, mask = [], []
    memory = Memory()
    weights = LATE_WEIGHTS if late else WEIGHTS
    hidden = (40, int(length * 0.72))
    if rng.random() < 0.12:
        ids += encoder.system(rng.choice(W.SYSTEM_PROMPTS))
        mask += [0] * len(ids)
    first = rng.random() < 0.5
    while len(ids) <= length:
        kind = SEARCH if rng.random() < search else 0
        turn = search_turn(rng, memory, paths) if kind else next_turn(rng, memory, FIRST_WEIGHTS if first else weights, hidden)
        turn_ids, prompt = encoder.turn(turn)
        first = False
        ids += turn_ids
        mask += [kind] * prompt + [kind | ANSWER] * (len(turn_ids) - prompt - 1) + [kind]
    return np.array(ids[:length + 1], np.uint16), np.array(mask[:length + 1], np.uint8)


# ---------------------------------------------------------------- evaluation problems

def final_turn(rng, task, held_out, hidden_tokens):
    """The problem that is scored (recall is made by the caller)."""
    if task == "hidden":
        return make_hidden(rng, held_out, core=True, tokens=hidden_tokens)
    return MAKERS[task](rng, held_out, core=True)


def make_problem(rng, encoder, task, held_out=False, low=1500, high=4000, hidden_tokens=None):
    """Earlier turns and a last turn, together between `low` and `high` tokens: a list of turns."""
    while True:
        target = rng.randint(low, high)
        memory, turns, total = Memory(), [], 0
        if task == "recall":
            first = make_tell(rng)
            memory.note(first)
            turns, between = [first], rng.randint(0, 5)
            kind = rng.choice(list(first.facts))
            last = make_recall(rng, first.facts, held_out, kind=kind)
        else:
            top = hidden_tokens or target
            last = final_turn(rng, task, held_out, int(rng.uniform(0.5, 1.0) * top))
            between, kind = 99, None
        last_size = len(encoder.turn(last)[0])
        total = last_size + sum(len(encoder.turn(t)[0]) for t in turns)
        for _ in range(60):
            missing = target - total
            if missing < 40 or (kind and len(turns) - 1 >= between):
                break
            turn = next_turn(rng, memory, WEIGHTS, (40, 800))
            size = len(encoder.turn(turn)[0])
            if size <= missing and not (kind and kind in turn.facts):
                turns.append(turn)
                total += size
            else:
                memory.turn -= 1
                for told in turn.facts:
                    memory.told.pop(told, None)
        if low <= total <= high:
            return turns + [last]


def problem_ids(encoder, turns):
    """(ids of the whole conversation up to the last <|im_end|>, where the scored response begins)."""
    ids = []
    for turn in turns[:-1]:
        ids += encoder.turn(turn)[0]
    last, prompt = encoder.turn(turns[-1])
    return np.array(ids + last[:-1], np.uint16), len(ids) + prompt
