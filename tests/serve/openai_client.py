"""What the client of OpenAI (PyPI openai) gets from a server: openai_client.py URL."""

import json
import sys
import time
import urllib.request

from openai import BadRequestError, NotFoundError, OpenAI

from cases import case, finish

URL = sys.argv[1]
CLIENT = OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=300)
QUESTION = [{"role": "user", "content": "Solve 2*x + 3 = 11 for x."}]


def chat(messages=QUESTION, **more):
    return CLIENT.chat.completions.create(model="demo", messages=messages, temperature=0, seed=1, **more)


def refused(name, kind, code, **more):
    try:
        chat(**more)
    except kind as error:
        return case(name, error.code == code, error.code)
    case(name, False, "was answered")


case("models", [model.id for model in CLIENT.models.list()] == ["demo"] and CLIENT.models.retrieve("demo").id == "demo")
whole = chat()
text = whole.choices[0].message.content
case("whole", whole.choices[0].finish_reason == "stop" and text, repr(text))
usage = whole.usage
case("usage", usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage.total_tokens)
streamed, end = "", None
for chunk in chat(stream=True, stream_options={"include_usage": True}):
    streamed += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    end = chunk.usage or end
case("stream is the same text", streamed == text)
case("stream has usage, and the cache serves", end and end.prompt_tokens_details.cached_tokens == end.prompt_tokens - 1)
with CLIENT.chat.completions.stream(model="demo", messages=QUESTION, temperature=0, seed=1) as stream:
    for _ in stream:
        pass
    case("the client's own assembly of a stream", stream.get_final_completion().choices[0].message.content == text)
turn = QUESTION + [{"role": "assistant", "content": text}, {"role": "user", "content": "Solve 3*y - 6 = 9 for y."}]
cached = chat(turn).usage.prompt_tokens_details.cached_tokens
case("turn two reads what is new", cached >= usage.prompt_tokens - 1, f"{cached} cached")
case("stop", chat(stop=[text[4:7]]).choices[0].message.content == text[: text.index(text[4:7])])
case("max_completion_tokens", chat(max_completion_tokens=3).choices[0].finish_reason == "length")
odd = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": None},
    {"role": "user", "content": "hi"},
]
case("developer, parts and null", len(chat(odd, max_tokens=4).choices) == 1)
case("penalties and biases", chat(max_tokens=4, presence_penalty=1, frequency_penalty=1, logit_bias={"5": -100}).choices)
more = {"model": "demo", "prompt": "1 + 1 =", "max_tokens": 4, "temperature": 0}
completion = CLIENT.completions.create(**more).choices[0].text
chunks = [chunk.choices[0].text for chunk in CLIENT.completions.create(stream=True, **more)]
case("completions, whole and streamed", completion and "".join(chunks) == completion, repr(completion))
refused("tools", BadRequestError, "unsupported_parameter", tools=[{"type": "function", "function": {"name": "f"}}])
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
fixed = chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}})
case("response_format", isinstance(json.loads(fixed.choices[0].message.content)["x"], int), fixed.choices[0].message.content)
likely = chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
case("logprobs", "".join(token.token for token in likely).strip("\n") == text and len(likely[0].top_logprobs) == 3)
chunks = list(chat(logprobs=True, top_logprobs=3, stream=True))
streamed = [token for chunk in chunks for token in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])]
case("logprobs of a stream", streamed == likely)
several = chat(n=3, max_tokens=8)
case("n", [choice.index for choice in several.choices] == [0, 1, 2] and several.usage.completion_tokens == 24)
refused("a great n", BadRequestError, "invalid_value", n=9)
long = [{"role": "user", "content": "word " * 200_000}]
refused("a prompt that is too long", BadRequestError, "context_length_exceeded", messages=long)
try:
    CLIENT.chat.completions.create(model="other", messages=QUESTION)
    case("another model", False)
except NotFoundError as error:
    case("another model", error.code == "model_not_found")
stream = chat(stream=True, messages=[{"role": "user", "content": "Solve 7*x + 3 = 24 for x."}])
next(iter(stream))
stream.close()
metrics = ""
for _ in range(200):
    metrics = urllib.request.urlopen(URL.removesuffix("/v1") + "/metrics").read().decode()
    if "dmschat_slots_busy 0\n" in metrics:
        break
    time.sleep(0.05)
case("an abort frees the slot", "dmschat_slots_busy 0\n" in metrics and "abandoned_total 1\n" in metrics)
finish()
