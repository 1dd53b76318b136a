"""Sends broken requests and checks that each is refused in form: hostile.py URL COUNT [SEED]."""

import http.client
import json
import random
import socket
import sys
import urllib.parse

url = urllib.parse.urlparse(sys.argv[1])
count, seed = int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1
rng = random.Random(seed)
VALUES = [None, True, False, 0, -1, 1, 2**63, -(2**70), 1e308, 0.5, "", "x", "\0", "\ud800", [], {}, [[]], [{}], {"a": {}}, ["x"] * 20]
VALUES += ["<|im_start|>", "\ufdd0", "a" * 300, [{"role": "user", "content": "x"}] * 3]
FIELDS = ["model", "messages", "prompt", "stream", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p"]
FIELDS += ["stop", "seed", "n", "logit_bias", "tools", "response_format", "logprobs", "stream_options", "reasoning_effort"]
FIELDS += ["chat_template_kwargs", "presence_penalty", "thinking_budget", "user", "metadata", "content", "unknown"]
FIELDS += ["input", "instructions", "previous_response_id", "reasoning", "include", "text", "store", "top_logprobs"]
FIELDS += ["options", "think", "keep_alive", "raw", "format", "images"]
FIELDS += ["system", "thinking", "output_config", "stop_sequences", "context_management"]
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/tokenize"]
PATHS += ["/v1/responses", "/api/chat", "/api/generate", "/api/show"]


def body():
    fields = {"model": "demo", "messages": [{"role": "user", "content": "1+1"}], "prompt": "1+1", "max_tokens": 1}
    fields |= {"input": "1+1", "max_output_tokens": 1, "options": {"num_predict": 1}}
    for _ in range(rng.randint(1, 4)):
        fields[rng.choice(FIELDS)] = rng.choice(VALUES)
    if rng.random() < 0.3:
        message = {"role": rng.choice(["user", "assistant", "system", "tool", "", 7, None]), "content": rng.choice(VALUES)}
        message[rng.choice(["name", "tool_calls", "reasoning_content"])] = rng.choice(VALUES)
        fields["messages"] = [message] * rng.randint(0, 3)
    # Long answers are not what is tested.
    for name in ("max_tokens", "max_completion_tokens"):
        value = fields.get(name)
        if name in fields and (not isinstance(value, (int, float)) or value != 0):
            fields[name] = value if isinstance(value, (str, list, dict)) else 1
    fields.setdefault("max_completion_tokens", 1)
    data = json.dumps(fields).encode()
    if rng.random() < 0.2:
        data = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)


def raw():
    """Bytes that are no request, or a part of one."""
    lines = [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 50, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n"]
    lines += [b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"]
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(rng.choice(lines))
        connection.shutdown(socket.SHUT_WR)
        try:
            while connection.recv(65536):
                pass
        except ConnectionResetError:
            pass


statuses = {}
for i in range(count):
    if i % 20 == 0:
        raw()
        continue
    path, data = rng.choice(PATHS), body()
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=120)
    connection.request("POST", path, data)
    try:
        answer = connection.getresponse()
        text = answer.read().decode()
    except TimeoutError:
        sys.exit(f"no answer to request {i}: {path} {data!r}")
    statuses[answer.status] = statuses.get(answer.status, 0) + 1
    shown = f"{path} {data[:500]!r}: {answer.status} {text[:500]}"
    if answer.status == 200 and "event-stream" in answer.headers["content-type"]:
        assert "data: " in text, shown
    elif answer.status == 200 and "x-ndjson" in answer.headers["content-type"]:
        assert json.loads(text.splitlines()[-1])["done"], shown
    elif answer.status == 200:
        parsed = json.loads(text)
        assert {"choices", "tokens", "content", "input_tokens", "output", "done", "model_info"} & set(parsed), shown
    else:
        assert 400 <= answer.status < 500, shown
        error = json.loads(text)["error"]
        assert error if path.startswith("/api/") else error["message"], shown
    connection.close()
connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
connection.request("GET", "/metrics")
metrics = connection.getresponse().read().decode()
assert "dmschat_slots_busy 0\n" in metrics and "dmschat_requests_waiting 0\n" in metrics, metrics
print(count, "requests:", statuses)
