"""Readiness of the programs prepared in advance."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.concurrency.threads import soon


@dataclass(frozen=True, slots=True)
class Readiness:
    """Counts of the programs prepared in advance, at one moment.

    Attributes:
        ready: the number of callable programs.
        total: the number of all programs.
        pending: the number of programs still being made. Programs neither ready nor pending have failed.
        compiled: whether any program had to be compiled so far; else all were loaded.
    """

    ready: int
    total: int
    pending: int
    compiled: bool

    @classmethod
    def of(cls, programs: Sequence[Future[None]], *, compiled: bool) -> "Readiness":
        """Count programs by their futures. Thread-safe."""
        done = [program for program in programs if program.done()]
        ready = sum(not program.cancelled() and not program.exception() for program in done)
        return cls(ready, len(programs), len(programs) - len(done), compiled)

    @property
    def summary(self) -> str:
        """Sentence about the programs still being made; empty if there are none."""
        if not self.pending:
            return ""
        action = "compiled" if self.compiled else "loaded"
        return f"{self.ready} of {self.total} programs ready, the others are being {action}"


def wait_for(programs: Sequence[Future[None]], report: Report) -> None:
    """Wait until all programs are ready, and report their number. Raise the error of a failed one at once."""
    for done, program in enumerate(programs):
        report(Progress("preparing programs", done, len(programs), "programs"))
        program.result()
    report(Progress("preparing programs", len(programs), len(programs), "programs"))


def progress_feed(programs: Sequence[Future[None]], stored: Sequence["Future[None]"]) -> Feed[Progress]:
    """Return a feed of the reports of `wait_for`, closed when all futures of both sequences are done."""
    feed: Feed[Progress] = Feed()

    def follow() -> None:
        try:
            wait_for(programs, feed.put)
        except Exception:
            wait(programs)
        wait(stored)
        feed.close()

    soon(follow, "preparing")
    return feed


def raise_first(programs: Iterable[Future[Any]]) -> None:
    """Raise the error of the first failed program, if any. All futures must be done."""
    for program in programs:
        program.result()
