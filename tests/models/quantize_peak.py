"""Checks the private memory that quantization takes.

    python3 quantize_peak.py DMSCHAT MODEL [--weights int4] [--most-mb 200]

Runs `DMSCHAT models quantize MODEL` with a cache folder of its own and samples RssAnon of the process: the mapped model and
the written file do not count. MODEL is best one of 2 GB or more, such as random_checkpoint.py makes. Exits with 1 if the
peak is above --most-mb. Linux only.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time


def rss_anon_mb(pid):
    try:
        with open(f"/proc/{pid}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        return int(fields["RssAnon"].split()[0]) * 1024 / 1e6
    except (OSError, KeyError):
        return 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dmschat")
    parser.add_argument("model")
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--most-mb", type=float, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        command = [args.dmschat, "models", "quantize", args.model, "--weights", args.weights]
        began = time.monotonic()
        process = subprocess.Popen(command, env={**os.environ, "DMSCHAT_CACHE_DIR": cache})
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, rss_anon_mb(process.pid))
            time.sleep(0.005)
        seconds = time.monotonic() - began
    print(f"peak of private memory: {peak:.0f} MB in {seconds:.0f} s, exit code {process.returncode}")
    sys.exit(process.returncode != 0 or peak > args.most_mb)


if __name__ == "__main__":
    main()
