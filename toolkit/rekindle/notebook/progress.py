"""Progress as bars in the cell or terminal that waits, through tqdm."""

from types import TracebackType
from typing import Any

from rekindle.progress import Progress


class ProgressBars:
    """One bar at a time, drawn on the thread that calls `show`. Use it as a context manager.

    Args:
        enabled: False draws nothing.
    """

    def __init__(self, enabled: bool):
        self._enabled = enabled
        self._stage = ""
        self._bar: Any = None

    def show(self, progress: Progress) -> None:
        """Draw one report; a new stage ends the bar of the last."""
        if not self._enabled:
            return
        if progress.stage != self._stage:
            self._close()
            self._stage, self._bar = progress.stage, _bar(progress)
        self._bar.total = progress.total
        self._bar.update(progress.done - self._bar.n)

    def __enter__(self) -> "ProgressBars":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(progress: Progress) -> Any:
    from tqdm.auto import tqdm

    in_bytes = progress.unit == "B"
    unit = progress.unit if in_bytes else f" {progress.unit}"
    return tqdm(desc=progress.stage, total=progress.total, unit=unit, unit_scale=in_bytes, mininterval=0.2)
