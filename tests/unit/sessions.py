"""Check the engine at the end of tests of sessions."""

from rekindle.session.session import Session


def assert_all_is_free(session: Session) -> None:
    """Check that no request runs or waits, and that every page is free."""
    stats = session.stats.scheduler
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)
