"""Sampling parameters, checked where they are given, and the request that carries them."""

import hashlib
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any, TypedDict

from rekindle.buckets import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS
from rekindle.errors import InvalidRequest, PromptTooLong, suggestion


class SamplingOptions(TypedDict, total=False):
    """The sampling keywords of `generate`, `stream` and `submit`; `SamplingParams` says what each does."""

    logit_bias: Mapping[int, float] | None
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    bad_words: Sequence[str | Sequence[int]] | None
    min_tokens: int
    allowed_token_ids: Sequence[int] | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    max_tokens: int
    ignore_eos: bool
    stop_token_ids: Sequence[int] | None
    stop: str | Sequence[str] | None
    keep_stop: bool
    logprobs: int | None
    prompt_logprobs: int | None
    cache_salt: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters of a request. They apply in the order of the attributes, which is that of transformers.

    Attributes:
        logit_bias: added to the logits of these token ids, from -1e6 to 1e6; minus infinity bans a token.
        repetition_penalty: divides the positive and multiplies the negative logits of tokens in prompt or output, from
            0.001 to 1000.
        frequency_penalty: subtracted from a token's logit for each time that the output has it, from -2 to 2.
        presence_penalty: subtracted from the logits of tokens that the output has, from -2 to 2.
        bad_words: never generate these: texts, as the tokenizer writes them at the start of a text and after a space,
            or sequences of token ids. The token that would complete one is banned.
        min_tokens: no end token, and no end by a stop string, before there are this many tokens.
        allowed_token_ids: choose only among these; None allows all.
        temperature: divisor of the logits; 0 always takes the likeliest token.
        top_k: keep only this many likeliest tokens; 0 keeps all.
        top_p: keep the smallest number of likeliest tokens with at least this probability in sum, in (0, 1].
        min_p: keep tokens at least this many times as likely as the likeliest, in [0, 1].
        seed: makes the draws repeatable, from 0 to 2**31 - 1; None takes a random one.
        max_tokens: the most tokens to generate, at least 1.
        ignore_eos: do not end at the model's own end tokens; `stop_token_ids` still end.
        stop_token_ids: further token ids that end the request, included in its output.
        stop: texts that end the request as soon as one is complete in the generated text, however it is tokenized.
        keep_stop: leave the stop string in the text; the token ids include its tokens in any case.
        logprobs: give log-probabilities of each token and of this many likeliest ones at its position; None for none.
        prompt_logprobs: the same for each token of the prompt but the first; such a prompt is computed as a whole.
        cache_salt: share cached prefixes only with requests of the same salt.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    min_tokens: int = 0
    allowed_token_ids: frozenset[int] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 256
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    keep_stop: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    cache_salt: str = ""

    @classmethod
    def from_options(cls, options: Mapping[str, Any], beside: Collection[str] = ()) -> "SamplingParams":
        """Check the keywords of a call.

        Args:
            options: the keywords.
            beside: the names of keywords that are no sampling parameters; they are ignored.

        Raises:
            InvalidRequest: an unknown keyword, a value out of its range, or values that contradict each other.
        """
        if "n" in options:
            raise InvalidRequest("n is for generate(): a stream or a handle is of one draw; submit several requests")
        check_keywords(options, (*_CHECKS, *beside))
        given = {name: value for name, value in options.items() if value is not None or name not in _NONE_IS_NONE}
        params = cls(**{name: check(name, given[name]) for name, check in _CHECKS.items() if name in given})
        if params.min_tokens > params.max_tokens:
            raise InvalidRequest(
                f"min_tokens {params.min_tokens} is above max_tokens {params.max_tokens}; raise max_tokens"
            )
        return params

    @property
    def adjusts(self) -> bool:
        """Tell whether logits are changed before the temperature divides them, which takes state on the device."""
        penalties = (self.repetition_penalty, self.frequency_penalty, self.presence_penalty)
        bans = self.logit_bias or self.bad_words or self.min_tokens or self.allowed_token_ids is not None
        return bool(bans) or penalties != (1.0, 0.0, 0.0)

    def check_against(self, vocab_size: int, max_logprobs: int) -> None:
        """Check that a model can serve these parameters.

        Raises:
            InvalidRequest: a token id is outside the vocabulary, or more log-probabilities are asked for than the
                compiled programs give.
        """
        ids = {
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
            "logit_bias": [token for token, _ in self.logit_bias],
            "bad_words": [token for word in self.bad_words if not isinstance(word, str) for token in word],
        }
        for name, tokens in ids.items():
            _in_vocabulary(f"token ids in {name}", tokens, vocab_size)
        for name, asked in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if asked is not None and asked > max_logprobs:
                raise InvalidRequest(
                    f"{name} must be at most {max_logprobs}, got {asked}; raise max_logprobs in open()"
                )


def check_keywords(given: Iterable[str], known: Collection[str]) -> None:
    """Check that all keywords of a call are known.

    Raises:
        InvalidRequest: one of them is not.
    """
    for name in given:
        if name not in known:
            raise InvalidRequest(f"unknown keyword {name!r}; {suggestion(name, known)}")


def draws(params: SamplingParams, n: Any) -> list[SamplingParams]:
    """Return the parameters of `n` independent draws. With a seed they are repeatable, and the first has that seed.

    Raises:
        InvalidRequest: `n` is not an integer of at least 1.
    """
    count, seed = _integer("n", n, 1, 2**31 - 1), params.seed
    if seed is None:
        return [params] * count
    return [params, *(replace(params, seed=_derived(seed, draw)) for draw in range(1, count))]


