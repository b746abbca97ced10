"""A Ray cluster that outlives the processes of a test."""

from collections.abc import Iterator

import pytest

from rekindle.core.store.directory import cache_dir
from rekindle.testing.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Start a cluster, and return its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REKINDLE_CACHE", str(cache_dir()))  # which replicas then use too
        patch.setenv("RAY_AUTH_MODE", "disabled")  # a token would be kept at home
        started = Cluster()
        yield started.address
        started.stop()
