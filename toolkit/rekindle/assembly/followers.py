"""Interface to the follower processes of a model; `rekindle.hosts` implements it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, Protocol

import jax

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.core.concurrency.progress import Report
from rekindle.core.device.orders import Order, Use
from rekindle.formats.checkpoints.weights import Weights
from rekindle.settings.engine import Settings


class Followers(AbstractContextManager[Any], Protocol):
    """The follower processes of one session, released at the end of a `with` block: see `rekindle.hosts`."""

    def open_model(
        self, model: str | PathLike[str], revision: str | None, settings: Settings, blueprint: Blueprint
    ) -> None:
        """Let all followers open a model with fully resolved settings."""

    def load_weights(self, weights: Weights, read_shard: Callable[[], list[jax.Array]]) -> list[jax.Array]:
        """Let all followers read weights while this process reads its own shard."""

    def wait(self, report: Report) -> None:
        """Wait until all followers have opened the model."""

    def send(self, order: Order | Use) -> None:
        """Send an order to all followers. Never blocks."""

    async def watch(self) -> None:
        """Wait for the loss of a follower, and raise it."""

    def reason(self, error: BaseException) -> BaseException:
        """Return the loss of a follower if it made the engine fail, else the error itself."""


class FollowerHosts(Protocol):
    """The hosts of a session; see `rekindle.Hosts`."""

    def check(self, settings: Settings, family: object) -> None:
        """Check the settings of a session over these hosts, as far as possible before they have joined."""

    def group(self, report: Report) -> Followers:
        """Return the followers for a session; the first call waits until they have joined."""
