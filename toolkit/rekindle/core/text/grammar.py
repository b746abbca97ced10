"""Constraints compiled for a tokenizer by llguidance: the allowed next tokens of a constrained output."""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rekindle.core.errors import ConstraintFailed, InvalidRequest, panics_as
from rekindle.core.request.constraint import Allowed, Constraint
from rekindle.core.request.request import Request
from rekindle.core.request.thoughts import ThoughtWatch
from rekindle.core.text.constraints.parser import DISALLOWED, parse, reason
from rekindle.core.text.constraints.recent import LEAST, Recent
from rekindle.core.text.masks import Bits, Need, Steps
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.core.words import quantity

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NO_TOKEN = "<|rekindle: no token|>"
MOST_DRAFT = 15
"""Most tokens of a draft; with the newest token they fill 16 decode rows."""
CACHE_CHARACTERS = 1 << 20
"""Most characters of the sources of all compiled constraints in the cache. Compiled, they are many times as large."""


class Compiler:
    """Thread-safe compiler of constraints, with a cache of the most recent ones.

    Args:
        tokenizer: the model's tokenizer.
        vocab_size: upper bound of the token ids.
        end_ids: the model's end tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Collection[int]):
        self._tokenizer, self._vocab_size, self._end_ids = tokenizer, vocab_size, sorted(end_ids)
        self._cache: Recent[Constraint, Grammar] = Recent(CACHE_CHARACTERS)
        self._lock = threading.Lock()

    def compile(self, constraint: Constraint) -> Grammar:
        """Return a compiled constraint. The first call takes 0.25 seconds, later ones a few milliseconds.

        Raises:
            InvalidRequest: the constraint cannot be compiled, or matches no text.
        """
        grammar = self._cache.get(constraint)
        if grammar is not None:
            return grammar
        with panics_as(lambda reason: InvalidRequest(f"{constraint.parameter} cannot be served: {reason}")):
            with self._lock:
                tokens = self._tokens
            # unlocked, because others need not wait while a large constraint is parsed
            grammar = Grammar(constraint, tokens, -(-self._vocab_size // 32))
        self._cache.put(constraint, grammar, max(LEAST, len(constraint.text)))
        return grammar

    @cached_property
    def _tokens(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        # By default llguidance uses the tokenizer's end token, and a chat may not end with that one.
        serialized, vocab_size = self._tokenizer.to_json(), self._tokenizer.vocab_size
        ends = [token for token in self._end_ids if token < vocab_size]
        texts = (
            self._tokenizer.backend.id_to_token(token) for token in ends if token not in self._tokenizer.special_ids
        )
        special = [text for text in texts if text is not None]  # as text in a string, an end token would cut it
        if not ends:  # llguidance requires an end token, so add one outside every model's vocabulary
            special, ends, vocab_size = [NO_TOKEN], [vocab_size], vocab_size + 1
        if special:
            backend = type(self._tokenizer.backend).from_str(serialized)
            backend.add_special_tokens(special)
            serialized = backend.to_str()
        try:
            return LLTokenizer(serialized, n_vocab=max(self._vocab_size, vocab_size), eos_token=ends)
        except ValueError as error:  # such as one without a decoder
            raise InvalidRequest(f"constraints cannot be served with the model's tokenizer: {error}") from error


class Grammar:
    """One compiled constraint. It is immutable.

    Attributes:
        constraint: the source constraint.
        words: number of int32 words in a mask.
    """

    def __init__(self, constraint: Constraint, tokens: LLTokenizer, words: int):
        self._start = parse(constraint.kind, constraint.text, tokens, constraint.parameter)
        self.constraint, self.words = constraint, words

    def matcher(self, request: Request) -> Matcher:
        """Return a matcher for one request's output, at its first token."""
        return Matcher(self._start.deep_copy(), self, request)


