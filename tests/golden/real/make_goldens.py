"""What tests/it/real.rs holds dmschat against: real tokenizers, templates and a real model, by transformers.

    tests/models/fetch
    python3 tests/golden/real/make_goldens.py      # torch 2.9.1, transformers 5.17.0; ten minutes on two cores

Deterministic. Writes beside itself:

    strings.json, conversations.json   the inputs, of strings.py
    qwen3.json, llama3_1.json, SmolLM2-135M-Instruct.json
        ids        of each string as content, where nothing becomes a control token
        whole      of the strings for which encoding a file gives something else: [index, ids]
        decoded    of the strings that `ids` do not give back letter by letter: [index, text]
        cut        decodings that begin and end in the middle of a character: [index, text of ids[1:-1]]
        chats      [rendered text, ids] of each conversation
    greedy.json    the model's greedy continuations of PROMPTS in f32: tokens, and at each step the gap
                   between the two most probable logits and the second one's token

Ids of content. transformers has `split_special_tokens=True` for that; it leaves added tokens alone that are
not marked special (Qwen3's <think> and <tool_call>), which dmschat does not. So content is encoded by
transformers' tokenizer with the added tokens taken out of it, and the script makes sure that this is the same
as `split_special_tokens=True` for every string without such a literal.

Ids of a conversation: control literals inside messages are broken by a private character before rendering;
the rendering is cut at the literals that remain, which the template wrote; what stands between them is
encoded as content, without the private characters. The script makes sure that the text is the same as
without all this, and that the ids are those of the whole text wherever no message holds a literal.
"""

import json
import re
import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import strings

HERE = Path(__file__).resolve().parent
MODELS = HERE.parents[2] / "target" / "models"
SMALL = "SmolLM2-135M-Instruct"
N_GREEDY = 128
BREAK = "\uf8ff"

PROMPTS = [
    "What is the capital of France?",
    "Tell me a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain how rainbows form, for a child of eight.",
    "List ten animals that live in the sea.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Write an e-mail to a colleague who is on holiday, asking where the key is.",
    "What is 17 + 26? Think step by step.",
    "Translate to French: The weather is nice today.",
    "Give me three reasons to learn to swim.",
    "Write a poem about autumn leaves.",
    "Who wrote Romeo and Juliet, and when?",
    "Summarize the water cycle in two sentences.",
    "What should I pack for a week in the mountains?",
    "Describe a cat to somebody who has never seen one.",
    "用中文介绍一下你自己。",
    "Wie spät ist es? 😀 Antworte auf Deutsch!",
    "def quicksort(a):\n    # complete this",
    "Continue: 1, 1, 2, 3, 5, 8,",
]


def as_content(backend):
    """transformers' tokenizer without its added tokens and its post-processor."""
    said = json.loads(backend.to_str())
    said["added_tokens"], said["post_processor"] = [], None
    return tokenizers.Tokenizer.from_str(json.dumps(said))


def record_texts(name, texts, chats):
    tok = AutoTokenizer.from_pretrained(MODELS / name)
    content = as_content(tok.backend_tokenizer)
    added = tok.backend_tokenizer.get_added_tokens_decoder()
    literals = sorted((t.content for t in added.values()), key=len, reverse=True)
    soft = [t.content for t in added.values() if not t.special]

    def encode(text):
        return content.encode(text, add_special_tokens=False).ids

    def decode(ids):
        return tok.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    bos = tok("")["input_ids"]
    out = {"versions": {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__},
           "bos": bos, "ids": [], "whole": [], "decoded": [], "cut": [], "chats": []}
    for at, text in enumerate(texts):
        ids = encode(text)
        if not any(s in text for s in soft):
            split = tok.encode(text, add_special_tokens=False, split_special_tokens=True)
            assert split == ids, (name, at, text, split, ids)
        out["ids"].append(ids)
        if (whole := tok(text)["input_ids"]) != bos + ids:
            out["whole"].append([at, whole])
        if (decoded := decode(ids)) != text:
            out["decoded"].append([at, decoded])
        if len(out["cut"]) < 250 and "\ufffd" in (cut := decode(ids[1:-1])) and cut.strip("\ufffd"):
            out["cut"].append([at, cut])
    for chat in chats:
        out["chats"].append(record_chat(tok, encode, literals, chat))
    write(f"{name}.json", out)
    print(f"{name}: {sum(map(len, out['ids']))} tokens, {len(out['whole'])} of another whole, "
          f"{len(out['decoded'])} decoded to another text, {len(out['cut'])} cut")


