"""Sampling parameters and their validation."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypedDict, TypeVar

from rekindle.core.errors import InvalidRequest, ParametersIgnored, warn
from rekindle.core.keywords import hinted, suggestion
from rekindle.core.layer_parts import Part
from rekindle.core.request import checks
from rekindle.core.request.accepted import CHECKS, LogprobsOf, Side
from rekindle.core.request.activations.capture import Capture
from rekindle.core.request.activations.steering import Patch, Steering
from rekindle.core.request.constraint import Constraint, SchemaLike
from rekindle.core.request.repetition import RepetitionLimit


class SamplingOptions(TypedDict, total=False):
    """Sampling keywords of `generate`, `stream` and `submit`, as documented in `SamplingParams`."""

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
    stop_on_repetition: RepetitionLimit | Mapping[str, int] | bool | None
    thinking_budget: int | None
    skip_special_tokens: bool
    logprobs: int | None
    logprobs_of: LogprobsOf
    prompt_logprobs: int | None
    prompt_logprobs_from: int
    truncate_prompt_tokens: int | None
    truncation_side: Side
    cache_salt: str
    adapter: str | None
    steer: Steering | Sequence[Steering]
    patch: Patch | Sequence[Patch]
    capture: int | Part | Sequence[int | Part] | None
    draft: Literal["lookup", "mtp", False] | None
    priority: int
    json_schema: SchemaLike | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None


@hinted
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a request. They apply in the order of the attributes, the same order as in transformers.

    At temperature 0 (the default, unless the model recommends another) generation is greedy, and `top_k`, `top_p`,
    `min_p`, `seed` and `n` above 1 would have no effect. A call with an effective value for one of these parameters and
    without a temperature therefore gets temperature 1. A call with both one of them and temperature 0 gets the warning
    `rekindle.ParametersIgnored`.

    Attributes:
        logit_bias: numbers to add to the logits of token ids, each from -1e6 to 1e6, or minus infinity to ban a token.
            Default empty. A call may give the token ids as strings of digits.
        repetition_penalty: divisor of positive logits, and factor of negative logits, for tokens in the prompt or the
            output, from 0.001 to 1000. Default 1.
        frequency_penalty: number to subtract from the logit of a token once per occurrence in the output, from -2 to 2.
            Default 0.
        presence_penalty: number to subtract from the logits of tokens in the output, from -2 to 2. Default 0.
        bad_words: texts or sequences of token ids that are never generated. Default empty. A text is banned as the
            tokenizer encodes it at the start of a text and after a space. The ban applies to the last token of a
            sequence.
        min_tokens: smallest number of output tokens before an end token or a stop string may end the request. Default
            0.
        allowed_token_ids: token ids to choose from. None (default) allows all.
        processor_args: up to 8 numbers for the session's `logits_processor`, each from -1e30 to 1e30. None (default)
            does not run the processor. In a session with a processor, the default for calls is ().
        temperature: divisor of the logits, from 1e-5 to 100. 0 (default) always takes the likeliest token. None in a
            call means the default.
        top_k: number of likeliest tokens to sample from. 0 (default) or -1 keeps all.
        top_p: smallest total probability of the tokens to sample from, from 0 to 1: keeps the fewest likeliest
            tokens with at least this total. Default 1, all tokens. 0 always takes the likeliest token, as temperature 0
            does.
        min_p: smallest probability of a token relative to the likeliest token, from 0 (default) to 1.
        seed: seed for repeatable sampling, from 0 to 2**64 - 1. None (default), or -1 as in vLLM, takes a random seed.
        max_tokens: largest number of tokens to generate; None, or more than fits, generates to the end of the context.
            Default None for messages and in chats, whose answers end by `stop_on_repetition` too; else 256, as in
            `map`. 0 only computes the prompt, for `prompt_logprobs`.
        ignore_eos: continue after the end tokens of the model; `stop_token_ids` still end the request. Default False.
        stop_token_ids: one or more further token ids that end the request. The end token is part of the output.
            Default empty.
        stop: one or more texts that end the request once one is complete in the generated text, in any tokenization.
            Default empty; at most 256 texts of up to 4,096 characters. Special tokens count by their text here, even
            if `skip_special_tokens` removes them.
        keep_stop: keep the whole stop string in the text. Default False. The token ids include its tokens either way.
        stop_on_repetition: end an output whose last tokens are one pattern several times, with the finish reason
            "repetition": True for a pattern of up to 128 tokens, at least four times and 64 tokens, with more room in
            code, tables, JSON and verse, and for lists that restart and sentences that return; or a
            `rekindle.RepetitionLimit`. None (default) is False outside of chats, and True in chats, for answers without
            a constraint and `ignore_eos`.
        thinking_budget: largest number of tokens between the delimiters of thoughts. Then the closing delimiter follows
            by force, and the answer goes on; 0 closes a thought at once. Default None, no limit. Refused for a model
            without thoughts; `json_schema`, `regex` and `choice` leave no room for them.
        skip_special_tokens: remove special tokens from the text. Default True. False keeps them by their text.
        logprobs: number of likeliest alternatives per position to return log-probabilities of, in addition to the
            generated tokens. True means 0, only the tokens, and -1 all tokens of the vocabulary, for which
            `max_logprobs` of `open` must be as large. None (default) or False disables log-probabilities.
        logprobs_of: distribution of `logprobs`. "model" (default) is the distribution of the model, before any sampling
            parameter. "sampled" is the distribution used for sampling: after all parameters from `logit_bias` to
            `min_p`, normalized over the remaining tokens. At temperature 0 it is the distribution before `temperature`.
            Removed tokens have no rank, so there may be fewer alternatives than `logprobs` asks for. "allowed" is the
            distribution of the model again, with alternatives only among the tokens that `allowed_token_ids`, the bans
            and a constraint leave.
        prompt_logprobs: number of likeliest alternatives, as for `logprobs`, at each position of the prompt except the
            first. Default None. The distribution is always that of the model. Scored positions are computed rather than
            read from the prefix cache.
        prompt_logprobs_from: index of the first prompt token to score. Default 0; needs `prompt_logprobs`. Earlier
            tokens have None and may come from the prefix cache.
        truncate_prompt_tokens: number of tokens that a longer prompt is cut to; -1 for as many as fit beside
            `max_tokens` (256 for None), and at least half of the context. Default None, no cut.
        truncation_side: side of the prompt to cut. "left" (default) keeps the last tokens, and the tokens that the
            tokenizer puts before each text. "right" keeps the first ones.
        cache_salt: text of up to 1,024 characters, default "". Cached prefixes are shared only between requests with
            the same salt.
        adapter: name of the adapter to use, from `adapters` of `open` or `session.add_adapter`. None (default) uses the
            model alone. Requests with other adapters share no cached prefixes.
        steer: one or more `rekindle.Steering`, vectors added to activations. Default empty.
        patch: one or more `rekindle.Patch`, activations put in place of others before any steering. Default empty. Both
            together change at most 16 ranges of positions. The first such request of a session compiles programs of
            its own. Cached prefixes are shared only between requests with the same changes.
        capture: one or more layers (indices, from the end if negative) and parts ("residual", "attention", "mlp") whose
            activations of the generated tokens are in `answer.activations`, a `rekindle.Activations`. Without layers
            all of them, without parts the residual stream. They are computed after the last token, between two ticks
            as by `session.look` over prompt and answer. All answers of a call take at most 4 GiB. Default None.
        draft: source of drafts as in `rekindle.open`, or False for none. None (default) is the session's; "mtp" needs
            a session with it. The tokens stay the same. Drafts are never tried with penalties, `bad_words` of several
            tokens, `processor_args`, `steer` or `patch`, nor for models with a rope that depends on the length; for
            models with layers with states, they need `draft` in `rekindle.open` too.
        priority: integer from -2**31 to 2**31 - 1, default 0. Requests with the lowest number leave the waiting queue
            first, as in vLLM, and are preempted last if the page pool is full. A full queue has room for them; see
            `max_waiting`. A request that has waited for 1,024 ticks goes next at any priority.
        json_schema: JSON schema of the output: a dict, or a type with a schema in pydantic, such as a model or a
            dataclass. Default None. The output is formatted as by `json.dumps`, and `answer.parsed` is its value.
            Excludes the next three.
        regex: regular expression for the whole output, in the syntax of Rust's `regex`: without look-around and
            back-references, and combining marks count as word characters. Default None.
        choice: texts to choose the output from. Default None.
        grammar: grammar of the output in llguidance's variant of Lark, with the rule `start`. Default None.
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
    stop_on_repetition: RepetitionLimit | Literal[False] | None = None
    thinking_budget: int | None = None
    skip_special_tokens: bool = True
    logprobs: int | None = None
    logprobs_of: LogprobsOf = "model"
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 0
    truncate_prompt_tokens: int | None = None
    truncation_side: Side = "left"
    cache_salt: str = ""
    adapter: str | None = None
    steer: tuple[Steering, ...] = ()
    patch: tuple[Patch, ...] = ()
    capture: Capture | None = None
    draft: Literal["lookup", "mtp", False] | None = None
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
    ) -> Self:
        """Validate the keywords of a call.

        Args:
            options: keywords of the call.
            defaults: values for keywords missing in the call.
            n: number of samples of each prompt.
            beside: names of keywords of the call with another meaning; they are ignored.

        Raises:
            InvalidRequest: an unknown keyword, a value out of its range, or a contradiction between values.

        Warns:
            ParametersIgnored: the call gives a temperature of 0 and parameters without effect at that temperature.
        """
        if "n" in options:
            raise InvalidRequest("n is for generate(): a stream or a handle is one sample; submit several requests")
        check_keywords(options, (*CHECKS, "n", *beside))
        explicit = {name: value for name, value in options.items() if name != "temperature" or value is not None}
        values = {**(defaults or {}), **explicit}
        values = {name: value for name, value in values.items() if value is not None or name not in _NONE_IS_NONE}
        params = cls(**{name: _checked(name, values[name]) for name in CHECKS if name in values})
        if params.max_tokens is not None and params.min_tokens > params.max_tokens:
            raise InvalidRequest(
                f"min_tokens {params.min_tokens} is above max_tokens {params.max_tokens}; raise max_tokens"
            )
        if params.logprobs_of != "model" and params.logprobs is None:
            raise InvalidRequest(
                f"logprobs_of={params.logprobs_of!r} needs logprobs: the number of alternatives per token, 0 for none"
            )
        if params.prompt_logprobs_from and params.prompt_logprobs is None:
            raise InvalidRequest(
                f"prompt_logprobs_from={params.prompt_logprobs_from} needs prompt_logprobs: the number of alternatives "
                "per token, 0 for none"
            )
        if params.truncation_side != "left" and params.truncate_prompt_tokens is None:
            raise InvalidRequest(
                f"truncation_side={params.truncation_side!r} needs truncate_prompt_tokens: the number of tokens to "
                "keep of a longer prompt"
            )
        if params.keep_stop and not params.stop:
            warn("keep_stop=True has no effect without stop: the texts that end the request", ParametersIgnored)
        params._check_constraint()
        if params.thinking_budget is not None and params.constraint is not None and not params.grammar:
            if "thinking_budget" in explicit:
                warn(
                    f"thinking_budget={params.thinking_budget} has no effect beside {params.constraint.parameter}: it "
                    "constrains the whole output, and leaves no room for thoughts",
                    ParametersIgnored,
                )
            params = replace(params, thinking_budget=None)
        if params.top_p == 0:
            return replace(params, temperature=0.0, top_p=1.0)
        return params._with_sampling(explicit, n) if params.temperature == 0 else params

    def _check_constraint(self) -> None:
        """Require at most one constraint, without `ignore_eos`."""
        names = [name for name in ("json_schema", "regex", "choice", "grammar") if getattr(self, name) is not None]
        if len(names) > 1:
            raise InvalidRequest(f"{' and '.join(names)} each constrain the output; give one of them")
        if names and self.ignore_eos:
            raise InvalidRequest(f"{names[0]} ends the output where it is complete, which ignore_eos=True forbids")

    def _with_sampling(self, explicit: Collection[str], n: int) -> Self:
        """Return the parameters, at temperature 1 if the call asks for sampling and gives no temperature."""
        idle = [name for name in _SAMPLING if name in explicit and getattr(self, name) != getattr(_NEUTRAL, name)]
        idle += ["n"] if n > 1 else []
        if idle and "temperature" in explicit:
            warn(
                f"temperature=0 always takes the likeliest token, so {' and '.join(idle)} would have no effect: "
                "give a temperature above 0, or none, which means 1 here; or leave them out",
                ParametersIgnored,
            )
            return self
        return replace(self, temperature=1.0) if idle else self

    @property
    def constraint(self) -> Constraint | None:
        """Constraint on the output; None for free text."""
        return self.json_schema or self.regex or self.choice or self.grammar

    @property
    def steers(self) -> bool:
        """True if the request changes activations."""
        return bool(self.steer or self.patch)

    @property
    def adjusts(self) -> bool:
        """True if a parameter changes logits before the temperature divides them, which takes state on the device."""
        penalties = (self.repetition_penalty, self.frequency_penalty, self.presence_penalty)
        bans = self.logit_bias or self.bad_words or self.min_tokens or self.allowed_token_ids is not None
        return bool(bans) or penalties != (1.0, 0.0, 0.0) or self.processor_args is not None

    def with_counts(self, vocab_size: int) -> Self:
        """Return the parameters with the size of the vocabulary in place of -1 as a number of alternatives."""
        if -1 not in (self.logprobs, self.prompt_logprobs):
            return self
        output, prompt = (vocab_size if count == -1 else count for count in (self.logprobs, self.prompt_logprobs))
        return replace(self, logprobs=output, prompt_logprobs=prompt)

    def check_against(self, vocab_size: int, max_logprobs: int) -> None:
        """Check the parameters against a model.

        Raises:
            InvalidRequest: a token id is outside the vocabulary, or the request asks for more alternatives than the
                compiled programs return.
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
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and count > max_logprobs:
                raise InvalidRequest.of(
                    name, f"{name} must be at most {max_logprobs}, got {count}; raise max_logprobs in open()"
                )


