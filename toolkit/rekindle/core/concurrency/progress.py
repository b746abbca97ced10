"""Progress of a long operation, as plain data; the waiting caller draws it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SLOW_SECONDS: Final = 10.0
"""The time after which even a few bytes are a basis for an estimate."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A report on one stage of an operation.

    Attributes:
        stage: name of the stage, such as "loading weights"; each stage has a progress bar.
        done: amount done, in `unit`.
        total: amount in all, in `unit`; None if unknown.
        unit: "B" for bytes, or a word like "programs", optionally followed by changing text; "" without
            parts of a stage.
    """

    stage: str
    done: int
    total: int | None = None
    unit: str = "B"

    @property
    def amount(self) -> str:
        """The amounts done and in all, as text; bytes in MB; empty for a stage without parts."""
        if not self.unit:
            return ""
        scale, unit = (1e6, "MB") if self.unit == "B" else (1, self.unit)
        total = "" if self.total is None else f" of {self.total / scale:.0f}"
        return f"{self.done / scale:.0f}{total} {unit}"

    def remaining(self, seconds: float) -> str | None:
        """Format the remaining time, extrapolated from the seconds so far; None without a basis.

        Only bytes progress evenly enough. An estimate needs a second, and one percent of the bytes or ten seconds.
        """
        if self.unit != "B" or self.total is None or not 0 < self.done < self.total or seconds < 1:
            return None
        if seconds < SLOW_SECONDS and 100 * self.done < self.total:
            return None
        return f"about {duration_text(seconds * (self.total - self.done) / self.done)} left"


def duration_text(expected: float) -> str:
    """Format an estimated duration, coarse enough not to flicker."""
    for unit, size in (("h", 3600), ("min", 60)):
        if expected >= 2 * size:
            return f"{expected / size:.0f} {unit}"
    return f"{expected:.0f} s"


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Ignore a report."""