def _derived(seed: int, draw: int) -> int:
    """Return the seed of one of several draws: 31 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {draw}".encode(), digest_size=4).digest()) >> 1


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
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    end_ids: frozenset[int]
    capacity: int
    bad_words: tuple[tuple[int, ...], ...] = ()
    namespace: str = ""
    hold: bool = False


def check_token_ids(name: str, ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return a prompt of token ids as a tuple.

    Raises:
        InvalidRequest: these are no integers, there are none, or one is outside the vocabulary.
    """
    checked = _token_ids(name, ids)
    _in_vocabulary(name, checked, vocab_size)
    if not checked:
        raise InvalidRequest(f"{name} is empty; a prompt needs at least one token")
    return checked


def check_length(prompt: Sequence[int], capacity: int) -> None:
    """Check that a prompt of token ids leaves room for one token of output.

    Raises:
        PromptTooLong: there is no room.
    """
    if len(prompt) >= capacity:
        raise PromptTooLong(
            f"the prompt has {len(prompt)} tokens; at most {capacity - 1} fit with one token of output. "
            "Shorten it, or raise max_context or num_pages in open(), up to what the model was made for"
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


# Checks return values of Python's own types: a numpy int8 would overflow where a length is added to it.


def _token_ids(name: str, ids: Any) -> tuple[int, ...]:
    if isinstance(ids, list | tuple) and set(map(type, ids)) <= {int}:
        return tuple(ids)
    try:
        tokens = [None] if isinstance(ids, str | bytes) else [_as_integer(token) for token in ids]
    except TypeError:
        tokens = [None]
    known = tuple(token for token in tokens if token is not None)
    if len(known) < len(tokens):
        raise InvalidRequest(f"{name} must be a sequence of integers, got {ids!r:.80}")
    return known


def _in_vocabulary(name: str, ids: Collection[int], vocab_size: int) -> None:
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):  # in C, because a prompt may have 100,000 tokens
        outside = next(token for token in ids if not 0 <= token < vocab_size)
        raise InvalidRequest(f"{name} must be from 0 to {vocab_size - 1}, got {outside}")


def _as_integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _integer(name: str, value: Any, low: int, high: int) -> int:
    number = _as_integer(value)
    if number is None or not low <= number <= high:
        raise InvalidRequest(f"{name} must be an integer from {low} to {high}, got {value!r:.80}")
    return number


def _number(name: str, value: Any, low: float, high: float, above_low: bool = False) -> float:
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not low <= number <= high or (above_low and number == low):
        interval = f"{'above' if above_low else 'of at least'} {low:g}" + (
            f" and at most {high:g}" if high < math.inf else ""
        )
        raise InvalidRequest(f"{name} must be a finite number {interval}, got {value!r:.80}")
    return number


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be True or False, got {value!r:.80}")
    return value


def _salt(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a str, got {value!r:.80}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} must be text that UTF-8 can encode, got {value!r:.80}") from None
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else tuple(value) if _is_sequence(value) else (None,)
    if not all(isinstance(text, str) and text for text in texts):
        raise InvalidRequest(f"{name} must be a text or a sequence of texts, none of them empty, got {value!r:.80}")
    return texts


def _words(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    if not _is_sequence(value):
        raise InvalidRequest(f"{name} must be a sequence of texts or of token id sequences, got {value!r:.80}")
    words = tuple(word if isinstance(word, str) else _token_ids(f"each of {name}", word) for word in value)
    if not all(word.strip() if isinstance(word, str) else word for word in words):
        raise InvalidRequest(f"{name} must have no empty word, got {value!r:.80}")
    return words


def _bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must be a mapping of token ids to numbers, got {value!r:.80}")
    (tokens, biases) = _token_ids(f"the keys of {name}", tuple(value)), value.values()
    what = f"the values of {name}"
    return tuple((token, _one_bias(what, bias)) for token, bias in zip(tokens, biases, strict=True))


def _one_bias(name: str, value: Any) -> float:
    bans = isinstance(value, Real) and value == -math.inf
    return -math.inf if bans else _number(name, value, -1e6, 1e6)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _unless_none(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def _some_ids(name: str, value: Any) -> frozenset[int]:
    ids = frozenset(_token_ids(name, value))
    if not ids:
        raise InvalidRequest(f"{name} is empty; give at least one token id, or None to allow all")
    return ids


_NONE_IS_NONE = frozenset({"logit_bias", "bad_words", "stop_token_ids", "stop"})
"""Collections for which None stands for an empty one, as many callers write it."""

_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "logit_bias": _bias,
    "repetition_penalty": partial(_number, low=1e-3, high=1e3),
    "frequency_penalty": partial(_number, low=-2.0, high=2.0),
    "presence_penalty": partial(_number, low=-2.0, high=2.0),
    "bad_words": _words,
    "min_tokens": partial(_integer, low=0, high=2**31 - 1),
    "allowed_token_ids": _unless_none(_some_ids),
    "temperature": partial(_number, low=0.0, high=math.inf),
    "top_k": partial(_integer, low=0, high=2**31 - 1),
    "top_p": partial(_number, low=0.0, high=1.0, above_low=True),
    "min_p": partial(_number, low=0.0, high=1.0),
    "seed": _unless_none(partial(_integer, low=0, high=2**31 - 1)),
    "max_tokens": partial(_integer, low=1, high=2**31 - 1),
    "ignore_eos": _boolean,
    "stop_token_ids": lambda name, value: frozenset(_token_ids(name, value)),
    "stop": _texts,
    "keep_stop": _boolean,
    "logprobs": _unless_none(partial(_integer, low=0, high=2**31 - 1)),
    "prompt_logprobs": _unless_none(partial(_integer, low=0, high=2**31 - 1)),
    "cache_salt": _salt,
}
