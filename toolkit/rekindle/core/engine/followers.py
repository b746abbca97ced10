"""The other processes that hold shares of a model, as an engine sees them; `rekindle.hosts` provides them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, Protocol

import jax

from rekindle.core.checkpoints.weights import Weights
from rekindle.core.concurrency.progress import Report
from rekindle.core.config import Settings
from rekindle.core.device.orders import Order, Use
from rekindle.core.engine.loading.blueprint import Blueprint


class Followers(AbstractContextManager[Any], Protocol):
    """The follower processes of one session, released by a `with` statement. See `rekindle.hosts.follower_group`."""

    def open_model(
        self, model: str | PathLike[str], revision: str | None, settings: Settings, blueprint: Blueprint
    ) -> None:
        """Have all followers open a model with settings that leave nothing to choose."""

    def load_weights(self, weights: Weights, read: Callable[[], list[jax.Array]]) -> list[jax.Array]:
        """Have all followers read weights, while this process reads its own share."""

    def wait(self, report: Report) -> None:
        """Wait until all followers have opened the model."""

    def send(self, order: Order | Use) -> None:
        """Send an order to all followers; never block."""

    async def watch(self) -> None:
        """Wait for the loss of a follower, and raise it."""

    def reason(self, error: BaseException) -> BaseException:
        """Return the loss of a follower, if that is why the engine failed, else the error."""


class FollowerHosts(Protocol):
    """The hosts of a session; see `rekindle.Hosts`."""

    def check(self, settings: Settings, family: object) -> None:
        """Check that a session can be opened over these hosts, as far as that is known before they have come."""

    def group(self, report: Report) -> Followers:
        """Return the followers for a session; the first time, wait until they have come."""
