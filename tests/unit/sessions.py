"""What tests of sessions ask of the engine in the end."""

from rekindle.session.session import Session


def assert_all_is_free(session: Session) -> None:
    """No request runs or waits, and no page is taken."""
    stats = session.stats.scheduler
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)
