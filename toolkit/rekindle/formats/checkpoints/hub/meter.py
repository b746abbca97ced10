"""The bytes of a download, from the progress bars of the hub's library."""

import time
from io import StringIO
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakSet

from rekindle.core.concurrency.progress import Progress, Report


class Abandoned(Exception):
    """Nobody waits for this download any more."""


class Meter:
    """Counter of the bytes of a download, for its reports.

    Args:
        stage: the name of the download, for reports.
        report: called with the bytes here, on the threads of the download too.
        here: the bytes from before.
        total: the bytes in all; None if unknown.

    Attributes:
        here: the bytes here.
        stage: the name of the download.
        report: called with the bytes here.
        moved: when a byte came last, by the monotonic clock.
        closed: whether threads of the download end at their next bytes.
    """

    def __init__(self, stage: str, report: Report, here: int = 0, total: int | None = None):
        self.here, self.stage, self.closed, self.moved = here, stage, False, time.monotonic()
        self.report, self._total, self._lock = report, total, Lock()

    def update(self, count: int | float | None = 1) -> None:
        """Count further bytes, as a bar of tqdm does; negative if bytes were discarded.

        Raises:
            Abandoned: the download is closed.
        """
        if self.closed:
            raise Abandoned
        with self._lock:
            self._reach(self.here + int(count or 0), self._total)

    def tell(self) -> None:
        """Report the bytes here."""
        self.report(Progress(self.stage, self.here, self._total))

    def bar_class(self) -> Any:
        """Return an invisible progress bar class for tqdm, whose furthest bar adds to the bytes here."""
        from tqdm.std import tqdm  # imported only for downloads

        meter, before = self, self.here
        base: Any = tqdm

        class DownloadBar(base):  # type: ignore[misc]
            monitor_interval = 0  # no redrawing thread
            _instances: ClassVar[Any] = WeakSet()  # apart from visible bars, which would leave a line for each of these

            def __init__(self, *args: Any, **kwargs: Any) -> None:  # tqdm's signature
                super().__init__(*args, **{**kwargs, "file": StringIO()})

            def update(self, n: float | None = 1) -> Any:
                if meter.closed:
                    raise Abandoned
                return super().update(n)

            def display(self, msg: str | None = None, pos: int | None = None) -> bool:
                if self.unit == "B" and before + self.n >= meter.here and not meter.closed:
                    with meter._lock:
                        total = meter._total or (before + int(self.total) if self.total else None)
                        meter._reach(max(meter.here, before + int(self.n)), total)
                return True

        return DownloadBar

    def _reach(self, here: int, total: int | None) -> None:
        self.here, self.moved = here, time.monotonic()
        self.report(Progress(self.stage, here, total))
