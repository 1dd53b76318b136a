"""What the client of OpenAI (PyPI openai) gets from Responses: responses_client.py URL."""

import json
import sys

from openai import BadRequestError, NotFoundError, OpenAI

from cases import case, finish

CLIENT = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=300)
QUESTION = "Solve 2*x + 3 = 11 for x."


def create(**more):
    return CLIENT.responses.create(**{"model": "demo", "input": QUESTION, "temperature": 0, "extra_body": {"seed": 1}, **more})


def refused(name, kind, param, **more):
    try:
        create(**more)
    except kind as error:
        return case(name, error.param == param, error.message)
    case(name, False, "was answered")


whole = create(instructions="Answer.", metadata={"who": "eve"})
text = whole.output_text
case("whole", whole.status == "completed" and text, repr(text))
usage = whole.usage
case("usage", usage.total_tokens == usage.input_tokens + usage.output_tokens, usage.total_tokens)
case("retrieve", CLIENT.responses.retrieve(whole.id).to_dict() == whole.to_dict())
items = CLIENT.responses.input_items.list(whole.id).data
case("input_items", [item.content[0].text for item in items] == [QUESTION])
events = list(create(instructions="Answer.", stream=True))
names = [event.type for event in events]
case("events", names[0] == "response.created" and names[-1] == "response.completed", names[:3] + names[-3:])
done = [event.item for event in events if event.type == "response.output_item.done"]
last = events[-1].response
case("items of the events are those of the response", [item.to_dict() for item in done] == [item.to_dict() for item in last.output])
case("stream is the same text, and the cache serves", last.output_text == text and last.usage.input_tokens_details.cached_tokens == usage.input_tokens - 1)
with CLIENT.responses.stream(model="demo", input=QUESTION, instructions="Answer.", temperature=0) as stream:
    for _ in stream:
        pass
    case("the client's own assembly of a stream", stream.get_final_response().output_text == text)
second = create(instructions="Answer.", input="Solve 3*y - 6 = 9 for y.", previous_response_id=whole.id)
cached = second.usage.input_tokens_details.cached_tokens
case("previous_response_id, and turn two reads what is new", cached >= usage.input_tokens - 1, f"{cached} cached")
history = [{"role": "user", "content": QUESTION}, *whole.output, {"role": "user", "content": "Solve 3*y - 6 = 9 for y."}]
case("output items are input again", create(instructions="Answer.", input=history).output_text == second.output_text)
short = create(max_output_tokens=16)
case("max_output_tokens", short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens", short.status)
likely = create(include=["message.output_text.logprobs"], top_logprobs=2).output[-1].content[0].logprobs
case("logprobs", len(likely) > 1 and len(likely[0].top_logprobs) == 2)
unstored = create(store=False)
try:
    CLIENT.responses.retrieve(unstored.id)
    case("store=False", False)
except NotFoundError as error:
    case("store=False", error.code == "response_not_found")
CLIENT.responses.delete(whole.id)
refused("delete", NotFoundError, "previous_response_id", previous_response_id=whole.id)
refused("tools", BadRequestError, "tools", tools=[{"type": "function", "name": "f", "parameters": {}}])
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
fixed = create(text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}})
case("a format", isinstance(json.loads(fixed.output_text)["x"], int), fixed.output_text)
refused("background", BadRequestError, "background", background=True)
refused("a prompt that is too long", BadRequestError, "messages", input="word " * 200_000)
finish()
