"""How weights are exchanged."""

from dataclasses import dataclass
from typing import Any

from rekindle.core.markup import quantity
from rekindle.core.messages.message import Message


@dataclass(frozen=True, slots=True)
class NewWeights(Message):
    """A caller wants these weights to be used for all requests that have not started.

    Attributes:
        ticket: the number by which the caller knows the answer.
        weights: device arrays, in the order in which programs take them; for a router, those of each lane.
        fail: end running requests with an error, rather than let them finish on the old weights.
    """

    ticket: int
    weights: list[Any]
    fail: bool

    def __str__(self) -> str:
        return f"NewWeights: {quantity(len(self.weights), 'array')}"


@dataclass(frozen=True, slots=True)
class KeepWeights(Message):
    """A caller no longer wants its `NewWeights`, if they are not in use yet."""

    ticket: int


@dataclass(frozen=True, slots=True)
class WeightsKept(Message):
    """The old weights stay in use: a `NewWeights` was given up in time."""

    ticket: int


@dataclass(frozen=True, slots=True)
class UseWeights(Message):
    """Use these weights for every plan said after this."""

    ticket: int
    weights: list[Any]

    def __str__(self) -> str:
        return f"UseWeights: {quantity(len(self.weights), 'array')}"


@dataclass(frozen=True, slots=True)
class WeightsUsed(Message):
    """The weights are in use."""

    ticket: int
