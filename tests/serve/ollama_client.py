"""What the client of ollama (PyPI ollama) gets from a server: ollama_client.py URL."""

import json
import sys

from ollama import Client, ResponseError

from cases import case, finish

CLIENT = Client(host=sys.argv[1].removesuffix("/v1"), timeout=300)
QUESTION = [{"role": "user", "content": "Solve 2*x + 3 = 11 for x."}]
GREEDY = {"temperature": 0, "seed": 1}


def chat(messages=QUESTION, **more):
    return CLIENT.chat(**{"model": "demo", "messages": messages, "options": GREEDY, **more})


def refused(name, status, part, **more):
    try:
        chat(**more)
    except ResponseError as error:
        return case(name, error.status_code == status and part in error.error, error.error)
    case(name, False, "was answered")


models = CLIENT.list().models
case("list", [model.model for model in models] == ["demo"] and models[0].details.parameter_size, models[0].details.parameter_size)
case("ps", CLIENT.ps().models[0].context_length > 0)
show = CLIENT.show("demo")
case("show", "completion" in show.capabilities and show.modelinfo, show.capabilities)
whole = chat(keep_alive="5m")
text = whole.message.content
case("chat", whole.done and whole.done_reason == "stop" and text, repr(text))
case("durations", 0 < whole.eval_duration <= whole.total_duration and whole.eval_count > 1 and whole.prompt_eval_count > 1)
chunks = list(chat(stream=True))
case("stream is the same text", "".join(chunk.message.content for chunk in chunks) == text)
case("the last chunk is done", [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True] and chunks[-1].eval_count == whole.eval_count)
thinking = chat(think=True)
case("think", thinking.message.thinking and thinking.message.content, repr(thinking.message.thinking[:30]))
turn = QUESTION + [thinking.message, {"role": "user", "content": "Solve 3*y - 6 = 9 for y."}]
case("a message is taken back", chat(turn).message.content)
case("num_predict", chat(options={**GREEDY, "num_predict": 3}).done_reason == "length")
case("stop", chat(options={**GREEDY, "stop": [text[4:7]]}).message.content == text[: text.index(text[4:7])])
generated = CLIENT.generate(model="demo", prompt=QUESTION[0]["content"], options=GREEDY)
case("generate", generated.response == text)
streamed = CLIENT.generate(model="demo", prompt=QUESTION[0]["content"], options=GREEDY, stream=True)
case("generate, streamed", "".join(chunk.response for chunk in streamed) == text)
likely = chat(logprobs=True, top_logprobs=2).logprobs
case("logprobs", "".join(token.token for token in likely).strip("\n") == text and len(likely[0].top_logprobs) == 2)
case("load", CLIENT.generate(model="demo").done_reason == "load")
refused("another model", 404, "is not served here", model="llama3.2")
refused("tools", 400, "tools", tools=[{"type": "function", "function": {"name": "f"}}])
fixed = chat(format={"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})
case("format", isinstance(json.loads(fixed.message.content)["x"], int), fixed.message.content)
refused("a prompt that is too long", 400, "the context holds", messages=[{"role": "user", "content": "word " * 200_000}])
finish()
