"""Constraints compiled for a tokenizer, by llguidance: which tokens may come next in a constrained output."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Generator, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from rekindle.core.errors import ConstraintFailed, InvalidRequest
from rekindle.core.markup import quantity
from rekindle.core.request.allowed import Allowed
from rekindle.core.request.constraint import Constraint, regex_of
from rekindle.core.request.request import Request
from rekindle.core.text.masks import Bits, Steps
from rekindle.core.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NO_TOKEN = "<|rekindle: no token|>"
KEPT = 128
"""How many compiled constraints are kept for requests to come."""
JSON_STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON is written as Python's `json.dumps` does; free white space lets a small model write nothing else for ever."""
STRICT: Final = {"lenient": False, "coerce_one_of": False}
"""No part of a schema is passed over, whatever the schema itself asks of llguidance."""


class Compiler:
    """Compiles constraints, and keeps the latest. Any thread may use it.

    Args:
        tokenizer: of the model.
        vocab_size: the bound that token ids are below.
        end_ids: the model's own end tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Collection[int]):
        self._tokenizer, self._vocab_size, self._end_ids = tokenizer, vocab_size, sorted(end_ids)
        self._kept: OrderedDict[Constraint, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def compiled(self, constraint: Constraint) -> Grammar:
        """Return a compiled constraint. The first takes a quarter of a second, others a few milliseconds.

        Raises:
            InvalidRequest: it cannot be compiled, or no text fulfils it.
        """
        with self._lock:
            found = self._kept.pop(constraint, None) or Grammar(constraint, self._tokens, -(-self._vocab_size // 32))
            self._kept[constraint] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    @cached_property
    def _tokens(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        # Of itself it would take an end token that the tokenizer names, though no chat may end with it.
        backend, known = self._tokenizer.backend, self._tokenizer.vocab_size
        ends = [token for token in self._end_ids if token < known]
        if not ends:  # it needs one, which is then a token that no model has
            backend = type(backend).from_str(backend.to_str())
            backend.add_special_tokens([NO_TOKEN])
            ends, known = [known], known + 1
        return LLTokenizer(backend.to_str(), n_vocab=max(self._vocab_size, known), eos_token=ends)


class Grammar:
    """One constraint, compiled; it does not change.

    Attributes:
        constraint: as given.
        words: int32 of a mask.
    """

    def __init__(self, constraint: Constraint, tokens: LLTokenizer, words: int):
        from llguidance import LLMatcher

        source = _source(constraint)
        bad, why = LLMatcher.validate_grammar_with_warnings(source, tokens)
        if bad:
            raise InvalidRequest.of(constraint.kind, f"{constraint.kind} cannot be served: {_reason(why[0])}")
        start = LLMatcher(tokens, source, log_level=0)
        start.compute_bitmask()
        if start.is_error() or start.is_stopped():
            raise InvalidRequest.of(constraint.kind, f"{constraint.kind} matches no text: {constraint!r}")
        self._start = start
        self.constraint, self.words = constraint, words

    def matcher(self, request: Request) -> Matcher:
        """Return what follows one request's output, from its first token on; see `Matcher`."""
        return Matcher(self._start.deep_copy(), self, request)


