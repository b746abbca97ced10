"""The answers of a batch: a list that a cell shows as a table."""

import json
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, SupportsIndex, TypeVar, overload

from rekindle.core import markup
from rekindle.results.answer_table import AnswerRow, PromptLabel, table_html, table_text, total
from rekindle.results.generation import Generation

T = TypeVar("T")


class Answers(list[T]):
    """The outcomes of a batch, in the order of its prompts: a list that a cell shows as a table.

    Each item is a `Generation`. With `errors="return"` it may be an error, and in what an interrupt had left to finish
    it is None. With a list of prompts and `n` too, each is the `Answers` of one prompt.

    A slice is an `Answers`; what else makes a list of it, such as `+` or `copy`, makes a plain list. The list may be
    sorted and changed, and each answer keeps its prompt.

    Args:
        outcomes: the items.
        prompts: the prompt of each, as a text or as token ids; none where they are not known.
        drawn_in: the number of the cell of a notebook that has drawn them already; they are not shown there again.
    """

    def __init__(
        self, outcomes: Iterable[T] = (), prompts: Iterable[PromptLabel | None] = (), drawn_in: int | None = None
    ):
        super().__init__(outcomes)
        self._asked = tuple(zip(self, prompts, strict=False))
        self.drawn_in = drawn_in

    @property
    def prompts(self) -> list[PromptLabel | None]:
        """The prompt of each: a text as it was given, the last message of the user, or token ids; None if unknown."""
        known: dict[int, PromptLabel | None] = {}
        for outcome, prompt in self._asked:  # requests that failed together share one error, which tells no prompt
            known[id(outcome)] = prompt if known.setdefault(id(outcome), prompt) is prompt else None
        stayed = [outcome is before for outcome, (before, _) in zip(self, self._asked, strict=False)]
        return [
            self._asked[place][1] if place < len(stayed) and stayed[place] else known.get(id(outcome))
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

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each answer, by its place in the list, or by place and draw.

        Its columns are prompt (str, or a tuple of token ids), answer (str), finish_reason (str), prompt_tokens,
        completion_tokens and cached_tokens (Int64), seconds (float, until its end), and error (str). What an answer or
        an error does not have is missing in its row.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas, which is not installed: pip install pandas") from error
        rows = list(self._rows())
        places = [row.place for row in rows]
        nested = any(len(place) > 1 for place in places)
        index = pandas.MultiIndex.from_tuples(places, names=["place", "draw"]) if nested else None
        counts = ["prompt_tokens", "completion_tokens", "cached_tokens"]
        frame = pandas.DataFrame([_record(row) for row in rows], columns=list(_record(_NONE)), index=index)
        return frame.astype({**dict.fromkeys(counts, "Int64"), "seconds": "float64"})

    def to_jsonl(self, path: str | PathLike[str]) -> None:
        """Write an object for each answer into a file of JSON lines, which is replaced if it exists.

        Each has its place in the list, with a list of prompts and `n` its draw too, its prompt (a text or token ids),
        the generation as `Generation.to_dict` returns it, and the error; what it does not have is null:

            {"place": 0, "prompt": "One, two,", "generation": {"version": 2, "text": " three", ...}, "error": null}
            {"place": 1, "prompt": "", "generation": null, "error": "InvalidRequest: the prompt is empty; ..."}

        `Generation.from_dict(json.loads(line)["generation"])` is the generation again.

        Raises:
            OSError: the file cannot be written.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(_written(row))}\n" for row in self._rows())

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy all but `drawn_in`: a cell of the same number in another notebook has not drawn them."""
        return {**vars(self), "drawn_in": None}

    def _ipython_display_(self) -> None:
        """Show nothing in the cell that has drawn it already; NotImplementedError has IPython show it as all else."""
        if self.drawn_in is None or self.drawn_in != markup.cell():
            raise NotImplementedError

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the table where this is the result of a cell, since IPython would print a list, and else the repr."""
        printer.text(repr(self) if printer.indentation else table_text(list(self._rows())))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        rows = list(self._rows())
        return markup.bundle(table_text(rows), markup.card("Answers", total(rows), table_html(rows)))

    def _rows(self, within: Sequence[int] = ()) -> Iterator[AnswerRow]:
        """Yield a row for each answer, also for those of answers in this list."""
        for place, (outcome, prompt) in enumerate(zip(self, self.prompts, strict=True)):
            if isinstance(outcome, Answers):
                yield from outcome._rows((*within, place))
            else:
                yield AnswerRow((*within, place), prompt, outcome)


_NONE = AnswerRow((), None, None)


def _written(row: AnswerRow) -> dict[str, Any]:
    """Return an object of a file of JSON lines."""
    return {
        **dict(zip(("place", "draw"), row.place, strict=False)),
        "prompt": row.prompt,
        "generation": row.outcome.to_dict() if isinstance(row.outcome, Generation) else None,
        "error": row.error,
    }


def _record(row: AnswerRow) -> dict[str, Any]:
    """Return a row of a data frame."""
    made = row.outcome if isinstance(row.outcome, Generation) else None
    return {
        "prompt": row.prompt,
        "answer": made and made.text,
        "finish_reason": made and made.finish_reason,
        "prompt_tokens": made and made.usage.prompt_tokens,
        "completion_tokens": made and made.usage.completion_tokens,
        "cached_tokens": made and made.cached_tokens,
        "seconds": made and made.timings.total,
        "error": row.error,
    }
