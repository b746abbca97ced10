"""Progress of a long operation, as plain data; the waiting caller draws it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """A report on one stage of an operation.

    Attributes:
        stage: name of the stage, such as "loading weights"; each stage has a progress bar.
        done: amount done, in `unit`.
        total: amount in all, in `unit`; None while unknown.
        unit: "B" for bytes, or a word such as "programs", optionally followed by changing text.
    """

    stage: str
    done: int
    total: int | None = None
    unit: str = "B"

    @property
    def amount(self) -> str:
        """The amounts done and in all, as text; bytes in MB."""
        scale, unit = (1e6, "MB") if self.unit == "B" else (1, self.unit)
        total = "" if self.total is None else f" of {self.total / scale:.0f}"
        return f"{self.done / scale:.0f}{total} {unit}"

    def remaining(self, seconds: float) -> str | None:
        """Format the remaining time, extrapolated from the seconds so far; None if it cannot be estimated.

        Only bytes progress evenly enough for an estimate, and not in the first second.
        """
        if self.unit != "B" or self.total is None or not 0 < self.done < self.total or seconds < 1:
            return None
        return f"about {seconds * (self.total - self.done) / self.done:.0f} s left"


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Ignore a report."""
