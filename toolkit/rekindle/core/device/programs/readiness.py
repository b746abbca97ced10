"""How far the programs that are made ahead of need are."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.concurrency.threads import soon


@dataclass(frozen=True, slots=True)
class Readiness:
    """The programs that are made ahead of need, counted at one moment.

    Attributes:
        ready: those that can be called.
        wanted: all of them.
        coming: those that are still being made; the others of `wanted` that are not ready have failed.
        compiled: whether any program had to be compiled so far; else all were loaded.
    """

    ready: int
    wanted: int
    coming: int
    compiled: bool

    @classmethod
    def of(cls, programs: Sequence[Future[None]], *, compiled: bool) -> "Readiness":
        """Count the programs whose futures these are. Any thread may ask."""
        done = [program for program in programs if program.done()]
        ready = sum(not program.cancelled() and not program.exception() for program in done)
        return cls(ready, len(programs), len(programs) - len(done), compiled)

    @property
    def said(self) -> str:
        """The words for programs that are still being made; nothing where none is."""
        if not self.coming:
            return ""
        made = "compiled" if self.compiled else "loaded"
        return f"{self.ready} of {self.wanted} programs ready, the others are being {made}"


def wait_for(programs: Sequence[Future[None]], report: Report) -> None:
    """Wait until all programs are ready, and report how many are; raise the error of one that failed at once."""
    for done, program in enumerate(programs):
        report(Progress("preparing programs", done, len(programs), "programs"))
        program.result()
    report(Progress("preparing programs", len(programs), len(programs), "programs"))


def followed(programs: Sequence[Future[None]], stored: Sequence["Future[None]"]) -> Feed[Progress]:
    """Return a feed of reports as of `wait_for`, closed when `stored` are done and all programs are ready or failed."""
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
    """Raise the error of the first program that failed, if there is one. None of them may still be being made."""
    for program in programs:
        program.result()
