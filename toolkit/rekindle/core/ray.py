"""The replicas of a session on Ray, as `open` takes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rekindle.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Ray:
    """Replicas in processes of a Ray cluster: `await rekindle.open(model, replicas=rekindle.Ray(2))`.

    Each replica is an actor of Ray, and a whole engine with weights, pages and programs of its own. The session sends
    it requests as it does to a lane of this process, by the same `route`. If a replica dies, Ray starts it again, and
    its requests go on in another one with the same tokens; they fail with `ReplicaLost` if that happens to them four
    times. Rekindle and the model's files have to be where the actors are.

    Kept replicas outlive the session and its process. The next `open` of the same model with the same settings finds
    them by their names, warm; several sessions can share them. `rekindle replicas` lists and stops them. They need a
    cluster that is started apart, as by `ray start --head`.

    Attributes:
        count: how many replicas there are.
        address: of the cluster, "host:port", or "auto" for the one that runs here. None is the environment variable
            RAY_ADDRESS, else "auto", and where no cluster runs, one that ends with this process. A process that is
            connected to a cluster stays so.
        resources: what Ray sets aside for each replica, by name, such as {"GPU": 1} or {"CPU": 4}. None of it is set
            aside by default, and without a GPU set aside a replica sees none.
        keep: whether they stay after the session. Else they end with it, and at the latest with this process.
        name: of the replicas, followed by their numbers. None makes one of the model and the settings; it is needed
            for kept ones if a setting is a function, for functions cannot be compared.

    Raises:
        ConfigError: an argument is none of the accepted values.
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
