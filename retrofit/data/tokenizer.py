"""Train the byte-level BPE tokenizer on the generators' text and write assets/demo's tokenizer files.

    python -m data.tokenizer
"""
import json
import os
import random

from data.conversation import FACTS, Memory, TOKENIZER_PATH, WEIGHTS, next_turn
from data import offtopic
import data.words as W

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
PATTERN = r"\n|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]|\s"
SIZE = 1536

TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}"
    "{{- '<|im_start|>assistant\\n<think>\\n' }}"
    "{%- if message.reasoning_content %}{{- message.reasoning_content }}{%- endif %}"
    "{{- '\\n</think>\\n\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- else %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{%- endif %}"
)


def corpus(count, seed=7):
    """Text of `count` turns, and the word lists, so that every listed word is worth merging."""
    rng, memory = random.Random(seed), Memory()
    weights = dict(WEIGHTS, equation=0.12, sum=0.03, sort=0.03, variables=0.05, about=0.25, other=0.35, hidden=0.3)
    for _ in range(count):
        turn = next_turn(rng, memory, weights, (135, 540))
        yield f"user\n{turn.user}\nassistant\n{turn.think}\n{turn.answer}\nsystem\n"
    lists = [W.NAMES, W.CITIES, W.COLOURS, W.NOUNS, W.ADJECTIVES, W.VERBS_PAST, W.VERBS_MOVE, W.PREPOSITIONS,
             offtopic.TOPICS, offtopic.PLACES]
    for items in lists:
        for word in items:
            yield f"the {word} {word}" * 30


def train():
    """The tokenizer as the Rust crate reads it, with <think> tags as ordinary added tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=[AddedToken(t, special=True) for t in SPECIAL],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus(12000), trainer)
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        token["special"] = token["content"] not in ("<think>", "</think>")
    return data


def main():
    folder = os.path.dirname(TOKENIZER_PATH)
    os.makedirs(folder, exist_ok=True)
    data = train()
    with open(TOKENIZER_PATH, "w", encoding="utf-8") as out:
        json.dump(data, out, ensure_ascii=False, separators=(",", ":"))
    config = {
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "clean_up_tokenization_spaces": False,
        "model_max_length": 8192, "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(t["id"]): {k: t[k] for k in ("content", "lstrip", "normalized", "rstrip",
                                                                   "single_word", "special")}
                                 for t in data["added_tokens"]},
        "chat_template": TEMPLATE,
    }
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as out:
        json.dump(config, out, ensure_ascii=False, indent=2)
    print(len(data["model"]["vocab"]), "tokens")


if __name__ == "__main__":
    main()
