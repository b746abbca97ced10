"""The answers of a map, beside the items that they are to."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rekindle.results.answer_table import AnswerRow, PromptLabel
from rekindle.results.answers import Answers
from rekindle.results.generation import Generation

ANSWER_COLUMNS = ("text", "parsed", "finish_reason", "tokens", "error")


class MapResults(Answers[Generation | Exception | None]):
    """The outcomes of the items of `session.map`, in their order: a list that a cell shows as a table.

    Each is a `Generation`, or the error in its place; in what an interrupt had left to finish, None for others.

    Args:
        outcomes: the list.
        prompts: the prompt of each.
        items: the item of each, as it was given.

    Attributes:
        items: as above; they stay as they are if the list is changed.
    """

    def __init__(
        self,
        outcomes: Iterable[Generation | Exception | None] = (),
        prompts: Iterable[PromptLabel | None] = (),
        items: Sequence[Any] = (),
    ):
        super().__init__(outcomes, prompts)
        self.items = tuple(items)

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each item.

        Items that are mappings have a column for each field; others have the column prompt. Then come text (str),
        parsed (what a constrained answer means), finish_reason (str), tokens (Int64, those that were generated) and
        error (str). A field of the same name as one of these has "item." before its name. What an answer does not have
        is missing.

        Raises:
            ImportError: pandas is not installed.
            ValueError: the list was changed, so that it is not known what item each answer is to.
        """
        try:
            import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError("to_frame() needs pandas, which is not installed: pip install pandas") from error
        rows = self._records()
        columns = dict.fromkeys(name for row in rows for name in row if name not in ANSWER_COLUMNS)
        frame = pandas.DataFrame(rows, columns=[*columns, *ANSWER_COLUMNS])
        return frame.astype({"tokens": "Int64"})

    def _records(self) -> list[dict[str, Any]]:
        """Return the rows of the data frame."""
        stayed = (now is before for now, (before, _) in zip(self, self._pairs, strict=False))
        if len(self) != len(self.items) or not all(stayed):
            raise ValueError("the list was changed, so its answers have lost their items; to_pandas() needs none")
        asked = zip(self.items, self.prompts, self, strict=True)
        return [_record(item, AnswerRow((), prompt, outcome)) for item, prompt, outcome in asked]


def _record(item: Any, row: AnswerRow) -> dict[str, Any]:
    made = row.outcome if isinstance(row.outcome, Generation) else None
    if isinstance(item, Mapping):
        fields = {f"item.{name}" if name in ANSWER_COLUMNS else str(name): value for name, value in item.items()}
    else:
        fields = {"prompt": row.prompt}
    return {
        **fields,
        "text": made and made.text,
        "parsed": made and made.parsed,
        "finish_reason": made and made.finish_reason,
        "tokens": made and len(made.token_ids),
        "error": row.error,
    }