_NEUTRAL = SamplingParams()
_Params = TypeVar("_Params", bound=SamplingParams)


def check_keywords(names: Iterable[str], accepted: Collection[str]) -> None:
    """Check the keywords of a call.

    Raises:
        InvalidRequest: a keyword is not accepted.
    """
    for name in names:
        if name not in accepted:
            raise InvalidRequest(f"unknown keyword {name!r}; {suggestion(name, accepted)}")


def draws(params: _Params, n: int) -> list[_Params]:
    """Return the parameters of `n` independent samples. With a seed they are repeatable; the first has that seed."""
    seed = params.seed
    if seed is None:
        return [params] * n
    return [params, *(replace(params, seed=_derived(seed, draw)) for draw in range(1, n))]


def _checked(name: str, value: Any) -> Any:
    """Validate the value of a parameter; an InvalidRequest gets the name of the parameter."""
    try:
        return CHECKS[name](name, value)
    except InvalidRequest as error:
        error.parameter = name
        raise


def _derived(seed: int, draw: int) -> int:
    """Derive the seed of one of several samples: 64 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {draw}".encode(), digest_size=8).digest())


_NONE_IS_NONE = frozenset({"logit_bias", "bad_words", "stop_token_ids", "stop"})
"""Parameters for which None means an empty collection, a common spelling in other libraries."""
_SAMPLING = ("top_k", "top_p", "min_p", "seed")
"""Parameters without effect in greedy generation."""
