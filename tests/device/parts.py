"""The parts of `make device`: each is a process with a limit of time, and a file of rows that a later run skips."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.say import say

ROOT: Final = Path(__file__).parents[2]
GRACE: Final = 10.0
"""Seconds of a part beyond its limit, before it is killed."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the run.

    Attributes:
        module: its module of `tests.device`.
        title: the heading of its table.
        limit: the seconds after which it begins nothing new.
    """

    module: str
    title: str
    limit: float


PARTS: Final = (
    Part("overlap", "Whether ticks overlap, and what waits", 60),
    Part("limits", "Limits of the device", 20),
    Part("kernels", "Kernels against the reference", 110),
    Part("greedy", "Greedy tokens of twelve families, against transformers on a CPU", 90),
    Part("engine", "A whole engine, 1B widths in bfloat16", 160),
    Part("steps", "Steps against the limits", 170),
    Part("prompts", "Attention of prompts", 60),
    Part("trace", "Kernels of decode steps, 1B widths", 60),
    Part("flags", "Options of XLA, steps of 1B widths", 90),
    Part("peer", "transformers on PyTorch, 1B widths in bfloat16", 60),
)
"""The parts in order of importance. One that would end after nine minutes is left for the next run."""


class Rows:
    """The rows of a part, written to its file after each one.

    Args:
        out: the file.
        limit: the seconds for the part.
        tiny: whether sizes are small enough for a CPU.

    Attributes:
        tiny: as above.
        log: a file for what the part prints.
    """

    def __init__(self, out: Path, limit: float, *, tiny: bool):
        self._out, self._deadline, self.tiny = out, time.monotonic() + limit, tiny
        self.log = out.with_suffix(".log")
        self._rows: list[dict[str, Any]] = []
        self._write(done=False)

    @property
    def seconds_left(self) -> float:
        """The seconds until the limit."""
        return self._deadline - time.monotonic()

    def add(self, **row: Any) -> None:
        """Add a row, by columns."""
        self._rows.append(row)
        say("  " + ", ".join(f"{name} {number(value)}" for name, value in row.items()))
        self._write(done=False)

    def attempt(self, name: str, work: Callable[[], Mapping[str, Any]]) -> None:
        """Add the row of one measurement, or its error; add nothing after the limit."""
        if self.seconds_left <= 0:
            return
        try:
            self.add(**{"": name, **work()})
        except Exception as error:
            self.add(**{"": name, "error": f"{type(error).__name__}: {str(error).strip():.200}"})

    def end(self) -> None:
        """Mark the part as done; a later run skips it."""
        self._write(done=True)

    def _write(self, *, done: bool) -> None:
        self._out.write_text(json.dumps({"done": done, "rows": self._rows}, indent=1) + "\n")


def main(work: Callable[[Rows], None]) -> None:
    """Run one part as `python -m tests.device.PART`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, required=True)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    rows = Rows(arguments.out, arguments.limit, tiny=arguments.tiny)
    work(rows)
    rows.end()


def run(part: Part, directory: Path, *, tiny: bool) -> str:
    """Run a part unless its rows are there; return how it ended."""
    out = directory / f"{part.module}.json"
    if is_done(out):
        return "done before"
    command = [sys.executable, "-m", f"tests.device.{part.module}", "--out", str(out), "--limit", str(part.limit)]
    environment = os.environ | {"REKINDLE_CACHE": str(directory / "cache")}
    try:
        ended = subprocess.run(
            [*command, *(["--tiny"] if tiny else [])],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=part.limit + GRACE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"stopped after {part.limit + GRACE:.0f} s"
    return "done" if ended.returncode == 0 else f"failed with status {ended.returncode}"


def is_done(out: Path) -> bool:
    """Return True if a part has ended."""
    return out.exists() and bool(json.loads(out.read_text())["done"])


def number(value: Any) -> str:
    """Format a cell: numbers with three digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
