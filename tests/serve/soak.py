"""Eight clients that hang up at random: soak.py URL SECONDS PID [SEED].

Each holds conversations of several turns with the server at URL, whole and streamed, and leaves one answer in three in
the middle. Every answer is greedy, so those that reach their end have to equal the first answer to the same conversation. At the
end the server, process PID, has no request left, and about as many open files as at first. Prints what was asked and the
memory of the process over time; exits with 1 if anything differs.
"""

import hashlib
import http.client
import json
import pathlib
import random
import sys
import threading
import time
import urllib.parse

url = urllib.parse.urlparse(sys.argv[1])
seconds, pid = float(sys.argv[2]), sys.argv[3]
seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
CLIENTS, TURNS = 8, 4
SYSTEM = "You are a careful assistant. Answer briefly."
QUESTIONS = [f"Solve {a}*x + {b} = {a * x + b} for x." for a, b, x in ((2, 3, 4), (3, 1, 5), (5, 2, 3), (4, 7, 2))]
QUESTIONS += [f"Sort {', '.join(map(str, numbers))}." for numbers in ((7, 3, 9), (5, 1, 8, 2), (6, 4), (9, 8, 7, 1))]
known, counts, wrong, lock = {}, {"whole": 0, "left": 0, "equal": 0}, [], threading.Lock()


def post(body, leave_after):
    """The text of an answer; None if the client left after that many bytes."""
    line = http.client.HTTPConnection(url.hostname, url.port, timeout=300)
    try:
        line.request("POST", url.path + "/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        if leave_after == 0:
            return None
        reply = line.getresponse()
        if reply.status == 503:
            time.sleep(0.2)
            return None
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {reply.read(500)}")
        if not body["stream"]:
            return json.loads(reply.read())["choices"][0]["message"]["content"]
        text, read = "", 0
        for row in reply:
            read += len(row)
            if leave_after is not None and read > leave_after:
                return None
            if row.startswith(b"data: {"):
                chunk = json.loads(row[6:])
                if "error" in chunk:
                    raise RuntimeError(chunk)
                text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        return text
    finally:
        line.close()


def client(number, end):
    rng = random.Random(seed * 100 + number)
    while time.time() < end:
        messages = [{"role": "system", "content": SYSTEM}]
        for _ in range(rng.randint(1, TURNS)):
            messages.append({"role": "user", "content": rng.choice(QUESTIONS)})
            leaves = rng.choice([None, None, rng.choice([0, 300, 2000])])
            body = {"model": "default", "messages": messages, "temperature": 0, "max_tokens": 200, "stream": rng.random() < 0.7}
            if not body["stream"] and leaves:
                leaves = None
            try:
                text = post(body, leaves)
            except Exception as error:
                with lock:
                    wrong.append(f"client {number}: {error!r}")
                return
            key = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
            with lock:
                if text is None:
                    counts["left"] += 1
                else:
                    counts["whole"] += 1
                    counts["equal"] += known.setdefault(key, text) == text
                    if known[key] != text:
                        wrong.append(f"client {number}: {known[key]!r} and {text!r} to {messages}")
            if text is None:
                break
            messages = messages + [{"role": "assistant", "content": text}]


def status():
    """Memory in MB and open files of the server."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    resident = next(int(row.split()[1]) for row in text.splitlines() if row.startswith("VmRSS"))
    return resident / 1024, len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))


def metrics():
    line = http.client.HTTPConnection(url.hostname, url.port, timeout=30)
    line.request("GET", "/metrics")
    rows = line.getresponse().read().decode().splitlines()
    line.close()
    return {row.split()[0]: float(row.split()[1]) for row in rows if not row.startswith("#")}


def main():
    started, before = time.time(), status()
    clients = [threading.Thread(target=client, args=(n, started + seconds)) for n in range(CLIENTS)]
    [thread.start() for thread in clients]
    while any(thread.is_alive() for thread in clients):
        for thread in clients:
            thread.join(max(seconds / 10 / CLIENTS, 0.5))
        memory, files = status()
        print(f"{time.time() - started:6.0f} s: {memory:.0f} MB, {files} files, {counts}", flush=True)
    for _ in range(100):
        time.sleep(0.1)
        if metrics()["dmschat_slots_busy"] == 0:
            break
    after, left = status(), metrics()
    if left["dmschat_slots_busy"] or left["dmschat_requests_waiting"]:
        wrong.append(f"requests are left: {left}")
    if after[1] > before[1] + 2:
        wrong.append(f"{before[1]} open files before, {after[1]} after")
    print(f"{counts}, memory {before[0]:.0f} to {after[0]:.0f} MB, failed {left['dmschat_requests_failed_total']:.0f}")
    print("\n".join(wrong[:20]))
    sys.exit(bool(wrong))


main()
