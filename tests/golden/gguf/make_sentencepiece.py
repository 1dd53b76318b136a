#!/usr/bin/env python3
"""Makes sentencepiece.json: a small vocabulary with scores, and what sentencepiece makes of texts with it.

    python3 -m venv venv && venv/bin/pip install sentencepiece==0.2.3 protobuf==7.36.2
    venv/bin/python tests/golden/gguf/make_sentencepiece.py

The vocabulary is BPE with byte fallback, as Llama 2's: trained on the chat text of the tests, with its dummy prefix and
without. Types are those of GGUF.
"""

import io
import json
from pathlib import Path

import sentencepiece as sp
from sentencepiece import sentencepiece_model_pb2 as pb2

HERE = Path(__file__).resolve().parent
TEXTS = [
    "Hello world", " Hello  world ", "", " ", "   three   spaces", "a", "the theme of them", "line one\nline two\n\n\tend",
    "Größe, naïve café — 世界 🙂", "1234567890 12 3", "def f(x):\n    return x ** 2\n", "aaaaaaaaaaaa bbbb abababab",
    "<s>[INST] not a token </s>", "<0x41> and <unk>", "\u2581 an underline", "e\u0301\u200b\u00a0x", "don't can't won't",
    "And the of to in is it that was for on are as with his they at be this from",
]


def kind(s, i):
    if s.is_unknown(i):
        return 2
    if s.is_control(i):
        return 3
    return 6 if s.is_byte(i) else 1


def main():
    corpus = (HERE.parents[1] / "texts" / "chat.txt").read_text()
    model = io.BytesIO()
    sp.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus.splitlines()), model_writer=model, vocab_size=700, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2)
    proto = pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    texts = TEXTS + [line for line in corpus.splitlines() if line][::7]
    cases = []
    for prefix in (True, False):
        proto.normalizer_spec.add_dummy_prefix = prefix
        s = sp.SentencePieceProcessor(model_proto=proto.SerializeToString())
        cases.append([s.encode(text) for text in texts])
        assert all(s.decode(ids) == text for text, ids in zip(texts, cases[-1]) if not text.startswith("\u2581")), prefix
    n = s.vocab_size()
    out = {
        "tokens": [s.id_to_piece(i) for i in range(n)], "scores": [s.get_score(i) for i in range(n)],
        "types": [kind(s, i) for i in range(n)], "texts": texts, "with_prefix": cases[0], "without_prefix": cases[1],
    }
    (HERE / "sentencepiece.json").write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(n, "tokens,", len(texts), "texts")


main()
