"""Start a contender's process, ask it for measurements, and end it."""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Self

from tests.bench.peers import ROOT, Command, prepare


class Contender:
    """A running worker process."""

    def __init__(self, name: str, command: Command) -> None:
        self.name = name
        # Its standard error goes to a file, because a pipe that nobody reads would block it when full.
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 closed in close()
        self._process = subprocess.Popen(
            command.argv,
            cwd=ROOT,
            env=os.environ | command.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.about: dict[str, str] = {}

    @classmethod
    def start(cls, name: str) -> Self:
        """Start an engine, for example `ours:float32` or `hf:float32`; make its environment if it is missing."""
        kind, _, dtype = name.partition(":")
        return cls(name, _our_command(dtype) if kind == "ours" else prepare(kind, dtype))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ours(self) -> bool:
        return self.name.startswith("ours:")

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_loaded(self) -> None:
        """Wait for the first line: the description of the engine, once its model is loaded."""
        self.about = self._answer()

    def ask(self, do: str, **values: object) -> dict[str, Any]:
        """Ask for one measurement, and return it; worker.py lists the measurements."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"do": do} | values) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail()
        return self._answer()

    def close(self) -> None:
        """End the process: at once if it is idle, and by force if it does not end."""
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._fail()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _fail(self) -> None:
        self._process.kill()
        status = self._process.wait()
        self._errors.seek(0)
        raise SystemExit(f"{self.name} ended with status {status}:\n{self._errors.read()[-4000:]}")


def measure_limits() -> dict[str, float]:
    """Measure this machine's limits in a process of their own, to free their memory."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.limits"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    limits: dict[str, float] = json.loads(done.stdout)
    return limits


def _our_command(dtype: str) -> Command:
    return Command([sys.executable, "-m", "tests.bench.ours", "--dtype", dtype], {})
