"""How an engine hears of a lane that is in another process, a replica, and tells its router of its loss."""

from dataclasses import dataclass
from typing import Any

from rekindle.core.markup import quantity
from rekindle.core.messages.answers import Output
from rekindle.core.messages.asking import Admit
from rekindle.core.messages.message import Message
from rekindle.core.messages.words import describe_error, end_suffix, first_of, join_items
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason, StateSum, TokenLogprob


@dataclass(frozen=True, slots=True)
class RemoteOutput:
    """An `Output` as it is sent: with the id of its request alone."""

    request_id: int
    token_ids: tuple[int, ...]
    end: EndReason | None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    states: StateSum | None = None

    @classmethod
    def of(cls, output: Output, request_id: int) -> "RemoteOutput":
        """Return an output as it is sent."""
        return cls(request_id, output.token_ids, output.end, output.logprobs, output.prompt_logprobs, output.states)

    def output(self, request: Request) -> Output:
        """Return the output of its request."""
        return Output(request, self.token_ids, self.end, self.logprobs, self.prompt_logprobs, self.states)

    def __str__(self) -> str:
        return f"request {self.request_id}, tokens [{join_items(self.token_ids)}]{end_suffix(self.end)}"


@dataclass(frozen=True, slots=True)
class RemoteOutputs(Message):
    """The `Outputs` of a replica, for one of its sessions."""

    outputs: tuple[RemoteOutput, ...]

    @property
    def requests(self) -> tuple[int, ...]:
        return tuple(output.request_id for output in self.outputs)

    def __str__(self) -> str:
        return f"RemoteOutputs: {'; '.join(first_of(self.outputs))}"


@dataclass(frozen=True, slots=True)
class Received(Message):
    """Messages came from a replica: `RemoteOutputs`, and what its lane would say to a router in its own process.

    Attributes:
        status: how it stands, for its view; None if that is as before.
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
    """A replica is gone, with all that it computed.

    Attributes:
        for_good: whether it will not be there again.
    """

    error: Exception
    for_good: bool = False

    def __str__(self) -> str:
        return f"Lost: {describe_error(self.error)}"


@dataclass(frozen=True, slots=True)
class Found(Message):
    """A replica that was lost is there again, without any request.

    Attributes:
        life: how often it was lost before.
        weights: those that it was given; None for those that it was opened with.
    """

    life: int
    weights: list[Any] | None = None

    def __str__(self) -> str:
        return "Found"


@dataclass(frozen=True, slots=True)
class LaneLost(Message):
    """A lane is lost, with these requests, as they stood: their output begins with the tokens that are told.

    Attributes:
        error: why.
        for_good: whether it will not be there again.
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
    """A lane that is lost was given a request, and gives it back."""

    admit: Admit

    @property
    def requests(self) -> tuple[int, ...]:
        return self.admit.requests

    def __str__(self) -> str:
        return f"Returned: request {self.admit.request.id}"


@dataclass(frozen=True, slots=True)
class LaneBack(Message):
    """A lane that was lost serves again."""
