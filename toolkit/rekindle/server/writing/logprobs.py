"""The log-probabilities of tokens, in the two forms that OpenAI's API has for them."""

import codecs
from collections.abc import Sequence
from typing import Any

from rekindle.results.tokens import TokenLogprob

LEAST = -9999.0
"""What stands for minus infinity, which JSON does not have."""


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the log-probabilities of the tokens of a chat completion."""
    content = [{**_token(token), "top_logprobs": [_token(other) for other in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": max(token.logprob, LEAST), "bytes": list(token.bytes)}


class TextLogprobs:
    """Writes the log-probabilities of the tokens of a completion, whose places in the text are counted from its start.

    Alternatives are named by their texts. Where two have the same text, the likelier one is given.

    Args:
        unwritten: how many of the first tokens are not in the text.
    """

    def __init__(self, unwritten: int = 0):
        self._offset, self._unwritten = 0, unwritten
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def of(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return those of further tokens. One without a log-probability, which is NaN, has null."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            if self._unwritten:
                self._unwritten -= 1
            else:
                self._offset += len(self._decoder.decode(token.bytes))
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [_number(token) for token in tokens],
            "top_logprobs": [_top(token) for token in tokens],
            "text_offset": offsets,
        }


def _number(token: TokenLogprob) -> float | None:
    return None if token.logprob != token.logprob else max(token.logprob, LEAST)


def _top(token: TokenLogprob) -> dict[str, float] | None:
    if token.logprob != token.logprob:
        return None
    top: dict[str, float] = {}
    for each in (*token.top, token):
        top.setdefault(each.text, max(each.logprob, LEAST))
    return top
