"""Checks of requests against their whole prompt and the vocabulary."""

import math
from collections.abc import Sequence

from rekindle.core.buckets import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS
from rekindle.core.errors import InvalidRequest
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request


def check_scored(prompt: Sequence[int], params: SamplingParams) -> None:
    """Check `prompt_logprobs_from` against the length of the prompt.

    Raises:
        InvalidRequest: `prompt_logprobs_from` is beyond the prompt.
    """
    if params.prompt_logprobs_from and params.prompt_logprobs_from >= len(prompt):
        raise InvalidRequest(
            f"prompt_logprobs_from must be below the number of tokens of the prompt, {len(prompt)}; got "
            f"{params.prompt_logprobs_from}"
        )


def check_bans(request: Request, vocab_size: int) -> None:
    """Check the banned tokens of a request: the bans fit on the device and always leave a token to choose.

    Raises:
        InvalidRequest: the bans do not fit, or may leave no token.
    """
    longer = [len(word) for word in request.bad_words if len(word) > 1]
    if len(longer) > MAX_BAD_WORDS or max(longer, default=0) > MAX_BAD_WORD_TOKENS:
        raise InvalidRequest(
            f"bad_words may be {MAX_BAD_WORDS} sequences of up to {MAX_BAD_WORD_TOKENS} tokens, and any number of "
            f"single tokens; got {len(longer)} sequences, the longest of {max(longer)} tokens"
        )
    params = request.params
    banned = {token for token, bias in params.logit_bias if bias == -math.inf}
    banned |= {word[-1] for word in request.bad_words}
    if params.min_tokens:
        banned |= request.end_ids
    allowed = params.allowed_token_ids
    if len(banned) >= vocab_size or (allowed is not None and allowed <= banned):
        raise InvalidRequest(
            "allowed_token_ids, bad_words, logit_bias and min_tokens together may leave no token to choose: "
            f"each of the {vocab_size if allowed is None else len(allowed)} allowed tokens can be banned by the others"
        )
