"""What the client of Anthropic (PyPI anthropic) gets from a server: anthropic_client.py URL."""

import sys

from anthropic import APIStatusError, Anthropic, BadRequestError, NotFoundError

from cases import case, finish

URL = sys.argv[1].removesuffix("/v1")
CLIENT = Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=300)
QUESTION = [{"role": "user", "content": "Solve 2*x + 3 = 11 for x."}]
ON = {"type": "enabled", "budget_tokens": 1024}


def create(messages=QUESTION, **more):
    return CLIENT.messages.create(**{"model": "demo", "max_tokens": 2000, "messages": messages, "extra_body": {"temperature": 0}, **more})


def refused(name, kind, part, **more):
    try:
        create(**more)
    except kind as error:
        body = error.body
        return case(name, body["type"] == "error" and part in body["error"]["message"], body["error"])
    case(name, False, "was answered")


whole = create()
case("whole", whole.stop_reason == "end_turn" and whole.content[0].type == "text", repr(whole.content[0].text))
text = whole.content[0].text
usage = whole.usage
counted = CLIENT.messages.count_tokens(model="demo", messages=QUESTION).input_tokens
case("count_tokens is what usage says", counted == usage.input_tokens + usage.cache_read_input_tokens, counted)
with CLIENT.messages.stream(model="demo", max_tokens=2000, messages=QUESTION, extra_body={"temperature": 0}) as stream:
    streamed = "".join(stream.text_stream)
    final = stream.get_final_message()
case("stream is the same text", streamed == text and final.content[0].text == text)
case("stream has usage, and the cache serves", final.usage.input_tokens == 1 and final.usage.cache_read_input_tokens == counted - 1)
case("stream says how it ended", final.stop_reason == "end_turn" and final.usage.output_tokens == usage.output_tokens)
names = [event.type for event in create(stream=True)]
case("events", names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], names[:2] + names[-3:])
with CLIENT.messages.stream(
    model="demo", max_tokens=2000, messages=QUESTION, thinking=ON, extra_body={"temperature": 0}
) as stream:
    thinking = stream.get_final_message()
case("thinking", [block.type for block in thinking.content] == ["thinking", "text"], repr(thinking.content[0].thinking[:40]))
turn = QUESTION + [{"role": "assistant", "content": thinking.content}, {"role": "user", "content": "Solve 3*y - 6 = 9 for y."}]
second = create(turn, thinking=ON)
cached = second.usage.cache_read_input_tokens
case("a thought is taken back, and turn two reads what is new", cached >= counted - 1, f"{cached} cached")
stopped = create(stop_sequences=[text[4:7]])
case("stop_sequences", stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == text[4:7], stopped.stop_sequence)
case("max_tokens", create(max_tokens=3).stop_reason == "max_tokens")
system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
case("system as blocks, metadata", create(system=system, max_tokens=4, metadata={"user_id": "eve"}).usage.output_tokens == 4)
case("top_k and top_p", create(extra_body={"top_k": 5, "top_p": 0.9}, max_tokens=4).usage.output_tokens == 4)
refused("tools", BadRequestError, "tools", tools=[{"name": "f", "input_schema": {"type": "object"}}])
image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
refused("an image", BadRequestError, "image", messages=[{"role": "user", "content": [image]}])
refused("a begun answer", BadRequestError, "last message", messages=QUESTION + [{"role": "assistant", "content": "x ="}])
refused("a prompt that is too long", BadRequestError, "prompt is too long", messages=[{"role": "user", "content": "word " * 200_000}])
refused("another model", NotFoundError, "is not served here", model="claude-opus-4-6")
try:
    CLIENT.post("/v1/messages/batches", body={}, cast_to=object)
    case("what is not there", False)
except APIStatusError as error:
    case("what is not there", error.status_code == 404 and error.body["error"]["type"] == "not_found_error")
finish()
