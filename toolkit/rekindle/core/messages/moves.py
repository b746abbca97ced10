"""Transfer of a prompt's pages from the prefill lane to the decode lane."""

from dataclasses import dataclass
from typing import Any

from rekindle.core.messages.message import Message, OfRequest
from rekindle.core.messages.words import join_items
from rekindle.core.request.request import Request
from rekindle.core.words import quantity


@dataclass(frozen=True, slots=True)
class SendPages(Message):
    """Collect the cached pages of a prompt, from the page `first` on. From the relay to the prefill lane's scheduler.

    Attributes:
        request: the request.
        first: the index of the first page.
        exchanges: the `Started.exchanges` of the request. Pages computed with other weights are not sent.
    """

    request: Request
    first: int
    exchanges: int = 0

    @property
    def requests(self) -> tuple[int, ...]:
        return (self.request.id,)

    def __str__(self) -> str:
        return f"SendPages: request {self.request.id}, from page {self.first} on"


@dataclass(frozen=True, slots=True)
class Collect(OfRequest):
    """Copy pages out of the pool, between the plans sent before and after. From the scheduler to the stepper.

    Attributes:
        pages: the pages.
        losses: see `Plan`. Pages of a lost device state are not copied.
    """

    pages: tuple[int, ...]
    losses: int = 0

    def __str__(self) -> str:
        return f"Collect: request {self.request_id}, pages [{join_items(self.pages)}]"


@dataclass(frozen=True, slots=True)
class Collected(OfRequest):
    """The answer to a `SendPages`. From the stepper, or the scheduler without any page, to the relay.

    Attributes:
        contents: the available pages, each in a separate device array.
    """

    contents: tuple[Any, ...]

    def __str__(self) -> str:
        return f"Collected: request {self.request_id}, {quantity(len(self.contents), 'page')}"


@dataclass(frozen=True, slots=True)
class _PromptPages(Message):
    """Pages of a prompt, from the page `first` on."""

    request: Request
    first: int
    contents: tuple[Any, ...]

    @property
    def requests(self) -> tuple[int, ...]:
        return (self.request.id,)

    def __str__(self) -> str:
        pages = quantity(len(self.contents), "page")
        return f"{type(self).__name__}: request {self.request.id}, {pages} from page {self.first} on"


class StagePages(_PromptPages):
    """Copy the pages to the devices of the decode lane. From the relay to the lane's host tier."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PagesStaged(OfRequest):
    """The answer to a `StagePages`, after the `TakePages` if there is one. From the host tier to the relay."""


class TakePages(_PromptPages):
    """Put staged pages into the prefix cache. From the host tier of the decode lane to its scheduler."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PutPages(Message):
    """Write staged contents into pages of the pool, before any later plan. From the scheduler to the stepper.

    Attributes:
        pages: the pages.
        contents: the staged content of each page.
        losses: see `Plan`.
    """

    pages: tuple[int, ...]
    contents: tuple[Any, ...]
    losses: int = 0

    def __str__(self) -> str:
        return f"PutPages: pages [{join_items(self.pages)}]"
