"""The progress of a long operation: plain data, which is drawn by whoever waits for it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of one stage.

    Attributes:
        stage: the name of the stage, such as "loading weights"; each has a bar of its own.
        done: how much is done, in `unit`.
        total: how much there is to do, in `unit`; None while that is unknown.
        unit: "B" for bytes, or a word such as "programs", after which more may be said, which may change.
    """

    stage: str
    done: int
    total: int | None = None
    unit: str = "B"


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Ignore a report."""