class Matcher:
    """Position of one request's output in its grammar. Its methods return steps for `masks.MaskBatcher`.

    Args:
        state: llguidance's matcher at the first token; it is mutated.
        grammar: the grammar of the output.
        request: the request. Its output begins with `request.output_prefix`.

    Raises:
        InvalidRequest: the grammar does not allow the output prefix.
    """

    def __init__(self, state: LLMatcher, grammar: Grammar, request: Request):
        self._state, self._grammar, self._request = state, grammar, request
        params = request.params
        # The host does not know the tokens banned on the device, and forced tokens have no log-probabilities.
        self._can_force = not params.adjusts and params.logprobs is None
        self._thoughts = None if request.thoughts is None else ThoughtWatch(request.thoughts)
        self._length = 0
        output_prefix = request.output_prefix
        if output_prefix and not self._consume(output_prefix):
            self._check_limits()
            raise InvalidRequest(f"the start of the output does not match {grammar.constraint.label}")

    def start(self) -> Steps:
        """Compute the tokens allowed at the start of the output, or after its prefix."""
        output_prefix = self._request.output_prefix
        if output_prefix and output_prefix[-1] in self._request.end_ids:
            return Allowed(complete=True)
        return (yield from self._next(1))

    def follow(self, first: Allowed) -> None:
        """Advance over the tokens forced by the result of `start`."""
        self._consume(first.forced)

    def skip(self, tokens: Sequence[int]) -> None:
        """Advance over generated tokens before the newest one, all of them allowed."""
        if tokens:
            self._consume(tokens)

    def take(self, token: int, min_forced: int, draft: Sequence[int] | None = None) -> Steps:
        """Consume a generated token, and compute the tokens allowed after it.

        Args:
            token: the token.
            min_forced: smallest number of forced tokens to return. A shorter run is generated token by token.
            draft: guess of the next tokens; None without drafts. Forced tokens take its place if they differ.

        Raises:
            ConstraintFailed: the token is not allowed, because every allowed token was banned; or the grammar reached a
                limit of the parser; or nothing may follow before `min_tokens` is reached.
        """
        if not self._consume((token,)):
            self._check_limits()
            raise ConstraintFailed(
                f"no token was left to choose after {self._so_far}: every token allowed by "
                f"{self._grammar.constraint.label} is banned by bad_words, allowed_token_ids, logit_bias or "
                "min_tokens, or by the session's logits_processor. Relax one of them"
            )
        return (yield from self._next(min_forced, draft))

    def _next(self, min_forced: int, guess: Sequence[int] | None = None) -> Steps:
        closing = self._closing()
        if closing and (len(closing) < min_forced or self._request.params.logprobs is not None):
            assert self._request.thoughts is not None, "its budget is used up"
            return Allowed((), self._request.thoughts.masks[closing[0]])
        if closing:
            self._consume(closing)
        forced: tuple[int, ...] = ()
        draft, sure = self._draft(guess)
        bits, *draft_bits = yield from self._bits(draft)
        if self._can_force and not closing and bits is not None and _is_single(bits):
            forced = self._forced(min_forced)
            if forced:
                self._consume(forced)
                draft, sure = (), 0
                bits, *draft_bits = yield from self._bits()
        min_tokens = self._request.params.min_tokens
        if bits is None and self._length < min_tokens:
            raise ConstraintFailed(
                f"{self._grammar.constraint.label} allows nothing after {self._so_far}, and "
                f"min_tokens={min_tokens} asks for more"
            )
        return Allowed(closing or forced, bits, bits is None, draft, sure, draft_bits)

    def _draft(self, guess: Sequence[int] | None) -> tuple[tuple[int, ...], int]:
        """Return a draft that the grammar allows and does not end with, and the number of its forced first tokens."""
        if guess is None or self._thoughts is not None or self._state.is_stopped():
            return (), 0
        forced = tuple(self._state.compute_ff_tokens())
        draft = tuple(guess) if tuple(guess[: len(forced)]) == forced else forced
        draft = _until(draft[: min(self._room - 1, MOST_DRAFT)], self._request.end_ids)
        draft = draft[: self._state.validate_tokens(list(draft))] if draft else ()
        if draft:
            self._state.consume_tokens(list(draft))
            is_complete = self._state.is_stopped()
            self._state.rollback(len(draft))
            draft = draft[:-1] if is_complete else draft
        return draft, min(len(forced), len(draft))

    def _closing(self) -> tuple[int, ...]:
        """Return the tokens that end a thought at the limit, as far as the grammar allows them."""
        if self._thoughts is None or not self._thoughts.forced:
            return ()
        closing = self._thoughts.forced[: self._room]
        return closing[: self._state.validate_tokens(list(closing))]

    def _bits(self, draft: tuple[int, ...] = ()) -> Generator[Need, Bits, list[Bits | None]]:
        """Return the mask of allowed next tokens, or None if the output is complete; then those after a draft's tokens.

        Args:
            draft: the tokens of a draft, allowed one after the other.
        """
        if self._state.is_stopped():
            self._check()
            return [None]
        bits = (yield self._state, draft)[:, : self._grammar.words]
        self._check()
        return list(bits)

    def _forced(self, min_forced: int) -> tuple[int, ...]:
        """Return the forced next tokens, up to the length limit and without end tokens."""
        forced = _until(self._state.compute_ff_tokens()[: self._room], self._request.end_ids)
        return forced if len(forced) >= min_forced else ()

    @property
    def _room(self) -> int:
        return self._request.longest - len(self._request.prompt) - self._length

    def _consume(self, tokens: Collection[int]) -> bool:
        self._length += len(tokens)
        if self._thoughts is not None:
            for token in tokens:
                self._thoughts.push(token)
        return bool(self._state.consume_tokens(list(tokens)))

    @property
    def _so_far(self) -> str:
        return quantity(self._length, "token")

    def _check_limits(self) -> None:
        """Raise ConstraintFailed for another error than a token that the grammar does not allow."""
        if DISALLOWED not in self._state.get_error():
            self._check()

    def _check(self) -> None:
        if self._state.is_error():
            raise ConstraintFailed(
                f"{self._grammar.constraint.label} failed after {self._so_far}: {reason(self._state.get_error())}"
            )


def _is_single(bits: Bits) -> bool:
    """Return True if exactly one token is allowed."""
    words = bits[np.flatnonzero(bits)]
    return len(words) == 1 and int(words[0]).bit_count() == 1


def _until(tokens: Iterable[int], ends: Collection[int]) -> tuple[int, ...]:
    prefix: list[int] = []
    for token in tokens:
        if token in ends:
            break
        prefix.append(token)
    return tuple(prefix)
