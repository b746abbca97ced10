"""Log-probabilities of tokens, in the two forms of OpenAI's API."""

import codecs
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from rekindle.core.request.tokens import TokenLogprob

MIN_LOGPROB = -9999.0
"""Stand-in for minus infinity, which JSON lacks."""


def chat_logprobs(tokens: Sequence[TokenLogprob], *, by_id: bool = False) -> dict[str, Any]:
    """Return the log-probabilities of a chat completion's tokens, named by their texts or, if `by_id`, by their ids."""

    def entry(token: TokenLogprob) -> dict[str, Any]:
        name = _id(token) if by_id else token.text
        return {"token": name, "logprob": max(token.logprob, MIN_LOGPROB), "bytes": list(token.bytes)}

    content = [{**entry(token), "top_logprobs": [entry(other) for other in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def tokens_of(text: str, tokens: Sequence[TokenLogprob]) -> tuple[Sequence[TokenLogprob], Sequence[TokenLogprob]]:
    """Return the tokens of a text near the end of an answer, and the tokens after the text.

    Reasoning and marks come before the text, and after it the token at the end of the answer or the start of a mark.
    """
    if not text:
        return (), tokens
    ends = list(accumulate((len(token.bytes) for token in tokens), initial=0))
    all_bytes, text_bytes = b"".join(token.bytes for token in tokens), text.encode("utf-8", "replace")
    for end in (ends[-1], *ends[-2:-1]):  # in a mark at the end, a short text might be found too
        if all_bytes[:end].endswith(text_bytes):
            begin = end - len(text_bytes)
            break
    else:
        begin = all_bytes.rfind(text_bytes)
        if begin < 0:  # such as text with characters in place of malformed bytes
            return tokens, ()
    first = bisect_right(ends, begin) - 1
    last = bisect_left(ends, begin + len(text_bytes))
    return tokens[first:last], tokens[last:]


def prompt_scores(logprobs: Sequence[TokenLogprob | None]) -> list[dict[str, Any] | None]:
    """Return the log-probabilities of a prompt in vLLM's form: by token ids, null for a token without one."""
    return [None if token is None else _by_id(token) for token in logprobs]


def _by_id(token: TokenLogprob) -> dict[str, Any]:
    tokens = {each.token_id: each for each in (token, *token.top)}
    return {
        str(number): {"logprob": max(each.logprob, MIN_LOGPROB), "rank": each.rank, "decoded_token": each.text}
        for number, each in tokens.items()
    }


def _id(token: TokenLogprob) -> str:
    """Return the name of a token by its id, as vLLM spells it."""
    return f"token_id:{token.token_id}"


class TextLogprobs:
    """Writer of the log-probabilities of a completion's tokens, with offsets from the start of the text.

    Alternatives are named by their texts. Of several with the same text, all but the likeliest are named by their ids.

    Args:
        added_tokens: the number of leading tokens without text, added by the tokenizer.
        by_id: whether all tokens are named by their ids.
    """

    def __init__(self, added_tokens: int = 0, *, by_id: bool = False):
        self._offset, self._added_tokens, self._by_id = 0, added_tokens, by_id
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def of(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the log-probabilities of the next tokens; null for NaN."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            if self._added_tokens:
                self._added_tokens -= 1
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
        names: dict[int, str] = {}
        for each in {each.token_id: each for each in (*token.top, token)}.values():
            name = _id(each) if self._by_id or each.text in top else each.text
            names[each.token_id], top[name] = name, max(each.logprob, MIN_LOGPROB)
        own = names[token.token_id]
        return {own: top[own], **top}  # the token itself comes first, as in vLLM


def _number(token: TokenLogprob) -> float | None:
    return None if token.logprob != token.logprob else max(token.logprob, MIN_LOGPROB)
