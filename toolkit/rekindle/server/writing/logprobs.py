"""The log-probabilities of tokens, in the two forms that OpenAI's API has for them."""

import codecs
from collections.abc import Sequence
from typing import Any

from rekindle.core.request.tokens import TokenLogprob

LEAST = -9999.0
"""What stands for minus infinity, which JSON does not have."""


def chat_logprobs(tokens: Sequence[TokenLogprob], *, by_id: bool = False) -> dict[str, Any]:
    """Return the log-probabilities of the tokens of a chat completion, which are named by their texts or their ids."""

    def each(token: TokenLogprob) -> dict[str, Any]:
        name = _id(token) if by_id else token.text
        return {"token": name, "logprob": max(token.logprob, LEAST), "bytes": list(token.bytes)}

    content = [{**each(token), "top_logprobs": [each(other) for other in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _id(token: TokenLogprob) -> str:
    """Return the name of a token by its id, in vLLM's spelling."""
    return f"token_id:{token.token_id}"


class TextLogprobs:
    """Writes the log-probabilities of the tokens of a completion, whose places in the text are counted from its start.

    Alternatives are named by their texts. Of several with the same text, all but the likeliest are named by their ids.

    Args:
        unwritten: how many of the first tokens are not in the text.
        by_id: whether all tokens are named by their ids.
    """

    def __init__(self, unwritten: int = 0, *, by_id: bool = False):
        self._offset, self._unwritten, self._by_id = 0, unwritten, by_id
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
            "tokens": [_id(token) if self._by_id else token.text for token in tokens],
            "token_logprobs": [_number(token) for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": offsets,
        }

    def _top(self, token: TokenLogprob) -> dict[str, float] | None:
        if token.logprob != token.logprob:
            return None
        top: dict[str, float] = {}
        for each in {each.token_id: each for each in (*token.top, token)}.values():
            name = _id(each) if self._by_id or each.text in top else each.text
            top[name] = max(each.logprob, LEAST)
        return top


def _number(token: TokenLogprob) -> float | None:
    return None if token.logprob != token.logprob else max(token.logprob, LEAST)
