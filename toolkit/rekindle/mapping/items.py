"""Items of a map, read lazily and turned into prompts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rekindle.client.calls.prompts import label_of
from rekindle.core.content import content_digest
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request.checks import preview
from rekindle.mapping.template import RowTemplate
from rekindle.results.answer_table import PromptLabel

ROWS = ("itertuples", "iter_rows")
"""Methods of the rows of a data frame: of pandas, of polars."""
MAX_TRIED = 8
"""Maximum number of initial items tried before the template is rejected."""


@dataclass(frozen=True, slots=True)
class Item:
    """Item of a map.

    Attributes:
        place: the index of the item.
        value: the caller's value for the item.
        prompt: the prompt of the item, or the error of a bad item.
        label: the label of the prompt in tables.
    """

    place: int
    value: Any
    prompt: Prompt | InvalidRequest
    label: PromptLabel

    @property
    def digest(self) -> str | None:
        """Digest of the prompt, the same in all processes; None for a bad item."""
        return None if isinstance(self.prompt, InvalidRequest) else content_digest(self.prompt)[:32]


def check_items(items: Any, token_ids: Any) -> Iterable[Any]:
    """Return the items of a call, checked to be iterable; those of a data frame are its rows, as mappings.

    Raises:
        InvalidRequest: both or neither of items and token ids were passed, or the value is a single prompt or not
            iterable.
    """
    if (items is None) == (token_ids is None):
        raise InvalidRequest("give either items or token_ids, and not both")
    value = token_ids if items is None else items
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidRequest(
            f"map() takes an iterable of texts, conversations or mappings, got {preview(value)}; generate() takes one"
        )
    return Rows(value) if hasattr(value, "columns") and (hasattr(value, ROWS[0]) or hasattr(value, ROWS[1])) else value


class Rows:
    """Rows of a data frame as mappings, made one at a time. Iteration over the frame itself yields its columns.

    Args:
        frame: a frame of pandas, or of polars.
    """

    def __init__(self, frame: Any):
        self._frame = frame

    def __len__(self) -> int:
        return len(self._frame)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        if hasattr(self._frame, ROWS[0]):
            return (dict(zip(self._frame.columns, row, strict=True)) for row in self._frame.itertuples(False, None))
        rows: Iterator[Mapping[str, Any]] = self._frame.iter_rows(named=True)
        return rows


def read(items: Iterable[Any], template: RowTemplate | None, make: Callable[[Any], Prompt]) -> Iterator[Item]:
    """Yield items on demand, each with its prompt or the error of a bad item.

    Args:
        items: the items of the call.
        template: the template for the items; None for items used as prompts.
        make: returns the prompt of an item, or of its filled template; raises InvalidRequest for a bad one.

    Raises:
        InvalidRequest: none of the first items fits the template, or the first is a mapping without one.
    """
    items_read = _read(items, template, make)
    if template is None:
        for place, item in enumerate(items_read):
            if place == 0 and isinstance(item.prompt, InvalidRequest) and isinstance(item.value, Mapping):
                raise item.prompt
            yield item
        return
    first: list[Item] = []
    for item in islice(items_read, MAX_TRIED):
        first.append(item)
        if not isinstance(item.prompt, InvalidRequest):
            break
    else:
        if first:
            raise InvalidRequest(f"none of the first {len(first)} items fits the template: {first[0].prompt}")
    yield from first
    yield from items_read


def _read(items: Iterable[Any], template: RowTemplate | None, make: Callable[[Any], Prompt]) -> Iterator[Item]:
    for place, value in enumerate(items):
        try:
            prompt = make(value if template is None else template.fill(value))
            yield Item(place, value, prompt, label_of(prompt, value))
        except InvalidRequest as error:
            yield Item(place, value, error, label_of(error, value))
