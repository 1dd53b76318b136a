"""Makes renderings.json: what transformers renders with chat templates of published models.

    python3 tests/golden/templates/make_goldens.py      # transformers 5.17.0 to 5.24.0, jinja2; a second

The templates lie beside this file, verbatim as in models/templates of PyPI's llama_cpp_python-0.3.36.tar.gz (vendor/llama.cpp),
which took them from the models' repositories: Apache-2.0, those of DeepSeek and Phi MIT. gemma_turns.jinja alone was written for
this test: turns as Gemma 3 has them, with the system prompt in the user's first one. Conversations are the first ones of
../real/conversations.json; the clock stands at 4:00 on 21 November 2026.
"""

import datetime
import json
from pathlib import Path

import transformers
from transformers.utils import chat_template_utils

HERE = Path(__file__).resolve().parent
N = 16
# Template, whether <think> is a token, BOS, EOS.
MODELS = [
    ("Qwen-Qwen2.5-7B-Instruct", False, "", "<|im_end|>"),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", True, "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    ("mistralai-Mistral-Nemo-Instruct-2407", False, "<s>", "</s>"),
    ("microsoft-Phi-3.5-mini-instruct", False, "<s>", "<|endoftext|>"),
    ("HuggingFaceTB-SmolLM3-3B", True, "<|begin_of_text|>", "<|im_end|>"),
    ("ibm-granite-granite-3.3-2B-Instruct", False, "<|end_of_text|>", "<|end_of_text|>"),
    ("Qwen3.5-4B", True, "", "<|im_end|>"),
    ("gemma_turns", False, "<bos>", "<eos>"),
    ("Mistral-Small-3.2-24B-Instruct-2506", False, "<s>", "</s>"),
    ("mistralai-Ministral-3-14B-Reasoning-2512", False, "<s>", "</s>"),
    ("google-gemma-4-31B-it", False, "<bos>", "<eos>"),
    ("openai-gpt-oss-120b", False, "<|startoftext|>", "<|return|>"),
]


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 21, 4)


def render(template, chat, bos, eos):
    messages = [{"role": "system", "content": chat["system"]}] if chat["system"] else []
    for m in chat["messages"]:
        thought = {"reasoning_content": m["thought"]} if m["thought"] else {}
        messages.append({"role": m["role"], "content": m["content"], **thought})
    (text,), _ = chat_template_utils.render_jinja_template(
        conversations=[messages], chat_template=template, add_generation_prompt=True, enable_thinking=chat["think"],
        thinking=chat["think"],
        bos_token=bos, eos_token=eos)
    return text


def main():
    chat_template_utils.datetime = Clock
    chats = json.loads((HERE.parent / "real" / "conversations.json").read_text())[:N]
    out = {"transformers": transformers.__version__, "models": []}
    for name, thinks, bos, eos in MODELS:
        template = (HERE / f"{name}.jinja").read_text()
        texts = [render(template, chat, bos, eos) for chat in chats]
        out["models"].append({"name": name, "thinks": thinks, "bos": bos, "eos": eos, "texts": texts})
        print(f"{name}: {sum(map(len, texts))} characters")
    (HERE / "renderings.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
