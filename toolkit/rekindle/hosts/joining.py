"""Joining `jax.distributed`, so that the leader survives a lost process, and a follower can report a lost leader.

Jax aborts a process immediately and silently when its connection to the coordinator breaks. The leader runs the
coordinator. A follower therefore connects to it through a local proxy, which stays open after the leader's end.
"""

import socket
import threading
from contextlib import suppress

import jax
from jax._src import xla_bridge

from rekindle.core.errors import ConfigError

SECONDS = 60
"""Seconds for all processes to join."""
CHUNK = 1 << 16


def require_untouched() -> None:
    """Raise if jax has used this process's devices.

    Raises:
        ConfigError: jax has used a device or joined a group already.
    """
    if jax.distributed.is_initialized():
        raise ConfigError(
            "this process is already in a group of jax.distributed, and can join only once: use the rekindle.Hosts of "
            "that group, or restart this process (in a notebook, its kernel)"
        )
    if xla_bridge.backends_are_initialized():
        raise ConfigError(
            "hosts have to be joined before jax first uses a device, and it has used one here: restart this process "
            "(in a notebook, its kernel), and open the session with hosts before any other computation with jax"
        )


def lead(host: str, port: int, processes: int) -> None:
    """Start the coordinator and join as process 0; returns when all have joined.

    Raises:
        ConfigError: the processes could not join.
    """
    _join(f"{host}:{port}", processes, 0, f"{host}:{port}")


def follow(host: str, port: int, processes: int, index: int) -> None:
    """Join as process `index`; returns when all have joined; raises as `lead`."""
    _join(_proxy_to(host, port), processes, index, None)


def free_port(host: str) -> int:
    """Return a free port of this machine."""
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _join(coordinator: str, processes: int, index: int, bind: str | None) -> None:
    jax.config.update("jax_enable_recoverability", True)
    if "jax_enable_preemption_service" in jax.config.values:  # it would take SIGTERM from the user
        jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            index,
            cluster_detection_method="deactivate",
            initialization_timeout=SECONDS,
            coordinator_bind_address=bind,
        )
        jax.devices()  # exchanges the devices of all processes now
    except RuntimeError as error:
        raise ConfigError(f"the processes could not join by jax.distributed at {coordinator}: {error}") from error


def _proxy_to(host: str, port: int) -> str:
    """Start a proxy to another machine and return its local address; it stays open when the other end is gone."""
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(server, (host, port)), name="rekindle-proxy", daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def _serve(server: socket.socket, target: tuple[str, int]) -> None:
    while True:
        near, _ = server.accept()
        try:
            far = socket.create_connection(target)
        except OSError:  # jax tries again
            near.close()
            continue
        for source, sink, ends in ((near, far, True), (far, near, False)):
            threading.Thread(target=_pump, args=(source, sink, ends), name="rekindle-proxy", daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, ends: bool) -> None:
    """Copy bytes from one socket to another.

    Args:
        source: the socket to read.
        sink: the socket to write.
        ends: whether the end of the source closes the sink.
    """
    with suppress(OSError):
        while chunk := source.recv(CHUNK):
            sink.sendall(chunk)
    if ends:
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
