"""Messages between an engine and its lanes, and with the replicas of lanes in other processes."""

from dataclasses import dataclass, fields
from typing import Any, Final

from rekindle.core.messages.answers import Output
from rekindle.core.messages.message import Message
from rekindle.core.messages.submission import Admit
from rekindle.core.messages.words import describe_error, end_suffix, first_of, join_items
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason, StateSum, TokenLogprob
from rekindle.core.words import quantity

_OF_OUTPUTS: Final = tuple(field.name for field in fields(Output))[1:]
"""The fields of an output after its request, in their order, which is the one of `RemoteOutput` too."""


@dataclass(frozen=True, slots=True)
class _OfLane(Message):
    """A message to or from an actor of a lane."""

    lane: int
    message: Message

    @property
    def requests(self) -> tuple[int, ...]:
        return self.message.requests

    def __str__(self) -> str:
        return f"{type(self).__name__}: lane {self.lane}, {self.message}"


class ToLane(_OfLane):
    """A message for an actor of a lane, from the router or from the connection to a replica."""

    __slots__ = ()


class FromLane(_OfLane):
    """A message for the router, from an actor of a lane; most go on to shared actors or callers."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RemoteOutput:
    """An `Output` in transit: with its request's id instead of the request."""

    request_id: int
    token_ids: tuple[int, ...]
    end: EndReason | None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    states: StateSum | None = None
    weights_version: int = 0

    @classmethod
    def of(cls, output: Output, request_id: int) -> "RemoteOutput":
        """Return the transferable form of an output."""
        return cls(request_id, *(getattr(output, name) for name in _OF_OUTPUTS))

    def output(self, request: Request) -> Output:
        """Return the output, for its request."""
        return Output(request, *(getattr(self, name) for name in _OF_OUTPUTS))

    def __str__(self) -> str:
        return f"request {self.request_id}, tokens [{join_items(self.token_ids)}]{end_suffix(self.end)}"


@dataclass(frozen=True, slots=True)
class RemoteOutputs(Message):
    """The `Outputs` of a replica for one of its sessions, in `Received`."""

    outputs: tuple[RemoteOutput, ...]

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(output.request_id for output in self.outputs)

    def __str__(self) -> str:
        return f"RemoteOutputs: {'; '.join(first_of(self.outputs))}"


@dataclass(frozen=True, slots=True)
class Received(Message):
    """Messages from a replica, by way of its connection, to the `RemoteLane`.

    Attributes:
        messages: `RemoteOutputs`, and messages as a local lane sends them to the router.
        status: the replica's new `Status`; None if unchanged.
    """

    messages: tuple[Message, ...]
    status: Any = None

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(request_id for message in self.messages for request_id in message.requests)

    def __str__(self) -> str:
        return f"Received: {'; '.join(first_of(self.messages)) or 'its status'}"


@dataclass(frozen=True, slots=True)
class Lost(Message):
    """A replica is lost, with all its computed state. From its connection to the `RemoteLane`.

    Attributes:
        error: the reason.
        for_good: whether the replica will not return.
    """

    error: Exception
    for_good: bool = False

    def __str__(self) -> str:
        return f"Lost: {describe_error(self.error)}"


@dataclass(frozen=True, slots=True)
class ReplicaFound(Message):
    """A lost replica is back, without any request. From its connection to the `RemoteLane`.

    Attributes:
        life: the number of earlier losses.
        weights: the weights given to it since its start; None for its initial weights.
    """

    life: int
    weights: list[Any] | None = None

    def __str__(self) -> str:
        return "ReplicaFound"


@dataclass(frozen=True, slots=True)
class LaneLost(Message):
    """A lane is lost. From the `RemoteLane` to the router.

    Attributes:
        admits: the lane's requests. The output of each begins with the tokens already delivered.
        error: the reason.
        for_good: whether the lane will not return.
    """

    admits: tuple[Admit, ...]
    error: Exception
    for_good: bool = False

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(admit.request.id for admit in self.admits)

    def __str__(self) -> str:
        return f"LaneLost: with {quantity(len(self.admits), 'request')}, {describe_error(self.error)}"


@dataclass(frozen=True, slots=True)
class Returned(Message):
    """A request assigned to a lane after its loss. From the `RemoteLane` back to the router."""

    admit: Admit

    @property
    def requests(self) -> tuple[int, ...]:
        return self.admit.requests

    def __str__(self) -> str:
        return f"Returned: request {self.admit.request.id}"


@dataclass(frozen=True, slots=True)
class LaneBack(Message):
    """A lost lane serves again. From the `RemoteLane` to the router."""
