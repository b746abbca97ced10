"""One step of a newcomer: its time, and its longest silence."""

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

LONGEST_SILENCE = 1.0
"""Seconds after which a wait without a word looks like a hang."""
PATIENCE_S = 900.0
"""Seconds after which a step is ended."""
ESCAPES = re.compile(r"\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[@-_][0-?]*[ -/]*[@-~]?|[\x07\x08]")
"""Control sequences of a terminal."""


class Watch:
    """The times of a step's outputs."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._silence = 0.0

    def mark(self) -> None:
        """Note an output of the step, or its end."""
        now = time.monotonic()
        self._silence, self._last = max(self._silence, now - self._last), now

    @property
    def seconds(self) -> float:
        """The time from the start to the last note."""
        return self._last - self._start

    @property
    def silence(self) -> float:
        """The longest time between two notes."""
        return self._silence


@dataclass(frozen=True, slots=True)
class Run:
    """A finished step.

    Attributes:
        seconds, silence: its time, and the longest wait in it without any output.
        status: its exit status; 0 for a cell without an error.
        text: its output, without the control sequences of a terminal.
    """

    seconds: float
    silence: float
    status: int
    text: str


def run_of(watch: Watch, status: int, text: str) -> Run:
    """Return a step at its end."""
    watch.mark()
    return Run(watch.seconds, watch.silence, status, text)


def plain(text: str) -> str:
    """Return the text as a terminal would show it, without control sequences."""
    return ESCAPES.sub("", text).replace("\r\n", "\n")


@dataclass(slots=True)
class Log:
    """The steps of one environment, first and again, with the number of programs stored by each.

    Attributes:
        environment: the name of the environment.
        folder: the place of the transcripts.
        programs: the folder of the compiled programs.
    """

    environment: str
    folder: Path
    programs: Path
    rows: dict[tuple[str, str], list[tuple[Run, int]]] = field(default_factory=dict)
    _stored: int = 0

    def begin(self) -> None:
        """Count the stored programs before a step."""
        self._stored = self._count()

    def add(self, face: str, name: str, run: Run) -> None:
        """Note a finished step, print it, and append its output to the transcript."""
        compiled = self._count() - self._stored
        self.rows.setdefault((face, name), []).append((run, compiled))
        failed = "" if run.status == 0 else f"  FAILED with status {run.status}"
        print(
            f"    {run.seconds:6.1f} s, silent {run.silence:4.1f} s, {compiled} compiled  {face}: {name}{failed}",
            flush=True,
        )
        with (self.folder / f"{face}.txt").open("a", encoding="utf-8") as transcript:
            transcript.write(f"### {name} ({run.seconds:.1f} s, silent {run.silence:.1f} s)\n{run.text.rstrip()}\n\n")

    def _count(self) -> int:
        return sum(1 for _ in self.programs.iterdir()) if self.programs.is_dir() else 0
