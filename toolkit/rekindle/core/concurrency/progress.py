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

    @property
    def amount(self) -> str:
        """The amount that is done, and the one that there is to do, in words; bytes in MB."""
        scale, unit = (1e6, "MB") if self.unit == "B" else (1, self.unit)
        total = "" if self.total is None else f" of {self.total / scale:.0f}"
        return f"{self.done / scale:.0f}{total} {unit}"

    def left(self, seconds: float) -> str | None:
        """Return how long the rest will take, in words, if it goes on as in the seconds so far.

        Only bytes come so evenly that it can be said, and not at once.
        """
        if self.unit != "B" or self.total is None or not 0 < self.done < self.total or seconds < 1:
            return None
        return f"about {seconds * (self.total - self.done) / self.done:.0f} s left"


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Ignore a report."""
