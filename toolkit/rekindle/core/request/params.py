"""Sampling parameters, checked where they are given."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypedDict, cast, get_args

from rekindle.core.buckets import MAX_PROCESSOR_ARGS
from rekindle.core.errors import InvalidRequest, ParametersIgnored, suggestion, warn
from rekindle.core.request import checks, constraint
from rekindle.core.request.constraint import Constraint, SchemaLike

MOST_TOKENS = 2**30
"""The bound of numbers of tokens: more than any context has, and few enough to add one such number to another."""
MOST_DRAWS = 2**16
COLDEST, HOTTEST = 1e-6, 100.0
"""The lowest temperature above 0, and the highest: float32 holds any logit divided by them."""
LONGEST_SALT = 1024

LogprobsOf = Literal["model", "sampled"]


class SamplingOptions(TypedDict, total=False):
    """The sampling keywords of `generate`, `stream` and `submit`; `SamplingParams` says what each does."""

    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    bad_words: Sequence[str | Sequence[int]] | None
    min_tokens: int
    allowed_token_ids: Sequence[int] | None
    processor_args: Sequence[float] | None
    temperature: float | None
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    max_tokens: int | None
    ignore_eos: bool
    stop_token_ids: Sequence[int] | int | None
    stop: str | Sequence[str] | None
    keep_stop: bool
    skip_special_tokens: bool
    logprobs: int | None
    logprobs_of: LogprobsOf
    prompt_logprobs: int | None
    prompt_logprobs_from: int
    cache_salt: str
    priority: int
    json_schema: SchemaLike | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling parameters of a request. They apply in the order of the attributes, which is that of transformers.

    At temperature 0, which is the default where the model names no other, there is nothing to draw: `top_k`, `top_p`,
    `min_p`, `seed` and several draws (`n`) would do nothing. A call that gives one of them, with a value that has an
    effect, and gives no temperature gets temperature 1. A call that gives temperature 0 beside them is warned
    (`rekindle.ParametersIgnored`).

    Attributes:
        logit_bias: added to the logits of these token ids, from -1e6 to 1e6; minus infinity bans a token. In a call,
            the keys may be strings of digits.
        repetition_penalty: divides the positive and multiplies the negative logits of tokens in prompt or output, from
            0.001 to 1000.
        frequency_penalty: subtracted from a token's logit for each time that the output has it, from -2 to 2.
        presence_penalty: subtracted from the logits of tokens that the output has, from -2 to 2.
        bad_words: never generate these: texts, as the tokenizer writes them at the start of a text and after a space,
            or sequences of token ids. The token that would complete one is banned.
        min_tokens: no end token, and no end by a stop string, before there are this many tokens.
        allowed_token_ids: choose only among these; None allows all.
        processor_args: up to 8 numbers for the session's `logits_processor`, from -1e30 to 1e30; None does not run it.
            In a session that has one, a call that does not give them gives none, ().
        temperature: divisor of the logits, from 1e-6 to 100; 0 always takes the likeliest token. In a call, None is as
            if it were not given.
        top_k: keep only this many likeliest tokens; 0 or -1 keeps all.
        top_p: keep the smallest number of likeliest tokens with at least this probability in sum, from 1e-9 to 1.
        min_p: keep tokens at least this many times as likely as the likeliest, in [0, 1].
        seed: makes the draws repeatable, from 0 to 2**64 - 1; None takes a random one, and so does -1, as in vLLM.
        max_tokens: the most tokens to generate; None generates to the end of the context, and 0 computes the prompt
            alone, as for `prompt_logprobs`.
        ignore_eos: do not end at the model's own end tokens; `stop_token_ids` still end.
        stop_token_ids: further token ids, or one, that end the request, included in its output.
        stop: texts that end the request as soon as one is complete in the generated text, however it is tokenized; at
            most 256, of up to 4,096 characters. Special tokens count as their text here, skipped or not.
        keep_stop: leave the stop string in the text, all of it; the token ids include its tokens in any case.
        skip_special_tokens: leave special tokens out of the text; False writes them as their text.
        logprobs: give log-probabilities of each token and of this many likeliest ones at its position. True is 0, which
            gives those of the tokens alone; None or False gives none.
        logprobs_of: of which distribution `logprobs` are. "model" is the model's own, before any sampling parameter.
            "sampled" is the one that the token is drawn from: after everything from `logit_bias` to `min_p`, with the
            probabilities of the kept tokens in sum 1. At temperature 0, which draws nothing, it is after everything
            before `temperature`. Tokens that are not kept have no rank: where fewer are kept than `logprobs` asks for,
            there are fewer alternatives.
        prompt_logprobs: as `logprobs`, for each token of the prompt but the first, always of the model's own
            distribution; what is scored of a prompt is computed, and not found in the prefix cache.
        prompt_logprobs_from: the index of the first token of the prompt that is scored; those before it have None, and
            may be found in the prefix cache. Needs `prompt_logprobs`.
        cache_salt: share cached prefixes only with requests of the same salt, of up to 1,024 characters.
        priority: the lowest number leaves the waiting queue first, as in vLLM, and gives its pages back last where a
            pool is full. Who has waited for 1,024 ticks goes next in any case.
        json_schema: write JSON of this schema, as `json.dumps` would: a dict, or a type that pydantic makes one of,
            such as a model or a dataclass. `answer.parsed` has the value. A call gives one of this and the next three.
        regex: write a text that this regular expression matches as a whole, in the syntax of Rust's `regex`: there are
            no look-around and no back-references, and combining marks are word characters too.
        choice: write one of these texts.
        grammar: write what this grammar derives from its rule `start`, in llguidance's form of Lark's grammars.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    min_tokens: int = 0
    allowed_token_ids: frozenset[int] | None = None
    processor_args: tuple[float, ...] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 256
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    keep_stop: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    logprobs_of: LogprobsOf = "model"
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 0
    cache_salt: str = ""
    priority: int = 0
    json_schema: Constraint | None = None
    regex: Constraint | None = None
    choice: Constraint | None = None
    grammar: Constraint | None = None

    @classmethod
    def from_options(
        cls,
        options: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        *,
        n: int = 1,
        beside: Collection[str] = (),
    ) -> "SamplingParams":
        """Check the keywords of a call.

        Args:
            options: the keywords.
            defaults: options for keywords that the call does not give.
            n: the number of draws of each prompt.
            beside: the names of keywords that are no sampling parameters; they are ignored.

        Raises:
            InvalidRequest: an unknown keyword, a value out of its range, or values that contradict each other.

        Warns:
            ParametersIgnored: the call gives a temperature of 0, and parameters that do nothing then.
        """
        if "n" in options:
            raise InvalidRequest("n is for generate(): a stream or a handle is of one draw; submit several requests")
        check_keywords(options, (*_CHECKS, "n", *beside))
        said = {name: value for name, value in options.items() if name != "temperature" or value is not None}
        given = {**(defaults or {}), **said}
        given = {name: value for name, value in given.items() if value is not None or name not in _NONE_IS_NONE}
        params = cls(**{name: _checked(name, given[name]) for name in _CHECKS if name in given})
        if params.max_tokens is not None and params.min_tokens > params.max_tokens:
            raise InvalidRequest(
                f"min_tokens {params.min_tokens} is above max_tokens {params.max_tokens}; raise max_tokens"
            )
        if params.logprobs_of != "model" and params.logprobs is None:
            raise InvalidRequest(
                f"logprobs_of={params.logprobs_of!r} needs logprobs: how many alternatives to each token, 0 for none"
            )
        if params.prompt_logprobs_from and params.prompt_logprobs is None:
            raise InvalidRequest(
                f"prompt_logprobs_from={params.prompt_logprobs_from} needs prompt_logprobs: how many alternatives to "
                "each token, 0 for none"
            )
        params._check_constraint()
        return params._that_draw(said, n) if params.temperature == 0 else params

    def _check_constraint(self) -> None:
        """Check that there is one constraint at most, and that what fulfils it can end the output."""
        given = [name for name in ("json_schema", "regex", "choice", "grammar") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidRequest(f"{' and '.join(given)} each say what the output has to be; give one of them")
        if given and self.ignore_eos:
            raise InvalidRequest(f"{given[0]} ends the output where it is complete, which ignore_eos=True forbids")

    def _that_draw(self, said: Collection[str], n: int) -> "SamplingParams":
        """Return these parameters at temperature 1 if the call says something of draws and nothing of a temperature."""
        idle = [name for name in _DRAWN_BY if name in said and getattr(self, name) != getattr(_NEUTRAL, name)]
        idle += ["n"] if n > 1 else []
        if idle and "temperature" in said:
            warn(
                f"temperature=0 always takes the likeliest token, which leaves nothing to do for {' and '.join(idle)}: "
                "give a temperature above 0, or none, which is 1 beside them; or leave them out",
                ParametersIgnored,
            )
            return self
        return replace(self, temperature=1.0) if idle else self

    @property
    def constraint(self) -> Constraint | None:
        """The form that the output must have, if the call says so."""
        return self.json_schema or self.regex or self.choice or self.grammar

    @property
    def adjusts(self) -> bool:
        """Tell whether logits are changed before the temperature divides them, which takes state on the device."""
        penalties = (self.repetition_penalty, self.frequency_penalty, self.presence_penalty)
        bans = self.logit_bias or self.bad_words or self.min_tokens or self.allowed_token_ids is not None
        return bool(bans) or penalties != (1.0, 0.0, 0.0) or self.processor_args is not None

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
            try:
                checks.in_vocabulary(f"token ids in {name}", tokens, vocab_size)
            except InvalidRequest as error:
                raise InvalidRequest.of(name, str(error)) from None
        for name, asked in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if asked is not None and asked > max_logprobs:
                raise InvalidRequest.of(
                    name, f"{name} must be at most {max_logprobs}, got {asked}; raise max_logprobs in open()"
                )


_NEUTRAL = SamplingParams()


def check_keywords(given: Iterable[str], known: Collection[str]) -> None:
    """Check that all keywords of a call are known.

    Raises:
        InvalidRequest: one of them is not.
    """
    for name in given:
        if name not in known:
            raise InvalidRequest(f"unknown keyword {name!r}; {suggestion(name, known)}")


def draws(params: SamplingParams, n: int) -> list[SamplingParams]:
    """Return the parameters of `n` independent draws. With a seed they are repeatable, and the first has that seed."""
    seed = params.seed
    if seed is None:
        return [params] * n
    return [params, *(replace(params, seed=_derived(seed, draw)) for draw in range(1, n))]


def _checked(name: str, value: Any) -> Any:
    """Return the value of a parameter as the parameters have it, or raise an InvalidRequest that names it."""
    try:
        return _CHECKS[name](name, value)
    except InvalidRequest as error:
        error.parameter = name
        raise


def check_draws(n: Any) -> int:
    """Return a number of draws, or of forks.

    Raises:
        InvalidRequest: `n` is not an integer of at least 1, or there are too many.
    """
    return checks.integer("n", n, 1, MOST_DRAWS)


def _derived(seed: int, draw: int) -> int:
    """Return the seed of one of several draws: 64 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {draw}".encode(), digest_size=8).digest())


