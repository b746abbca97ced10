"""Fake grammar with texts computable by hand. For `rekindle.testing`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from rekindle.core.request.constraint import Constrained, Constraint
from rekindle.core.request.request import Request
from rekindle.core.text.grammar import Grammar, Matcher
from rekindle.core.text.masks import run_steps

VOCAB_SIZE = 251
"""The number of tokens. It is prime, so that a token at a wrong position changes the sum in `next_token`."""


@dataclass(frozen=True)
class FakeGrammar:
    """Stand-in for `core.text.grammar.Grammar`: the allowed tokens depend on all tokens of the output.

    Attributes:
        salt: a number to distinguish grammars.
        longest: the most tokens of a complete output.
    """

    salt: int
    longest: int
    constraint = Constraint("grammar", "fake")
    words = -(-VOCAB_SIZE // 32)

    def matcher(self, request: Request) -> Matcher:
        """Return the matcher for a request's output."""
        return Matcher(cast(Any, _FakeMatcher(self)), cast(Any, self), request)

    def may_follow(self, output: Sequence[int]) -> list[int]:
        """Return the tokens allowed after an output: none if it is complete, and a single one in a third of cases."""
        number = self.salt + sum((place + 1) * (token + 2) for place, token in enumerate(output))
        if len(output) >= self.longest or (output and number % 29 == 0):
            return []
        if number % 3 == 0:
            return [number % VOCAB_SIZE]
        return [token for token in range(VOCAB_SIZE) if (token * 7 + number) % 4 == 0]


def constrained(request: Request, grammar: FakeGrammar | Grammar) -> Request:
    """Return a request constrained by a grammar, as after its preparation."""
    return replace(request, constrained=Constrained(grammar, run_steps(grammar.matcher(request).start())))


class _FakeMatcher:
    """Stand-in for llguidance's matcher, with the methods called by `Matcher`."""

    def __init__(self, grammar: FakeGrammar):
        self._grammar = grammar
        self._output: list[int] = []
        self._error = ""

    def consume_tokens(self, tokens: Sequence[int]) -> bool:
        for token in tokens:
            if token not in self._grammar.may_follow(self._output):
                self._error = f"{token} is not allowed"
            self._output.append(token)
        return not self._error

    def rollback(self, count: int) -> None:
        del self._output[len(self._output) - count :]

    def validate_tokens(self, tokens: Sequence[int]) -> int:
        output = list(self._output)
        for place, token in enumerate(tokens):
            if token not in self._grammar.may_follow(output):
                return place
            output.append(token)
        return len(tokens)

    def is_stopped(self) -> bool:
        return bool(self._error) or not self._grammar.may_follow(self._output)

    def is_error(self) -> bool:
        return bool(self._error)

    def get_error(self) -> str:
        return self._error

    def compute_ff_tokens(self) -> list[int]:
        output, forced = list(self._output), list[int]()
        while len(allowed := self._grammar.may_follow(output)) == 1:
            forced += allowed
            output += allowed
        return forced

    def compute_bitmask(self) -> bytes:
        bits = np.zeros(32 * self._grammar.words, bool)
        bits[self._grammar.may_follow(self._output)] = True
        return np.packbits(bits, bitorder="little").tobytes()
