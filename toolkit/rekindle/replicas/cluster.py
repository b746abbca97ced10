"""Ray as Rekindle uses it: a cluster, and the actors in it that are replicas. Nothing else imports Ray."""

import logging
import math
import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rekindle.core.errors import ConfigError, ReplicaLost, not_installed
from rekindle.core.ray import Ray

NAMESPACE = "rekindle"
"""The namespace of Ray that has the names of replicas."""
FORWARDED = ("REKINDLE_", "JAX_", "XLA_")
"""The beginnings of the names of environment variables that replicas have too."""
WAIT_SECONDS = 0.2
KNOCK_SECONDS = 10.0
LEAVE_SECONDS = 0.2
_started = threading.Event()
"""Set once this process has started a cluster, which ends with it."""
AT_ONCE = 1000
"""The calls that an actor answers at once; each session has one that lasts."""
HOW_TO_KEEP = (
    "replicas that outlive this process need a cluster that does: start one by `ray start --head`, or give the address "
    "of one to rekindle.Ray(address=...)"
)


def ray() -> Any:
    """Return the module ray.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import ray as module
    except ImportError as error:
        raise not_installed("rekindle.Ray", "ray", error) from error
    return module


def connect(address: str | None, *, lasting: bool) -> None:
    """Connect this process to a cluster, unless it is connected to one.

    Args:
        address: as `rekindle.Ray` has it.
        lasting: whether it has to outlive this process.

    Raises:
        ConfigError: there is no such cluster, or Ray is not installed.
    """
    module = ray()
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            f"address {address!r} is of Ray Client, which streams nothing: give the address of the cluster itself, "
            "host:port, from a machine that is part of it"
        )
    if module.is_initialized():
        if lasting and _started.is_set():
            raise ConfigError(f"this process is connected to a Ray cluster of its own: {HOW_TO_KEEP}")
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": NAMESPACE}
    asked = address or os.environ.get("RAY_ADDRESS")
    try:
        _knock(asked or "auto")
        module.init(asked or "auto", **quiet)
    except ConnectionError as error:
        if asked is not None:
            raise ConfigError(f"no Ray cluster can be reached at {asked!r}: {error}") from error
        if lasting:
            raise ConfigError(f"no Ray cluster runs here: {HOW_TO_KEEP}") from error
        with _no_reports():
            module.init("local", include_dashboard=False, **quiet)
            _started.set()


def find(name: str) -> Any | None:
    """Return the replica of a name; None if there is none."""
    try:
        return ray().get_actor(name, NAMESPACE)
    except ValueError:
        return None


def start(kind: type, name: str, settings: Ray, *arguments: Any) -> Any:
    """Start a replica, or return the one of that name that another process started meanwhile.

    Args:
        kind: its class.
        settings: whether it lasts, and what is set aside for it.
        *arguments: those of its class.
    """
    cpus, gpus, memory, others = _amounts(settings.resources)
    return (
        ray()
        .remote(kind)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached" if settings.keep else None,
            get_if_exists=settings.keep,
            max_restarts=-1,
            max_task_retries=0,  # what was begun again would give its tokens a second time
            max_concurrency=AT_ONCE,
            num_cpus=cpus,
            num_gpus=gpus,
            memory=memory,
            resources=others,
            runtime_env={"env_vars": {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}},
        )
        .remote(*arguments)
    )


def kill(actor: Any) -> None:
    """End the process of a replica now, unless this process has left the cluster."""
    if ray().is_initialized():
        ray().kill(actor, no_restart=True)


def leave() -> None:
    """End this process, a replica's, a little later; Ray starts another one."""
    threading.Timer(LEAVE_SECONDS, os._exit, (1,)).start()


def warn_of_shortage(settings: Ray) -> None:
    """Warn of what the cluster has too little of: Ray waits for more, in silence."""
    there = ray().cluster_resources()
    for name, amount in settings.resources.items():
        if settings.count * amount > there.get(name, 0):
            warnings.warn(
                f"the Ray cluster has {there.get(name, 0):g} {name}, and {settings.count} replicas take "
                f"{settings.count * amount:g}: open waits until it has more",
                stacklevel=2,
            )


def named() -> list[str]:
    """Return the names of all replicas."""
    actors = ray().util.list_named_actors(all_namespaces=True)
    return sorted(actor["name"] for actor in actors if actor["namespace"] == NAMESPACE)


def stored(value: Any) -> Any:
    """Put a value into the cluster's store once, and return what stands for it in calls."""
    return ray().put(value)


def answers(
    calls: Sequence[Any], look: Callable[[int], None] = lambda done: None, seconds: float = math.inf
) -> list[Any]:
    """Return the answers of calls, in order; blocks.

    Args:
        calls: what Ray returned for each.
        look: told again and again how many have answered; what it raises ends the wait.
        seconds: how long they may take together.

    Raises:
        TimeoutError: they took longer.
        ReplicaLost: a replica is gone.
        Others: what a call raised.
    """
    module, waiting, until = ray(), list(calls), monotonic() + seconds
    while waiting:
        if monotonic() > until:
            raise TimeoutError
        look(len(calls) - len(waiting))
        done, waiting = module.wait(waiting, num_returns=len(waiting), timeout=WAIT_SECONDS)
        with own_errors():
            module.get(done)  # which raises at once for one that failed
    look(len(calls))
    with own_errors():
        return list(module.get(list(calls)))


def _knock(address: str) -> None:
    """Raise ConnectionError if nothing listens at an address of the form "host:port", which Ray tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), KNOCK_SECONDS).close()
        except OSError as error:
            raise ConnectionError(str(error)) from error


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise errors of Ray as Rekindle's: what was raised in a replica, and `ReplicaLost` if that is gone."""
    exceptions = ray().exceptions
    try:
        yield
    except exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else ReplicaLost(str(error))) from None
    except exceptions.RayError as error:
        raise ReplicaLost(f"a replica is gone: {_first_line(error)}") from error


def is_over(error: BaseException) -> bool:
    """Tell whether a `ReplicaLost` says that the replica will not be there again."""
    return isinstance(error.__cause__, ray().exceptions.ActorDiedError)


def is_lost(error: BaseException) -> bool:
    """Tell whether a replica is gone; else it could not open its model."""
    return isinstance(error, ReplicaLost)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _amounts(resources: Mapping[str, float]) -> tuple[float, float, float | None, dict[str, float]]:
    """Return what is set aside of CPUs, GPUs and bytes of memory, which Ray takes apart, and of others."""
    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU", "memory")}
    return resources.get("CPU", 0), resources.get("GPU", 0), resources.get("memory"), others


@contextmanager
def _no_reports() -> Iterator[None]:
    """Have a cluster that is started meanwhile not report its use to Ray's makers, unless the environment says so."""
    name = "RAY_USAGE_STATS_ENABLED"
    if name in os.environ:
        yield
        return
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]
