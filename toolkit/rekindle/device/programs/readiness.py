"""How far the programs that are made ahead of need are."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass


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
