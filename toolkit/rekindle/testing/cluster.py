"""Local Ray cluster for tests and tutorials; it outlives its client processes."""

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
"""Ports outside the ranges of Ray itself."""
START_SECONDS = 120.0


class Cluster:
    """A cluster running until `stop`, independent of other clusters. Ray must be installed.

    Args:
        cpus: the number of CPUs, as a resource of Ray.

    Raises:
        TimeoutError: the cluster does not start in time.

    Attributes:
        address: the address for `rekindle.Ray`.
    """

    def __init__(self, cpus: int = 4):
        import ray.util

        host = ray.util.get_node_ip_address()
        port = next(port for port in Random().sample(PORTS, 100) if not _listens(host, port))
        self.address = f"{host}:{port}"
        # Socket names have at most 107 characters, and the default temporary directory may be longer.
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
                raise TimeoutError(f"no Ray cluster has started at {self.address}: is ray installed with rekindle?")
            time.sleep(0.1)

    def stop(self) -> None:
        """Kill the cluster with all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._head.pid, signal.SIGKILL)  # on SIGTERM it waits for its processes one by one
        self._head.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def _listens(host: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0