def _seed(name: str, value: Any) -> int | None:
    seed: int = checks.integer(name, value, -1, 2**64 - 1)
    return None if seed == -1 else seed


def _distribution(name: str, value: Any) -> LogprobsOf:
    if not isinstance(value, str) or value not in get_args(LogprobsOf):
        raise InvalidRequest(f'{name} must be "model" or "sampled", got {checks.preview(value)}')
    return cast(LogprobsOf, value)


_NONE_IS_NONE = frozenset({"logit_bias", "bad_words", "stop_token_ids", "stop"})
"""Collections for which None stands for an empty one, as many callers write it."""
_DRAWN_BY = ("top_k", "top_p", "min_p", "seed")
"""Parameters that do nothing where the likeliest token is taken."""

_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "logit_bias": checks.bias,
    "repetition_penalty": partial(checks.number, low=1e-3, high=1e3),
    "frequency_penalty": partial(checks.number, low=-2.0, high=2.0),
    "presence_penalty": partial(checks.number, low=-2.0, high=2.0),
    "bad_words": checks.words,
    "min_tokens": partial(checks.integer, low=0, high=MOST_TOKENS),
    "allowed_token_ids": checks.unless_none(checks.some_token_ids),
    "processor_args": checks.unless_none(partial(checks.numbers, low=-1e30, high=1e30, most=MAX_PROCESSOR_ARGS)),
    "temperature": partial(checks.zero_or_number, low=COLDEST, high=HOTTEST),
    "top_k": lambda name, value: max(0, checks.integer(name, value, -1, 2**31 - 1)),
    "top_p": partial(checks.number, low=1e-9, high=1.0),
    "min_p": partial(checks.number, low=0.0, high=1.0),
    "seed": checks.unless_none(_seed),
    "max_tokens": checks.unless_none(partial(checks.integer, low=0, high=MOST_TOKENS)),
    "ignore_eos": checks.boolean,
    "stop_token_ids": checks.one_or_more_token_ids,
    "stop": checks.texts,
    "keep_stop": checks.boolean,
    "skip_special_tokens": checks.boolean,
    "logprobs": partial(checks.count_or_none, high=2**31 - 1),
    "logprobs_of": _distribution,
    "prompt_logprobs": partial(checks.count_or_none, high=2**31 - 1),
    "prompt_logprobs_from": partial(checks.integer, low=0, high=MOST_TOKENS),
    "cache_salt": partial(checks.text, longest=LONGEST_SALT),
    "priority": partial(checks.integer, low=-(2**31), high=2**31 - 1),
    "json_schema": checks.unless_none(constraint.json_schema),
    "regex": checks.unless_none(constraint.regex),
    "choice": checks.unless_none(constraint.choice),
    "grammar": checks.unless_none(constraint.grammar),
}
