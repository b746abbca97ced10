"""Joining `jax.distributed`, so that the death of one process is no end for the leader, and a follower can tell of it.

A process whose connection to jax's coordinator breaks is aborted at once, without a word. So a follower reaches the
coordinator, which the leader has, through a door of its own that stays open when the leader is gone.
"""

import socket
import threading
from contextlib import suppress

import jax
from jax._src import xla_bridge

from rekindle.core.errors import ConfigError

SECONDS = 60
"""How long processes wait for each other once all of them have been told to join."""
CHUNK = 1 << 16


def require_untouched() -> None:
    """Check that jax has not begun to use this process's devices.

    Raises:
        ConfigError: it has.
    """
    if jax.distributed.is_initialized():
        raise ConfigError(
            "this process is in a group of jax.distributed already, and can join only once: use the rekindle.Hosts by "
            "which it has joined, or restart it (in a notebook, its kernel)"
        )
    if xla_bridge.backends_are_initialized():
        raise ConfigError(
            "hosts have to be joined before jax first uses a device, and it has used one here: restart this process "
            "(in a notebook, its kernel), and open the session with hosts before any other computation with jax"
        )


def lead(host: str, port: int, processes: int) -> None:
    """Start the coordinator, and join as its first process; returns when all have joined.

    Raises:
        ConfigError: jax could not do it.
    """
    _join(f"{host}:{port}", processes, 0, f"{host}:{port}")


def follow(host: str, port: int, processes: int, index: int) -> None:
    """Join as another process; returns when all have joined; raises as `lead`."""
    _join(_door_to(host, port), processes, index, None)


def free_port(host: str) -> int:
    """Return a port of this machine that nobody listens at."""
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
        jax.devices()  # processes tell each other of their devices now, and wait for each other
    except RuntimeError as error:
        raise ConfigError(f"the processes could not join by jax.distributed at {coordinator}: {error}") from error


def _door_to(host: str, port: int) -> str:
    """Return an address of this machine that leads to another, and is not closed when that one is gone."""
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(server, (host, port)), name="rekindle-door", daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def _serve(server: socket.socket, there: tuple[str, int]) -> None:
    while True:
        near, _ = server.accept()
        try:
            far = socket.create_connection(there)
        except OSError:  # jax tries again
            near.close()
            continue
        for source, sink, ends in ((near, far, True), (far, near, False)):
            threading.Thread(target=_pump, args=(source, sink, ends), name="rekindle-door", daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, ends: bool) -> None:
    """Pass bytes on.

    Args:
        ends: whether the end of the source is the end of the sink.
    """
    with suppress(OSError):
        while chunk := source.recv(CHUNK):
            sink.sendall(chunk)
    if ends:
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
