"""An open model of a pool: its users, and the time and the order of its closing."""

from dataclasses import dataclass
from math import inf

from rekindle.server.models.served import ServedModel


@dataclass(slots=True)
class OpenModel:
    """An open model of a pool.

    Attributes:
        model: the model.
        share: the part of the devices' memory.
        keep_alive: the seconds until the model closes when idle.
        users: the number of requests in service.
        idle_since: the time of the last end of a request, on the clock of the event loop.
        leaving: the number of requests for other models that wait for the last user, to close the model.
    """

    model: ServedModel
    share: float
    keep_alive: float
    users: int = 0
    idle_since: float = 0.0
    leaving: int = 0

    @property
    def is_usable(self) -> bool:
        """True if new requests may use the model."""
        return not self.leaving and self._works

    @property
    def has_new_weights(self) -> bool:
        """True if an administrator has replaced the weights, which get lost when the model closes."""
        return self._works and self.model.session.weights_version > 0

    @property
    def order(self) -> tuple[bool, bool, bool, bool, float]:
        """The place in the order of leaving.

        Models with new weights come last. Idle models come before busy ones, failed ones first, and no second busy one
        before the first has left.
        """
        return self.has_new_weights, self.users > 0, self._works, not self.leaving, self.idle_since

    @property
    def end(self) -> float:
        """The time to close if no request comes, on the clock of the event loop; infinity for never.

        A sleeping model stays: a request would open a closed one awake.
        """
        stays = self.users or self.leaving or (self._works and self.model.session.asleep) or self.has_new_weights
        return inf if stays else self.idle_since + self.keep_alive

    @property
    def _works(self) -> bool:
        """True unless the session has failed."""
        return self.model.session.error is None
