"""Replicas of a session on Ray: the `replicas` argument of `open`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rekindle.core.errors import ConfigError
from rekindle.core.keywords import hinted
from rekindle.settings.engine import RemoteReplicas


@hinted
@dataclass(frozen=True, slots=True)
class Ray(RemoteReplicas):
    """Replicas in processes of a Ray cluster: `await rekindle.open(model, replicas=rekindle.Ray(2))`.

    Each replica is a Ray actor with a whole engine: its own weights, pages and programs. The session routes requests to
    replicas as it does to lanes in this process, by `route`. If a replica dies, Ray restarts it, and its requests
    resume on another replica with the same tokens. A request fails with `ReplicaLost` after four losses. Rekindle and
    the files of the model must be present on the nodes of the actors.

    With `keep=True`, replicas outlive the session and its process. The next `open` of the same model with the same
    settings attaches to them by name, warm, and several sessions can share them. `rekindle replicas` lists and stops
    them. They need a cluster started separately, as by `ray start --head`.

    Attributes:
        count: number of replicas. Default 1.
        address: address of the cluster, "host:port", or "auto" for the cluster running on this machine. None (default)
            takes the environment variable RAY_ADDRESS, else "auto", and starts a cluster for the life of this process
            if none runs. A process connected to a cluster stays connected.
        resources: resources reserved in Ray for each replica, by name, such as {"GPU": 1} or {"CPU": 4}. Default none.
            A replica without a reserved GPU sees no GPU.
        keep: keep the replicas after the session. By default they end with the session, and with this process at the
            latest.
        name: name of the replicas, to be followed by their numbers. None (default) derives a name from the model and
            the settings. It is required with `keep=True` if a setting is a function, since functions cannot be
            compared.

    Raises:
        ConfigError: an argument has an invalid value.
    """

    count: int = 1
    address: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    keep: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        _check("count", self.count, _is_count(self.count), "an integer of at least 1")
        _check("address", self.address, self.address is None or _is_text(self.address), "a str such as 'auto'")
        _check("resources", self.resources, _are_amounts(self.resources), "amounts by name, such as {'GPU': 1}")
        _check("keep", self.keep, isinstance(self.keep, bool), "True or False")
        _check("name", self.name, self.name is None or _is_text(self.name), "a str that is not empty")


def _check(name: str, value: object, right: bool, expected: str) -> None:
    if not right:
        raise ConfigError(f"{name} of rekindle.Ray must be {expected}, got {value!r:.80}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_amounts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        _is_text(name) and isinstance(amount, int | float) and not isinstance(amount, bool) and amount >= 0
        for name, amount in value.items()
    )