class Matcher:
    """The place of one request in its grammar. What it does is in steps, which `masks.together` runs.

    Args:
        place: of the first token, to be changed.
        grammar: which the request is held to.
        request: whose output begins with `request.output_prefix`.

    Raises:
        InvalidRequest: the output begins with what the grammar does not allow.
    """

    def __init__(self, place: LLMatcher, grammar: Grammar, request: Request):
        self._place, self._grammar, self._request = place, grammar, request
        params = request.params
        # Bans are known to the device alone, and a token that is given has no log-probability.
        self._gives = not params.adjusts and params.logprobs is None
        self._length = 0
        output_prefix = request.output_prefix
        if output_prefix and not self._consume(output_prefix):
            raise InvalidRequest(f"the output begins with what {grammar.constraint.label} does not allow")

    def start(self) -> Steps:
        """Return what the output may begin with, or go on with after what is given of it."""
        output_prefix = self._request.output_prefix
        if output_prefix and output_prefix[-1] in self._request.end_ids:
            return Allowed(complete=True)
        return (yield from self._next(1))

    def follow(self, first: Allowed) -> None:
        """Go to where `start` came to, given what it returned."""
        self._consume(first.forced)

    def take(self, token: int, fewest: int) -> Steps:
        """Take in a generated token, and return what may follow it.

        Args:
            fewest: tokens that have to follow are given, instead of generated, where there are at least so many.

        Raises:
            ConstraintFailed: it is not allowed, because nothing allowed was left to choose; or nothing may follow any
                more though more is asked for.
        """
        if not self._consume((token,)):
            raise ConstraintFailed(
                f"no token was left to choose after {self._so_far}: all that {self._grammar.constraint.label} allows "
                "there is banned by bad_words, allowed_token_ids, logit_bias or min_tokens, or by the session's "
                "logits_processor. Ease one of them"
            )
        return (yield from self._next(fewest))

    def _next(self, fewest: int) -> Steps:
        forced: tuple[int, ...] = ()
        bits = yield from self._bits()
        if self._gives and bits is not None and _is_one(bits):
            forced = self._forced(fewest)
            if forced:
                self._consume(forced)
                bits = yield from self._bits()
        wanted = self._request.params.min_tokens
        if bits is None and self._length < wanted:
            raise ConstraintFailed(
                f"{self._grammar.constraint.label} allows nothing after {self._so_far}, and "
                f"min_tokens={wanted} asks for more"
            )
        return Allowed(forced, bits, complete=bits is None)

    def _bits(self) -> Generator[LLMatcher, Bits, Bits | None]:
        """Return what may come next, as in `Allowed`; None if nothing may."""
        if self._place.is_stopped():
            self._check()
            return None
        bits = (yield self._place)[: self._grammar.words]
        self._check()
        return bits

    def _forced(self, fewest: int) -> tuple[int, ...]:
        """Return the tokens that have to follow, as far as there is room and none of them ends the request."""
        room = self._request.longest - len(self._request.prompt) - self._length
        forced = _until(self._place.compute_ff_tokens()[:room], self._request.end_ids)
        return forced if len(forced) >= fewest else ()

    def _consume(self, tokens: Collection[int]) -> bool:
        self._length += len(tokens)
        return bool(self._place.consume_tokens(list(tokens)))

    @property
    def _so_far(self) -> str:
        return quantity(self._length, "token")

    def _check(self) -> None:
        if self._place.is_error():
            raise ConstraintFailed(
                f"{self._grammar.constraint.label} cannot be followed after {self._so_far}: "
                f"{_reason(self._place.get_error())}"
            )


def _is_one(bits: Bits) -> bool:
    """Tell whether one token alone is allowed."""
    words = bits[np.flatnonzero(bits)]
    return len(words) == 1 and int(words[0]).bit_count() == 1


def _until(tokens: Iterable[int], ends: Collection[int]) -> tuple[int, ...]:
    taken: list[int] = []
    for token in tokens:
        if token in ends:
            break
        taken.append(token)
    return tuple(taken)


def _source(constraint: Constraint) -> str:
    from llguidance import LLMatcher

    text = constraint.text
    match constraint.kind:
        case "json_schema":
            _check_counts(json.loads(text))
            options = cast(Any, JSON_STYLE | STRICT)
            return str(LLMatcher.grammar_from_json_schema(text, overrides=options))
        case "regex":
            return str(LLMatcher.grammar_from_regex(text))
        case "choice":
            return str(LLMatcher.grammar_from_regex(regex_of(json.loads(text))))
        case "grammar":
            return str(LLMatcher.grammar_from_lark(text))


def _check_counts(schema: Any) -> None:
    """Check that no object of a schema needs several keys that it does not name: one key twice would do.

    Raises:
        InvalidRequest: one does.
    """
    if isinstance(schema, list):
        for each in schema:
            _check_counts(each)
    if not isinstance(schema, dict):
        return
    least, named = schema.get("minProperties"), schema.get("required")
    free = "patternProperties" in schema or schema.get("additionalProperties", True) is not False
    if isinstance(least, int) and free and least - len(named if isinstance(named, list) else ()) > 1:
        raise InvalidRequest.of(
            "json_schema",
            f"json_schema cannot be held to minProperties={least}, because it does not name the keys, and one key "
            "twice would count as two: name them in required, or leave minProperties out",
        )
    for each in schema.values():
        _check_counts(each)


def _reason(said: str) -> str:
    """Return what llguidance says, without the state that it prints for its own developers."""
    return said.split("\n<state>")[0].strip()
