"""How soon the turns of a long conversation begin, and how fast an answer comes: turns.py URL TOKENS [FILE].

The first turn has a prompt of about TOKENS tokens, and each further turn a line. Prints the seconds to the first token of each, the
tokens that were cached, and the tokens per second of the last answer, between its first and its last chunk. FILE keeps the conversation:
run again, as after a restart of the server, a third turn is measured alone.
"""

import http.client
import json
import pathlib
import sys
import time
import urllib.parse

url, wanted = urllib.parse.urlparse(sys.argv[1]), int(sys.argv[2])
file = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
ANSWER, LONG_ANSWER = 32, 400


def call(path, body):
    line = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    line.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = line.getresponse()
    if reply.status != 200:
        raise SystemExit(f"{path}: {reply.status} {reply.read(500)}")
    return reply


def turn(messages, max_tokens):
    """Answers the messages and appends the answer. Prints what it took."""
    body = {"model": "default", "messages": messages, "max_tokens": max_tokens, "stream": True, "temperature": 0}
    begun, times, parts, usage = time.perf_counter(), [], {"content": "", "reasoning_content": ""}, {}
    for row in call(url.path + "/chat/completions", body | {"stream_options": {"include_usage": True}}):
        if not row.startswith(b"data: {"):
            continue
        chunk = json.loads(row[6:])
        if "error" in chunk:
            raise SystemExit(chunk)
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            said = {name: choice["delta"].get(name) or "" for name in parts}
            if any(said.values()):
                times.append(time.perf_counter())
            for name in parts:
                parts[name] += said[name]
    messages.append({"role": "assistant", **parts})
    cached, tokens = usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]
    speed = f", {(tokens - 1) / (times[-1] - times[0]):.1f} tok/s" if max_tokens == LONG_ANSWER else ""
    begins = f"{times[0] - begun:.3f} s to the first token"
    print(f"turn {len(messages) // 2}: {usage['prompt_tokens']} tokens, {cached} cached, {begins}{speed}", flush=True)


def tokens_of(text):
    return len(json.load(call("/tokenize", {"content": text}))["tokens"])


messages = json.loads(file.read_text()) if file and file.exists() else []
if not messages:
    lines = [f"Entry {i}: the parcel {7919 * i % 10007} went to shelf {104729 * i % 997}." for i in range(wanted // 10)]
    share = wanted / tokens_of("\n".join(lines[:1000])) * min(1000, len(lines)) / len(lines)
    text = "\n".join((lines * 2)[: int(len(lines) * share)])
    messages.append({"role": "user", "content": text + "\nWhere is the first parcel?"})
    turn(messages, ANSWER)
messages.append({"role": "user", "content": "And the second one?"})
turn(messages, LONG_ANSWER)
if file is not None:
    file.write_text(json.dumps(messages))
