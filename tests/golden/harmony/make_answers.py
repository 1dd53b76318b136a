"""Makes answers.json: the messages that OpenAI's package finds in answers of gpt-oss.

    TIKTOKEN_ENCODINGS_BASE=FOLDER python3 tests/golden/harmony/make_answers.py   # openai-harmony 0.0.8; a second

FOLDER has o200k_base.tiktoken, whose hash the package compares; the crate tiktoken-rs 0.7.0 has it under assets/.
"""

import json
from pathlib import Path

from openai_harmony import HarmonyEncodingName, Role, load_harmony_encoding

THOUGHT = "<|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant"
TEXTS = [
    f"{THOUGHT}<|channel|>final<|message|>Four.<|return|>",
    f"{THOUGHT} to=functions.f<|channel|>commentary json<|message|>{{\"a\": 1}}<|call|>",
    f"{THOUGHT}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{\"a\": 1}}<|call|>",
    f"{THOUGHT}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f-2 "
    "<|constrain|>json<|message|>{}<|call|>",
    "<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}<|call|>",
    "<|channel|>analysis to=functions.f code<|message|>{}<|call|>",
    "<|channel|>final <|constrain|>json<|message|>{\"x\": 2}<|return|>",
    "<|channel|>final json<|message|>{}<|end|>",
    "<|channel|>commentary to=browser.search code<|message|>{}<|call|>",
    "<|channel|>commentary to=assistant<|message|>{}<|end|>",
    "<|start|>assistant to=python<|channel|>analysis code<|message|>2 + 2<|call|>",
    "<|message|>No channel.<|return|>",
    "<|channel|>analysis<|message|>Broken",
    "<|channel|>final<|message|>Broken",
]


def main():
    encoding, cases = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS), []
    for text in TEXTS:
        begins = text.startswith("<|start|>")
        tokens = encoding.encode(text, allowed_special="all")
        found = encoding.parse_messages_from_completion_tokens(tokens, None if begins else Role.ASSISTANT)
        messages = [{"channel": m.channel, "recipient": m.recipient, "text": m.content[0].text} for m in found]
        cases.append({"text": text, "messages": messages})
    path = Path(__file__).with_name("answers.json")
    path.write_text(json.dumps({"openai_harmony": "0.0.8", "cases": cases}, indent=1) + "\n")
    print(f"{len(cases)} answers")


if __name__ == "__main__":
    main()
