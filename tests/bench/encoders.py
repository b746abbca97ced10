"""Compare encoders in turns: 900 passages and one query by the published all-MiniLM-L6-v2, in float32.

Run `python -m tests.bench.encoders`. Seconds of CPU time tell more than those of a clock on a machine with other work.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from tests.bench import machine
from tests.bench.passages import QUERY, passages
from tests.bench.peers import ROOT, environment
from tests.bench.say import say
from tests.real.minilm import minilm

NAMES = ("ours", "st", "onnx")
QUERIES = 20
"""Queries one after another in a measurement."""


class Process:
    """An encoder in a process of its own."""

    def __init__(self, name: str) -> None:
        model, threads = str(minilm()), str(machine.cores())
        if name == "ours":
            argv = [sys.executable, "-m", "tests.bench.ours_encoders", "--model", model]
        else:
            python = str(environment("encoders"))
            argv = [python, "-m", "tests.bench.peer_encoders", "--peer", name, "--model", model, "--threads", threads]
        env = os.environ | {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
        self.name = name
        self._process = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about: Mapping[str, str] = self._answer()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def measure(self, texts: Sequence[str], times: int) -> dict[str, Any]:
        """Return the seconds of embedding texts, and some of the vectors."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"texts": list(texts), "times": times}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = self._answer()
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()}")
        return json.loads(line)


def main() -> None:
    """Run the bench as the command line asks."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.encoders", description=__doc__)
    parser.add_argument("--passages", type=int, default=900)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--names", default=",".join(NAMES), help=f"contenders, of {','.join(NAMES)}")
    args = parser.parse_args()
    about = machine.describe()
    say(", ".join(f"{key} {value}" for key, value in about.items()))
    texts, names = passages(args.passages), args.names.split(",")
    found: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {name: [] for name in names}
    with ExitStack() as stack:
        processes = [stack.enter_context(Process(name)) for name in names]
        for process in processes:
            say(f"{process.name}: {', '.join(f'{key} {value}' for key, value in process.about.items())}")
            process.measure(texts[:64], 1)
            process.measure([QUERY], QUERIES)
        for turn in range(args.rounds):
            for process in processes[turn % len(processes) :] + processes[: turn % len(processes)]:
                found[process.name].append((process.measure(texts, 1), process.measure([QUERY], QUERIES)))
    print(table(found, len(texts)))


def table(found: Mapping[str, Sequence[tuple[dict[str, Any], dict[str, Any]]]], count: int) -> str:
    """Return the medians of each encoder, and its largest difference from the first one's vectors."""
    lines = [
        f"| encoder | {count:,} passages, s | s of CPU time | a query, ms | ms of CPU time | difference |",
        "|---|---|---|---|---|---|",
    ]
    first = next(iter(found.values()))[0][0]["vectors"]
    for name, rounds in found.items():
        values = [
            scale * statistics.median(measured[part][key] for measured in rounds)
            for part, key, scale in ((0, "wall_s", 1), (0, "cpu_s", 1), (1, "wall_s", 1e3), (1, "cpu_s", 1e3))
        ]
        difference = max(np.abs(np.subtract(own["vectors"], first)).max() for own, _ in rounds)
        lines.append(f"| {name} | {' | '.join(f'{value:.3g}' for value in values)} | {difference:.1e} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
