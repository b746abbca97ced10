"""What a long operation reports while it runs: plain data, drawn by whoever waits for it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of one stage.

    Attributes:
        stage: what is being done, in words, such as "loading weights"; one bar per stage.
        done: how much is done, in `unit`.
        total: how much there is to do, or None while that is unknown.
        unit: "B" for bytes, or a word such as "programs".
    """

    stage: str
    done: int
    total: int | None = None
    unit: str = "B"


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """A `Report` that shows nothing."""
