"""Start a contender's process, ask it for measurements, and end it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import Any, Self

from tests.bench.peers import ROOT, Command, prepare


class ContenderEnded(SystemExit):
    """Error of a process that ended before its answer.

    Attributes:
        reason: the name of its signal, such as "SIGSEGV", or its exit status.
    """

    def __init__(self, name: str, status: int, errors: str) -> None:
        self.reason = signal.Signals(-status).name if status < 0 else f"status {status}"
        super().__init__(f"{name} ended with {self.reason}:\n{errors}")


class Contender:
    """A running worker process.

    Attributes:
        about: its description, once it is loaded.
        ended: the reason of its end before an answer, or "" while it runs.
    """

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
        self.ended = ""

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
        """Wait for the first line: the description of the engine, once its model is loaded.

        Raises:
            ContenderEnded: the process ended.
        """
        self.about = self._answer()

    def ask(self, do: str, **values: object) -> dict[str, Any]:
        """Ask for one measurement, and return it; worker.py lists the measurements.

        Raises:
            ContenderEnded: the process ended.
        """
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
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
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
        error = ContenderEnded(self.name, status, self._errors.read()[-4000:])
        self.ended = error.reason
        raise error


def measure_limits() -> dict[str, float]:
    """Measure this machine's limits in a process of their own, to free their memory."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.limits"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    limits: dict[str, float] = json.loads(done.stdout)
    return limits


def _our_command(dtype: str) -> Command:
    return Command([sys.executable, "-m", "tests.bench.ours", "--dtype", dtype], {})
