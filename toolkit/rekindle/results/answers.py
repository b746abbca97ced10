"""Answers of a batch: a list displayed as a table."""

import json
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, Final, SupportsIndex, TypeVar, overload

from rekindle import markup
from rekindle.core.cures import cured
from rekindle.results.answer_table import AnswerRow, PromptLabel, table_html, table_text, total
from rekindle.results.generation import Generation

T = TypeVar("T")


_CURES: Final = {
    ("choices", "content", "outputs", "parsed", "text", "token_ids", "usage", "finish_reason"): (
        "each answer has its own: [answer.text for answer in answers]"
    ),
    ("to_df", "to_pandas", "df", "to_polars"): "answers.to_frame() gives a table",
}
"""Attributes of one answer, and of lists in other libraries."""


@cured(_CURES)
class Answers(list[T]):
    """List of a batch's outcomes in the order of its prompts, displayed as a table.

    Each item is a `Generation`. With `errors="return"`, an item may be an exception. After an interrupt, the items of
    unfinished requests are None. For a list of prompts with `n`, each item is the `Answers` of one prompt.

    A slice is an `Answers`; other list operations, such as `+` or `copy`, return a plain list. After the list is sorted
    or changed, `prompts` still has the prompt of each answer.

    Args:
        outcomes: the items.
        prompts: the prompt of each item, as text or as token ids; empty if unknown.
        drawn_in: the number of the notebook cell with a live display of this batch; the cell does not show it again.
    """

    def __init__(
        self, outcomes: Iterable[T] = (), prompts: Iterable[PromptLabel | None] = (), drawn_in: int | None = None
    ):
        super().__init__(outcomes)
        self._pairs = tuple(zip(self, prompts, strict=False))
        self.drawn_in = drawn_in

    @property
    def prompts(self) -> list[PromptLabel | None]:
        """Prompt of each item: its text, its last user message, or its token ids; None if unknown."""
        by_id: dict[int, PromptLabel | None] = {}
        for outcome, prompt in self._pairs:  # an error shared by several requests has no single prompt
            by_id[id(outcome)] = prompt if by_id.setdefault(id(outcome), prompt) is prompt else None
        in_place = [outcome is before for outcome, (before, _) in zip(self, self._pairs, strict=False)]
        return [
            self._pairs[place][1] if place < len(in_place) and in_place[place] else by_id.get(id(outcome))
            for place, outcome in enumerate(self)
        ]

    @overload
    def __getitem__(self, place: SupportsIndex, /) -> T: ...
    @overload
    def __getitem__(self, place: slice, /) -> "Answers[T]": ...
    def __getitem__(self, place: SupportsIndex | slice, /) -> "T | Answers[T]":
        if isinstance(place, slice):
            return Answers(super().__getitem__(place), self.prompts[place])
        return super().__getitem__(place)

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with one row per answer.

        The index is the answer's place in the list; for nested answers, the place of the prompt and the draw, the index
        of the sample. The columns are prompt (str, or a tuple of token ids), answer (str), finish_reason (str),
        prompt_tokens, completion_tokens and cached_tokens (Int64), seconds (float, from submission to end), and error
        (str). Values that do not exist for an answer or an error are missing values.

        Raises:
            ImportError: pandas is not installed.
        """
        pandas = import_pandas()
        rows = list(self._rows())
        places = [row.place for row in rows]
        nested = any(len(place) > 1 for place in places)
        index = pandas.MultiIndex.from_tuples(places, names=["place", "draw"]) if nested else None
        counts = ["prompt_tokens", "completion_tokens", "cached_tokens"]
        frame = pandas.DataFrame([_record(row) for row in rows], columns=list(_record(_NONE)), index=index)
        return frame.astype({**dict.fromkeys(counts, "Int64"), "seconds": "float64"})

    def to_jsonl(self, path: str | PathLike[str]) -> None:
        """Write the answers to a JSON Lines file, one object per answer. An existing file is replaced.

        Each object has the place of the answer in the list, for nested answers the draw (the index of the sample), the
        prompt (a text or token ids), the dict of `Generation.to_dict`, and the error; missing values are null:

            {"place": 0, "prompt": "One, two,", "generation": {"version": 3, "text": " three", ...}, "error": null}
            {"place": 1, "prompt": "", "generation": null, "error": "InvalidRequest: the prompt is empty; ..."}

        `Generation.from_dict(json.loads(line)["generation"])` restores the generation.

        Raises:
            OSError: the file cannot be written.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(self._json_object(row))}\n" for row in self._rows())

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy everything except `drawn_in`: cell numbers of other notebooks differ."""
        return {**vars(self), "drawn_in": None}

    def __str__(self) -> str:
        return table_text(list(self._rows()))

    def _ipython_display_(self) -> None:
        """Show nothing in the cell of `drawn_in`; elsewhere, NotImplementedError selects IPython's default display."""
        markup.display_again(self.drawn_in)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the table if this is the result of a cell, and the repr inside a container."""
        printer.text(repr(self) if printer.indentation else str(self))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        rows = list(self._rows())
        return markup.bundle(str(self), markup.card("Answers", total(rows), table_html(rows)))

    def _json_object(self, row: AnswerRow) -> dict[str, Any]:
        """Return a row as an object of the JSON Lines file."""
        return {
            **dict(zip(("place", "draw"), row.place, strict=False)),
            "prompt": row.prompt,
            "generation": row.outcome.to_dict() if isinstance(row.outcome, Generation) else None,
            "error": row.error,
        }

    def _rows(self, within: Sequence[int] = ()) -> Iterator[AnswerRow]:
        """Yield a row for each answer, including answers of nested lists."""
        for place, (outcome, prompt) in enumerate(zip(self, self.prompts, strict=True)):
            if isinstance(outcome, Answers):
                yield from outcome._rows((*within, place))
            else:
                yield AnswerRow((*within, place), prompt, outcome)


_NONE = AnswerRow((), None, None)


def _record(row: AnswerRow) -> dict[str, Any]:
    """Return the values of a row in a data frame, by column."""
    answer = row.outcome if isinstance(row.outcome, Generation) else None
    return {
        "prompt": row.prompt,
        "answer": answer and answer.text,
        "finish_reason": answer and answer.finish_reason,
        "prompt_tokens": answer and answer.usage.prompt_tokens,
        "completion_tokens": answer and answer.usage.completion_tokens,
        "cached_tokens": answer and answer.cached_tokens,
        "seconds": answer and answer.timings.total,
        "error": row.error,
    }


def import_pandas() -> Any:
    """Return the module pandas, for a method `to_frame`.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError("to_frame() needs pandas, which is not installed: pip install pandas") from error
    return pandas
