"""A Ray cluster of this machine for tests and tutorials, which outlives the processes that use it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random

PORTS = range(7000, 8000)
"""Beside all those that Ray uses by itself."""
START_SECONDS = 120.0


class Cluster:
    """A cluster that runs until `stop`, beside any other one; `ray stop` would end them all. Ray must be installed.

    Args:
        cpus: how many CPUs it says that it has.

    Raises:
        TimeoutError: it does not start.

    Attributes:
        address: of it, as `rekindle.Ray` takes it.
    """

    def __init__(self, cpus: int = 4):
        import ray.util

        host = ray.util.get_node_ip_address()
        port = next(port for port in Random().sample(PORTS, 100) if not _listens(host, port))
        self.address = f"{host}:{port}"
        # Names of sockets have 107 characters at most, and a directory for temporary files may have more.
        self._directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
        options = [f"--num-cpus={cpus}", f"--temp-dir={self._directory}"]
        quiet = ["--include-dashboard=false", "--disable-usage-stats"]
        self._head = subprocess.Popen(
            [*command, *options, *quiet],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + START_SECONDS
        while not _listens(host, port):
            if self._head.poll() is not None or time.monotonic() > until:
                self.stop()
                raise TimeoutError(f"no Ray cluster has started at {self.address}: is ray installed beside rekindle?")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it with all that runs in it."""
        with suppress(ProcessLookupError):
            os.killpg(self._head.pid, signal.SIGKILL)  # asked to end, it would wait for its processes one by one
        self._head.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def _listens(host: str, port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((host, port)) == 0
