"""Judges the report of llm-comply: comply.py FILE. Cases that need what is not built are named."""

import json
import sys

NOT_BUILT = {"chat-tool-calling": "the built-in model has no tools", "chat-image-input": "images"}
NOT_BUILT |= {"tool-calling": "the built-in model has no tools", "image-input": "images"}
NOT_BUILT |= {"anth-tool-calling": "the built-in model has no tools", "anth-image-input": "images"}
report = json.load(open(sys.argv[1]))
wrong = []
for result in report["results"]:
    expected = "failed" if result["id"] in NOT_BUILT else "passed"
    good = result["status"] in (expected, "skipped")
    why = NOT_BUILT.get(result["id"], "")
    print("ok  " if good else "FAIL", result["id"], result["status"], why, *result.get("warnings", []))
    if not good:
        wrong.append(result["id"])
        print("    ", *result.get("errors", []), sep="\n     ")
sys.exit(bool(wrong))
