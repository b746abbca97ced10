"""Check the engine at the end of tests of sessions."""

from rekindle.errors import BatchFailed
from rekindle.session.session import Session


def reason(answer: object) -> object:
    """Return why a batch failed, and every other answer as it is."""
    return answer.__cause__ if isinstance(answer, BatchFailed) else answer


def assert_all_is_free(session: Session) -> None:
    """Check that no request runs or waits, and that every page is free."""
    stats = session.stats.scheduler
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)