def record_chat(tok, encode, literals, chat):
    broken = re.compile("|".join(re.escape(x[0]) + "(?=" + re.escape(x[1:]) + ")" for x in literals))
    thinks = "<think>" in literals

    def render(protect):
        messages = [{"role": "system", "content": chat["system"]}] if chat["system"] else []
        for m in chat["messages"]:
            text = protect(m["content"])
            if m["thought"] and thinks:
                text = f"<think>\n{m['thought']}\n</think>\n\n{text}"
            messages.append({"role": m["role"], "content": text})
        return tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=True,
                                       enable_thinking=chat["think"])

    text = render(lambda t: t)
    guarded = render(lambda t: broken.sub(lambda m: m[0] + BREAK, t))
    assert guarded.replace(BREAK, "") == text
    ids = []
    for part in re.split("(" + "|".join(map(re.escape, literals)) + ")", guarded):
        ids += [tok.convert_tokens_to_ids(part)] if part in literals else encode(part.replace(BREAK, ""))
    if BREAK not in guarded:
        assert ids == tok(text, add_special_tokens=False)["input_ids"], text
    return [text, ids]


def record_greedy(texts):
    tok = AutoTokenizer.from_pretrained(MODELS / SMALL)
    model = AutoModelForCausalLM.from_pretrained(MODELS / SMALL, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    # Two long ones, so that RoPE and attention are seen far from their beginning.
    notes = "\n".join(f"- {t.strip()}" for t in texts if 20 < len(t) and t.isascii() and t.isprintable())
    prompts = PROMPTS + [f"Here are my notes:\n{notes[:n]}\n\nWhat are they about?" for n in (3000, 9000)]
    cases = []
    for prompt in prompts:
        text = tok.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
        ids = tok(text, add_special_tokens=False)["input_ids"]
        cases.append({"prompt": prompt, "ids": ids, **greedy(model, ids)})
        smallest = min(cases[-1]["gap"])
        print(f"{len(ids)} tokens, smallest gap {smallest:.4f}: {tok.decode(cases[-1]['greedy'])[:60]!r}", flush=True)
    write("greedy.json", {"versions": {"torch": torch.__version__, "transformers": transformers.__version__},
                          "cases": cases})


@torch.no_grad()
def greedy(model, ids):
    out = {"greedy": [], "gap": [], "second": []}
    step, past = torch.tensor([ids]), None
    for _ in range(N_GREEDY):
        result = model(input_ids=step, past_key_values=past, use_cache=True, logits_to_keep=1)
        past = result.past_key_values
        top = result.logits[0, -1].topk(2)
        out["greedy"].append(int(top.indices[0]))
        out["second"].append(int(top.indices[1]))
        out["gap"].append(round(float(top.values[0] - top.values[1]), 5))
        step = top.indices[:1].view(1, 1)
    return out


def write(name, content):
    """JSON with one line for each item of a list."""
    def line(x):
        return json.dumps(x, ensure_ascii=False, separators=(",", ":"))

    def block(x):
        return "[\n" + ",\n".join(map(line, x)) + "\n]" if isinstance(x, list) and x else line(x)

    if isinstance(content, dict):
        text = "{\n" + ",\n".join(f"{line(k)}: {block(v)}" for k, v in content.items()) + "\n}\n"
    else:
        text = block(content) + "\n"
    (HERE / name).write_text(text, encoding="utf-8")


def main():
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    texts, chats = strings.strings(), strings.conversations()
    write("strings.json", texts)
    write("conversations.json", chats)
    for name in ("qwen3", "llama3_1", SMALL):
        record_texts(name, texts, chats)
    if "--texts-only" not in sys.argv[1:]:
        record_greedy(texts)


if __name__ == "__main__":
    main()
