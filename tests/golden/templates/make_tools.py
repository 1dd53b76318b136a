"""Makes tools.json: what transformers renders with tools, calls and their results.

    python3 tests/golden/templates/make_tools.py        # transformers 5.24.0, jinja2; a second

The templates are those of make_goldens.py that take tools.
"""

import json
from pathlib import Path

import transformers
from transformers.utils import chat_template_utils

from make_goldens import HERE, MODELS, Clock

TAKES = ["Qwen-Qwen2.5-7B-Instruct", "Qwen3.5-4B", "ibm-granite-granite-3.3-2B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407",
         "Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Ministral-3-14B-Reasoning-2512", "openai-gpt-oss-120b", "google-gemma-4-31B-it"]
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city <now>.", "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Its name, \"Zürich\""}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city"]}}},
    {"type": "function", "function": {"name": "stop", "description": "Stops.", "parameters": {"type": "object", "properties": {}}}},
]


def call(id, name, arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


CHATS = [
    [{"role": "user", "content": "How is the weather?"}],
    [
        {"role": "user", "content": "How is the weather in Zürich?"},
        {"role": "assistant", "content": "", "tool_calls": [
            call("abcdef012", "get_weather", {"city": "Zürich", "days": 2}), call("abcdef013", "stop", {})]},
        {"role": "tool", "content": "{\"celsius\": 20}", "tool_call_id": "abcdef012"},
        {"role": "tool", "content": "stopped", "tool_call_id": "abcdef013"},
        {"role": "assistant", "content": "It has 20 degrees."},
        {"role": "user", "content": "And in Bern?"},
    ],
]


def main():
    chat_template_utils.datetime = Clock
    out = {"transformers": transformers.__version__, "tools": TOOLS, "chats": CHATS, "models": []}
    for name, thinks, bos, eos in MODELS:
        if name not in TAKES:
            continue
        template, texts = (HERE / f"{name}.jinja").read_text(), []
        for chat in CHATS:
            (text,), _ = chat_template_utils.render_jinja_template(
                conversations=[chat], tools=TOOLS, chat_template=template, add_generation_prompt=True, enable_thinking=False,
                thinking=False, bos_token=bos, eos_token=eos)
            texts.append(text)
        out["models"].append({"name": name, "thinks": thinks, "bos": bos, "eos": eos, "texts": texts})
        print(f"{name}: {sum(map(len, texts))} characters")
    (Path(HERE) / "tools.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
