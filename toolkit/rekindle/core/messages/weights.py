"""Exchange of weights and adapters, and computations from the weights beside the plans."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rekindle.core.errors import WeightsChanged
from rekindle.core.messages.message import Message
from rekindle.core.words import quantity

InFlightPolicy = Literal["finish", "keep", "fail"]
"""Option for started requests: finish with the old weights, continue with the new ones, or fail."""


@dataclass(frozen=True, slots=True)
class NewWeights(Message):
    """Use new weights for all requests not started yet, or for all. From the caller to the scheduler.

    Attributes:
        ticket: the number shared by the request and its answer.
        weights: device arrays, in the argument order of programs; for a router, one list for each lane.
        in_flight: the option for started requests.
        version: the number of the weights; None for the next number.
        asleep: whether to have no weights and no pages on the device, and to plan nothing until the next message.
    """

    ticket: int
    weights: list[Any]
    in_flight: InFlightPolicy = "finish"
    version: int | None = None
    asleep: bool = False

    @property
    def has_tower(self) -> bool:
        """True for weights with another vision tower, which are `PlacedWeights`."""
        return bool(getattr(self.weights, "tower", ()))

    @property
    def failure(self) -> WeightsChanged:
        """The error of a request ended by the message."""
        return WeightsChanged(
            f"the request was ended by {'sleep' if self.asleep else 'update_weights'}; submit it again"
        )

    def __str__(self) -> str:
        return f"NewWeights: {quantity(len(self.weights), 'array')}"


@dataclass(frozen=True, slots=True)
class KeepWeights(Message):
    """Withdraw a `NewWeights`, unless the weights are in use already. From the caller to the scheduler."""

    ticket: int


@dataclass(frozen=True, slots=True)
class WeightsKept(Message):
    """The `NewWeights` was withdrawn in time, so the old weights stay. From the scheduler to the caller."""

    ticket: int


@dataclass(frozen=True, slots=True)
class UseWeights(Message):
    """Use these weights for every later plan. From the scheduler to the stepper.

    Attributes as in `NewWeights`.
    """

    ticket: int
    weights: list[Any]
    version: int
    asleep: bool = False

    def __str__(self) -> str:
        return f"UseWeights: {quantity(len(self.weights), 'array')}"


@dataclass(frozen=True, slots=True)
class WeightsUsed(Message):
    """The new weights are in use, or none are if the engine is asleep. From the stepper to the caller."""

    ticket: int
    version: int
    asleep: bool = False


@dataclass(frozen=True, slots=True)
class WeightsReplaced(Message):
    """Another session has replaced the weights of a shared replica. From the replica to its other sessions.

    Attributes:
        version: the number of the weights in use.
        digest: the digest of their content.
    """

    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class PutAdapter(Message):
    """Put an adapter into a slot without requests. From the caller to the stepper, behind all plans of earlier ones.

    Attributes:
        ticket: the number shared by the request and its answer.
        slot: the slot.
        content: device arrays from `pack_adapter`; for a router, one entry for each lane.
        empty: device arrays for all adapters, for a stepper without any; for a router, one entry for each lane. None if
            the stepper has some.
    """

    ticket: int
    slot: int
    content: Any
    empty: Any = None

    def __str__(self) -> str:
        return f"PutAdapter: slot {self.slot}"


@dataclass(frozen=True, slots=True)
class AdapterPut(Message):
    """The adapter is in its slot. From the stepper to the caller."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Inspect(Message):
    """Run a program over the weights. From the caller to the stepper.

    Attributes:
        ticket: the number shared by the request and its answer.
        key: the key of the program.
        inputs: its arguments after the weights.
        take: returns what to answer with, from the results of the program, in a worker thread; None for all of them.
    """

    ticket: int
    key: Any
    inputs: Any
    take: Callable[[Any], Any] | None = None

    def __str__(self) -> str:
        return f"Inspect: {self.key}"


@dataclass(frozen=True, slots=True)
class Inspected(Message):
    """The outcome of an inspection. From the stepper to the caller.

    Attributes:
        ticket: the number of the question.
        outputs: the results of the program, or what was taken of them; None if the device has no weights at the moment,
            or an error of the program.
        version: the number of the weights.
    """

    ticket: int
    outputs: Any
    version: int = 0

    def __str__(self) -> str:
        return "Inspected"
