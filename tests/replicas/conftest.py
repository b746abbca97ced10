"""A Ray cluster that outlives the processes of a test, and tiny models for its replicas."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import ray.util

from rekindle.core.store.directory import cache_dir
from tests.waiting import PATIENCE

PORTS = range(6400, 9900)
"""Below those that Ray gives to its workers."""


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have replicas use the cache directory of this run, and Ray ask for no token, which it would keep at home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REKINDLE_CACHE", str(cache_dir()))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield


@pytest.fixture(scope="session")
def cluster(environment: None) -> Iterator[str]:
    """Start a cluster, and return its address. `ray stop` would end all clusters of this machine."""
    port = next(port for port in Random().sample(PORTS, 100) if _is_free(port))
    # Ray's sockets have names of at most 107 characters, which pytest's directories are too long for.
    temporary = Path("/tmp") / f"rekindle-ray-{os.getpid()}"
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    options = ["--include-dashboard=false", "--num-cpus=4", "--disable-usage-stats", f"--temp-dir={temporary}"]
    address = f"{ray.util.get_node_ip_address()}:{port}"
    with subprocess.Popen(
        [*command, *options], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as head:
        try:
            until = time.monotonic() + PATIENCE
            while _is_free(port):
                assert head.poll() is None, "the cluster has ended"
                assert time.monotonic() < until, "the cluster does not start"
                time.sleep(0.1)
            yield address
        finally:
            os.killpg(head.pid, signal.SIGKILL)  # asked to end, it would wait for its processes one by one
            shutil.rmtree(temporary, ignore_errors=True)


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((ray.util.get_node_ip_address(), port)) != 0
