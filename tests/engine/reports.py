"""What child processes report of a session that has answered, for tests that compare sessions."""

from typing import Any

import rekindle


def report_of(session: rekindle.Session, first: rekindle.Generation, again: rekindle.Generation) -> dict[str, Any]:
    """Return what a session took of caches and stores, given the first answer to a prompt and a later one."""
    return {
        "from disk": first.cached.disk,
        "cached": again.cached_tokens,
        "preemptions": session.stats.scheduler.preemptions,
        "compilations": session.stats.compilations,
        "loads": session.stats.loads,
        "repr": repr(session),
    }
