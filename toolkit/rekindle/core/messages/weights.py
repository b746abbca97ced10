"""Exchange of weights."""

from dataclasses import dataclass
from typing import Any

from rekindle.core.markup import quantity
from rekindle.core.messages.message import Message


@dataclass(frozen=True, slots=True)
class NewWeights(Message):
    """A caller asks for new weights, for all requests not started yet.

    Attributes:
        ticket: the number shared by the request and its answer.
        weights: device arrays, in the argument order of programs; for a router, one list for each lane.
        fail: end running requests with an error, rather than let each finish on the old weights.
    """

    ticket: int
    weights: list[Any]
    fail: bool

    def __str__(self) -> str:
        return f"NewWeights: {quantity(len(self.weights), 'array')}"


@dataclass(frozen=True, slots=True)
class KeepWeights(Message):
    """A caller withdraws a `NewWeights`, unless the weights are in use already."""

    ticket: int


@dataclass(frozen=True, slots=True)
class WeightsKept(Message):
    """The old weights stay in use: the `NewWeights` was withdrawn in time."""

    ticket: int


@dataclass(frozen=True, slots=True)
class UseWeights(Message):
    """Use these weights for every later plan."""

    ticket: int
    weights: list[Any]

    def __str__(self) -> str:
        return f"UseWeights: {quantity(len(self.weights), 'array')}"


@dataclass(frozen=True, slots=True)
class WeightsUsed(Message):
    """The new weights are in use."""

    ticket: int
