"""The only module to import Ray: the cluster, and its actors for replicas."""

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
from rekindle.replicas.ray import Ray

NAMESPACE = "rekindle"
"""Ray's namespace for the names of replicas."""
FORWARDED_PREFIXES = ("REKINDLE_", "JAX_", "XLA_")
"""Prefixes of environment variables passed on to replicas."""
WAIT_SECONDS = 0.2
PROBE_SECONDS = 10.0
LEAVE_SECONDS = 0.2
_local_cluster = threading.Event()
"""Set once this process has started a local cluster, which ends with the process."""
MAX_CONCURRENCY = 1000
"""Maximum number of concurrent calls of an actor; each session keeps one open."""
HOW_TO_KEEP = (
    "replicas that outlive this process need a lasting cluster: start one by `ray start --head`, or give the address "
    "of one to rekindle.Ray(address=...)"
)


def ray() -> Any:
    """Import and return the module ray.

    Raises:
        ConfigError: Ray is not installed.
    """
    try:
        import ray as module
    except ImportError as error:
        raise not_installed("rekindle.Ray", "ray", error) from error
    return module


def connect(address: str | None, *, lasting: bool) -> None:
    """Connect this process to a cluster, unless it is connected already.

    Args:
        address: as in `rekindle.Ray`.
        lasting: whether the cluster must outlive this process.

    Raises:
        ConfigError: there is no such cluster, or Ray is not installed.
    """
    module = ray()
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            f"address {address!r} is one of Ray Client, which cannot stream: give the address of the cluster itself, "
            "host:port, from a machine of the cluster"
        )
    if module.is_initialized():
        if lasting and _local_cluster.is_set():
            raise ConfigError(f"this process is connected to a Ray cluster that ends with it: {HOW_TO_KEEP}")
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": NAMESPACE}
    target = address or os.environ.get("RAY_ADDRESS")
    try:
        _probe(target or "auto")
        module.init(target or "auto", **quiet)
    except ConnectionError as error:
        if target is not None:
            raise ConfigError(f"no Ray cluster can be reached at {target!r}: {error}") from error
        if lasting:
            raise ConfigError(f"no Ray cluster runs here: {HOW_TO_KEEP}") from error
        with _no_reports():
            module.init("local", include_dashboard=False, **quiet)
            _local_cluster.set()


def find(name: str) -> Any | None:
    """Return the replica with a name, or None."""
    try:
        return ray().get_actor(name, NAMESPACE)
    except ValueError:
        return None


def start(kind: type, name: str, settings: Ray, *arguments: Any) -> Any:
    """Start a replica, or return the replica of this name, if another process has started it meanwhile.

    Args:
        kind: the class of the actor.
        name: the name of the replica.
        settings: the lifetime and the resources of the replica.
        *arguments: the arguments of the class.
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
            max_task_retries=0,  # a retry would emit its tokens a second time
            max_concurrency=MAX_CONCURRENCY,
            num_cpus=cpus,
            num_gpus=gpus,
            memory=memory,
            resources=others,
            runtime_env={
                "env_vars": {name: value for name, value in os.environ.items() if name.startswith(FORWARDED_PREFIXES)}
            },
        )
        .remote(*arguments)
    )


def kill(actor: Any) -> None:
    """Kill the process of a replica, unless this process has left the cluster."""
    if ray().is_initialized():
        ray().kill(actor, no_restart=True)


def leave() -> None:
    """End this replica's process after a short delay; Ray starts another one."""
    threading.Timer(LEAVE_SECONDS, os._exit, (1,)).start()


def warn_of_shortage(settings: Ray) -> None:
    """Warn if the cluster has too few resources, since Ray silently waits for more."""
    available = ray().cluster_resources()
    for name, amount in settings.resources.items():
        if settings.count * amount > available.get(name, 0):
            warnings.warn(
                f"the Ray cluster has {available.get(name, 0):g} {name}, and {settings.count} replicas take "
                f"{settings.count * amount:g}: open waits until it has more",
                stacklevel=2,
            )


def replica_names() -> list[str]:
    """Return the names of all replicas."""
    actors = ray().util.list_named_actors(all_namespaces=True)
    return sorted(actor["name"] for actor in actors if actor["namespace"] == NAMESPACE)


def put(value: Any) -> Any:
    """Put a value into the cluster's store once, and return a reference for calls."""
    return ray().put(value)


def answers(
    calls: Sequence[Any], report: Callable[[int], None] = lambda done: None, seconds: float = math.inf
) -> list[Any]:
    """Wait for calls and return their results, in order; blocks.

    Args:
        calls: the references from Ray.
        report: called repeatedly with the number of finished calls; its exceptions end the wait.
        seconds: the timeout for all calls together.

    Raises:
        TimeoutError: the calls took longer.
        ReplicaLost: a replica is gone.
        Others: the error of a call.
    """
    module, waiting, until = ray(), list(calls), monotonic() + seconds
    while waiting:
        if monotonic() > until:
            raise TimeoutError
        report(len(calls) - len(waiting))
        done, waiting = module.wait(waiting, num_returns=len(waiting), timeout=WAIT_SECONDS)
        with rekindle_errors():
            module.get(done)  # raises immediately for a failed call
    report(len(calls))
    with rekindle_errors():
        return list(module.get(list(calls)))


def _probe(address: str) -> None:
    """Raise ConnectionError if nothing listens at "host:port", since Ray itself retries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), PROBE_SECONDS).close()
        except OSError as error:
            raise ConnectionError(str(error)) from error


@contextmanager
def rekindle_errors() -> Iterator[None]:
    """Translate errors of Ray: raise the exception of a replica itself, and `ReplicaLost` for a lost replica."""
    exceptions = ray().exceptions
    try:
        yield
    except exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else ReplicaLost(str(error))) from None
    except exceptions.RayError as error:
        raise ReplicaLost(f"a replica is gone: {_first_line(error)}") from error


def is_over(error: BaseException) -> bool:
    """Return True if a `ReplicaLost` is final: the replica will not return."""
    return isinstance(error.__cause__, ray().exceptions.ActorDiedError)


def is_lost(error: BaseException) -> bool:
    """Return True if an error means a lost replica, and not a failure to open its model."""
    return isinstance(error, ReplicaLost)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _amounts(resources: Mapping[str, float]) -> tuple[float, float, float | None, dict[str, float]]:
    """Return CPUs, GPUs, memory in bytes, and other resources, since Ray takes the first three separately."""
    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU", "memory")}
    return resources.get("CPU", 0), resources.get("GPU", 0), resources.get("memory"), others


@contextmanager
def _no_reports() -> Iterator[None]:
    """Disable Ray's usage reports for a cluster started in this block, unless the environment has a setting."""
    name = "RAY_USAGE_STATS_ENABLED"
    if name in os.environ:
        yield
        return
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]
