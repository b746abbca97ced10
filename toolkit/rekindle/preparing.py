"""Programs on their way, as progress for whoever waits for them."""

from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any

from rekindle.concurrency.feed import Feed
from rekindle.concurrency.progress import Progress, Report
from rekindle.concurrency.threads import soon

Programs = Sequence[Future[Any]]


def wait_for(programs: Programs, report: Report) -> None:
    """Wait until all are ready; the error of one that failed is raised at once."""
    for done, program in enumerate(programs):
        report(Progress("preparing programs", done, len(programs), "programs"))
        program.result()
    report(Progress("preparing programs", len(programs), len(programs), "programs"))


def followed(programs: Programs, stored: "Future[None]") -> Feed[Progress]:
    """The same without waiting: a feed that is closed when all are ready and `stored` is done, or have failed."""
    feed: Feed[Progress] = Feed()

    def follow() -> None:
        try:
            wait_for(programs, feed.put)
        except Exception:
            wait(programs)
        wait([stored])
        feed.close()

    soon(follow, "preparing")
    return feed


def raise_first(programs: Programs) -> None:
    """Raise the error of one that failed, if there is one; all are over."""
    for program in programs:
        program.result()
