"""Tokens of texts in bodies."""

from typing import Final

from rekindle.server.common.errors import invalid_field
from rekindle.server.models.session import ServedSession

MOST_TOKENS: Final = 1 << 20
"""Most tokens of one text. The event loop stands still while millions of them become a list."""


def tokens_of(session: ServedSession, text: str, special: bool, field: str) -> list[int]:
    """Return the tokens of a text in a field of a body, with the tokenizer's special tokens if `special`.

    Raises:
        ApiError: there are more than `MOST_TOKENS`.
    """

    def check(tokens: int, least: str = "") -> None:
        if tokens > MOST_TOKENS:
            raise invalid_field(
                field,
                f"{field} has {least}{tokens} tokens; at most {MOST_TOKENS} become a list at once. Send it in parts",
            )

    if session.tokenizer is None:
        return session.encode(text)
    check(session.tokenizer.fewest(text, MOST_TOKENS), "at least ")
    return session.tokenizer.encode(text, special, check)
