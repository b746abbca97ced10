"""A request: one prompt with its sampling parameters, ready to be scheduled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rekindle.core.buckets import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS
from rekindle.core.errors import InvalidRequest, PromptTooLong
from rekindle.core.request import checks
from rekindle.core.request.allowed import Constrained
from rekindle.core.request.params import SamplingParams

Pooling = Literal["last", "mean"]
"""The hidden states that make an embedding: that of the prompt's last token, or the mean of all of them."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt with its sampling parameters, ready to be scheduled.

    Attributes:
        id: its identity in all messages; never used twice in one engine.
        prompt: token ids, at least one.
        params: as checked, with a seed.
        end_ids: the token ids that end it.
        capacity: the most tokens, prompt and output together, that the context and the page pool can hold.
        bad_words: the token sequences that it must not complete.
        namespace: whose cached prefixes it may use, and whose it adds to.
        hold: only compute its whole pages, and hold them in the prefix cache until the request is withdrawn.
        output_prefix: the tokens with which its output begins, which are given instead of generated.
        pooling: which hidden states of its prompt are wanted; None for none.
        constrained: what holds it to its constraint, if it has one.
        goes_on: whether its output goes on with a text, so that a space at its beginning is part of it.
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    end_ids: frozenset[int]
    capacity: int
    bad_words: tuple[tuple[int, ...], ...] = ()
    namespace: str = ""
    hold: bool = False
    output_prefix: tuple[int, ...] = ()
    pooling: Pooling | None = None
    constrained: Constrained | None = None
    goes_on: bool = False

    @property
    def initial_tokens(self) -> tuple[int, ...]:
        """All tokens that need not be generated."""
        return self.prompt + self.initial_output

    @property
    def initial_output(self) -> tuple[int, ...]:
        """The tokens of its output that need not be generated."""
        return self.output_prefix if self.constrained is None else self.output_prefix + self.constrained.first.forced

    @property
    def complete(self) -> bool:
        """Tell whether nothing is to be generated, since what is given of its output ends it."""
        constraint = self.constrained
        return bool(self.output_prefix and self.output_prefix[-1] in self.end_ids) or bool(
            constraint and constraint.first.complete
        )

    @property
    def longest(self) -> int:
        """The most tokens, prompt and output together, that it can come to."""
        most = self.params.max_tokens
        return self.capacity if most is None else min(len(self.prompt) + most, self.capacity)


def check_token_ids(name: str, ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return a prompt of token ids as a tuple.

    Raises:
        InvalidRequest: these are no integers, there are none, or one is outside the vocabulary.
    """
    checked = checks.token_ids(name, ids)
    checks.in_vocabulary(name, checked, vocab_size)
    if not checked:
        raise InvalidRequest(f"{name} is empty; a prompt needs at least one token")
    return checked


def check_length(prompt: Sequence[int], capacity: int, output: bool = True) -> None:
    """Check that a prompt of token ids leaves room for one token of output, or for none if none is wanted.

    Raises:
        PromptTooLong: there is no room.
    """
    longest = capacity - 1 if output else capacity
    if len(prompt) > longest:
        beside = " with one token of output" if output else ""
        raise PromptTooLong.of(
            "prompt",
            f"the prompt has {len(prompt)} tokens; at most {longest} fit{beside}. "
            "Shorten it, or raise max_context or num_pages in open(), up to what the model was made for",
        )


def check_scored(prompt: Sequence[int], params: SamplingParams) -> None:
    """Check that there is a token to score, if any is to be.

    Raises:
        InvalidRequest: the first of them is beyond the prompt.
    """
    if params.prompt_logprobs_from and params.prompt_logprobs_from >= len(prompt):
        raise InvalidRequest(
            f"prompt_logprobs_from must be below the number of tokens of the prompt, {len(prompt)}; got "
            f"{params.prompt_logprobs_from}"
        )


def check_bans(request: Request, vocab_size: int) -> None:
    """Check that what a request bans fits on the device, and always leaves a token to choose.

    Raises:
        InvalidRequest: it does not fit, or may leave no token.
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
