"""Cases of the clients: each prints a line, and `finish` says how many failed."""

import sys

failed = []


def case(name, good, shown=""):
    print("pass" if good else "FAIL", name, shown)
    if not good:
        failed.append(name)


def finish():
    print(len(failed), "failed")
    sys.exit(bool(failed))
