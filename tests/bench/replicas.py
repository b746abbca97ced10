"""Measure a new process's first token: over the kept replica of an earlier one, next to a warm `open` of its own.

`.venv-ray/bin/python -m tests.bench.replicas`, after `make .venv-ray/.dev`. Both take turns, each time in a process of
its own with the same prompt. All its whole pages are cached: in the replica, or on disk. The last figures are of 64
further tokens.
"""

import argparse
import json
import os
import subprocess
import sys
from statistics import median

from rekindle.testing.cluster import Cluster
from tests.bench.say import say
from tests.bench.warm_restart import prompt
from tests.bench.workload import MODEL

TOKENS = 200
CHILD = """
import json, sys, time
started = time.perf_counter()
import rekindle
imported = time.perf_counter()
where = {"replicas": rekindle.Ray(1, address=sys.argv[2], keep=True)} if sys.argv[2] else {}
session = rekindle.open_sync(sys.argv[1], dtype="float32", progress=False, **where)
opened = time.perf_counter()
answer = session.generate_sync(token_ids=json.loads(sys.argv[3]), max_tokens=1, ignore_eos=True)
first = time.perf_counter()
session.precompiled_sync(progress=False)
session.save_sync(progress=False)
compiled = time.perf_counter()
session.generate_sync(token_ids=json.loads(sys.argv[3]), max_tokens=64, ignore_eos=True)
print(json.dumps({
    "open": opened - imported, "first token": first - opened, "together": first - imported,
    "64 tokens": time.perf_counter() - compiled, "cached": answer.cached.total,
}))
"""


def measured(address: str) -> dict[str, float]:
    """Return the seconds of each part in a process over a kept replica, or without an address in one alone."""
    command = [sys.executable, "-c", CHILD, MODEL, address, json.dumps(prompt(0, TOKENS))]
    answer: dict[str, float] = json.loads(subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL))
    return answer


def main() -> None:
    """Measure so many rounds, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.environ["RAY_AUTH_MODE"] = "disabled"  # the cluster is for this run alone
    cluster = Cluster()
    try:
        results: dict[str, list[dict[str, float]]] = {"alone": [], "kept": []}
        for number in range(rounds + 1):
            for name, address in (("alone", ""), ("kept", cluster.address)):
                answer = measured(address)
                if number:  # the first one of each fills the stores, and starts the replica
                    results[name].append(answer)
                    say(f"{name}: {answer}")
    finally:
        cluster.stop()
    for part in ("open", "first token", "together", "64 tokens"):
        alone, replica = (median(each[part] for each in results[name]) for name in ("alone", "kept"))
        say(f"{part}: {replica:.2f} s over a kept replica, {alone:.2f} s alone, ratio {replica / alone:.2f}")


if __name__ == "__main__":
    main()
