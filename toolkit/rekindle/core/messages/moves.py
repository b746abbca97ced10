"""How the pages of a prompt move from the lane that computed it to the one that decodes."""

from dataclasses import dataclass
from typing import Any

from rekindle.core.markup import quantity
from rekindle.core.messages.message import Message, OfRequest
from rekindle.core.messages.words import join_items
from rekindle.core.request.request import Request


@dataclass(frozen=True, slots=True)
class SendPages(Message):
    """The cached pages of a prompt are wanted in another lane, from the page `first` on.

    Attributes:
        exchanges: as of its `Started`: pages that other weights have computed since then are not sent.
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
    """Copy these pages, as they are between the plans said before and after this.

    Attributes:
        losses: as of a `Plan`: pages of a state that is lost by now are not copied.
    """

    pages: tuple[int, ...]
    losses: int = 0

    def __str__(self) -> str:
        return f"Collect: request {self.request_id}, pages [{join_items(self.pages)}]"


@dataclass(frozen=True, slots=True)
class Collected(OfRequest):
    """The pages that a `SendPages` asked for, each in a device array of its own: those that could be had."""

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
    """The pages are to be copied to the devices of the lane that hears this."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PagesStaged(OfRequest):
    """The pages of a `StagePages` are there, or cannot be had, and the lane's scheduler has heard of them."""


class TakePages(_PromptPages):
    """The pages are staged on the lane's devices."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PutPages(Message):
    """Put staged contents into these pages, before any plan that is said after this.

    Attributes:
        losses: as of a `Plan`.
    """

    pages: tuple[int, ...]
    contents: tuple[Any, ...]
    losses: int = 0

    def __str__(self) -> str:
        return f"PutPages: pages [{join_items(self.pages)}]"
