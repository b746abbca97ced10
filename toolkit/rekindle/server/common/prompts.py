"""Fields with one or several prompts, as texts or as token ids."""

from typing import Any

from rekindle.server.common.fields import Fields

Text = str | list[int]
"""A text, or its token ids."""


def texts(body: Fields, name: str, most: int) -> list[Text]:
    """Take a field with one or several texts, each a string or a list of token ids, and return a list of texts.

    Raises:
        ApiError: the field has another type or more than `most` texts.
    """
    value = body.any(name)
    if value is None:
        body.refuse_missing(name)
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(each) is int for each in value)):
        return [value]
    if not isinstance(value, list) or not value or not all(isinstance(each, str) or _is_ids(each) for each in value):
        body.refuse(name, "must be a text, a list of texts, a list of token ids, or a list of such lists and texts")
    if len(value) > most:
        body.refuse(name, f"must have at most {most} texts, got {len(value)}")
    return list(value)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(each) is int for each in value)
