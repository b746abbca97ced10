"""Parameters with the fields and the defaults of vLLM's."""

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from numbers import Real
from typing import Any, Final, Self

from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import hinted
from rekindle.core.request.accepted import CHECKS, COLDEST, check_draws
from rekindle.core.request.checks import preview
from rekindle.core.request.repetition import RepetitionLimit
from rekindle.vllm.table import check

MOST_BIAS: Final = 100.0
"""The bound of vLLM's `from_optional` for each bias."""


@hinted
@dataclass
class RepetitionDetectionParams:
    """The end of an output with a repeated pattern: its sizes in tokens, and its number of occurrences."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


@hinted
@dataclass
class StructuredOutputsParams:
    """The form of an output: a JSON schema, a regular expression, texts to choose from, or a grammar."""

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        _ = self.options

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of the constraint for `session.generate`."""
        check("StructuredOutputsParams", changed(self))
        grammar = _as_lark(self.grammar) if isinstance(self.grammar, str) else self.grammar
        texts: dict[str, Any] = {"regex": self.regex, "choice": self.choice, "grammar": grammar}
        forms: list[dict[str, Any]] = [{name: value} for name, value in texts.items() if value is not None]
        if self.json is not None:
            forms.append({"json_schema": _parsed(self.json) if isinstance(self.json, str) else self.json})
        if self.json_object:
            forms.append({"json_schema": {"type": "object"}})
        if len(forms) != 1:
            raise InvalidRequest("StructuredOutputsParams takes one of json, regex, choice, grammar and json_object")
        return forms[0]


def _as_lark(grammar: str) -> str:
    """Return a grammar in GBNF, with rules such as `root ::= "a"`, in Lark, and one in Lark as it is."""
    if "::=" not in grammar:
        return grammar
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(grammar))
    except Exception as error:  # it raises several kinds, for any text
        raise InvalidRequest(f"StructuredOutputsParams(grammar=...) cannot be read as GBNF: {error}") from error


def _parsed(schema: str) -> Any:
    import json

    try:
        return json.loads(schema)
    except ValueError as error:
        raise InvalidRequest(f"StructuredOutputsParams(json=...) must be a JSON schema, got text: {error}") from error


GuidedDecodingParams = StructuredOutputsParams


class RequestOutputKind(Enum):
    """The outputs of a request in vLLM; here each call returns final ones."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@hinted
@dataclass
class SamplingParams:
    """The sampling of a request, with the fields of vLLM."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: Any = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: Any = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: Any = None
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    extra_args: Mapping[str, Any] | None = None
    bad_words: Sequence[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: Any = None
    guided_decoding: StructuredOutputsParams | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Bring the fields into vLLM's form, and check them."""
        self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
        self.stop_token_ids = list(dict.fromkeys(() if self.stop_token_ids is None else self.stop_token_ids))
        self.bad_words = list(dict.fromkeys(self.bad_words or ()))
        self.seed = None if self.seed == -1 else self.seed
        self.logprobs = 1 if self.logprobs is True else self.logprobs
        self.prompt_logprobs = 1 if self.prompt_logprobs is True else self.prompt_logprobs
        self.thinking_token_budget = None if self.thinking_token_budget == -1 else self.thinking_token_budget
        _ = self.options

    @classmethod
    def from_optional(cls, **values: Any) -> Self:
        """Return parameters for values, with the default in place of None.

        Args:
            values: the fields by name. Token ids in `logit_bias` may be text; each bias counts as at most 100.
        """
        own = {each.name: each.default for each in fields(cls)}
        own_values = {name: value for name, value in values.items() if value is not None or own.get(name) is None}
        if isinstance(bias := own_values.get("logit_bias"), Mapping):
            checked = CHECKS["logit_bias"]("logit_bias", bias)
            own_values["logit_bias"] = {token: min(MOST_BIAS, max(-MOST_BIAS, each)) for token, each in checked}
        return cls(**own_values)

    def clone(self) -> Self:
        """Return a copy, with copies of its values unless `skip_clone` is set."""
        return copy(self) if self.skip_clone else deepcopy(self)

    @property
    def options(self) -> dict[str, Any]:
        """The keywords for `session.enqueue`, without the seed: all, as a model's defaults do not apply.

        Raises:
            InvalidRequest: a field is invalid or has no equivalent here; scripts may assign fields at any time.
        """
        if self.guided_decoding is not None:  # the name of earlier versions
            self.structured_outputs, self.guided_decoding = self.guided_decoding, None
        if isinstance(self.structured_outputs, Mapping):
            self.structured_outputs = StructuredOutputsParams(**self.structured_outputs)
        check("SamplingParams", changed(self))
        check_draws(self.n)
        options = self._options()
        for name, value in {**options, "seed": self.seed}.items():
            if value is not None:
                CHECKS[name](name, value)
        if self.max_tokens is not None and not max(1, self.min_tokens) <= self.max_tokens:
            raise InvalidRequest(
                f"max_tokens must be at least 1, and at least min_tokens, got {self.max_tokens} and {self.min_tokens}"
            )
        return options

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "temperature": 0.0 if self.is_greedy else self.temperature,
            "top_p": 1.0 if self.is_greedy else self.top_p,
            "top_k": 0 if self.is_greedy else self.top_k,
            "min_p": 0.0 if self.is_greedy else self.min_p,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "logprobs": self.logprobs,
            "prompt_logprobs": self.prompt_logprobs,
            "skip_special_tokens": self.skip_special_tokens,
            "keep_stop": self.include_stop_str_in_output,
            "logit_bias": self.logit_bias,
            "allowed_token_ids": self.allowed_token_ids,
            "bad_words": self.bad_words,
            "thinking_budget": self.thinking_token_budget,
        }
        if self.prompt_logprob_start:
            options["prompt_logprobs_from"] = self.prompt_logprob_start
        if (limit := self.repetition_detection) is not None and limit.max_pattern_size:
            shortest = max(1, limit.min_pattern_size)
            options["stop_on_repetition"] = RepetitionLimit(limit.max_pattern_size, limit.min_count, 0, shortest)
        if isinstance(self.structured_outputs, StructuredOutputsParams):
            options |= self.structured_outputs.options
        elif self.structured_outputs is not None:
            raise InvalidRequest(
                f"structured_outputs must be StructuredOutputsParams, got {preview(self.structured_outputs)}"
            )
        return options

    @property
    def is_greedy(self) -> bool:
        """True if the likeliest token is taken."""
        return isinstance(self.temperature, Real) and 0 <= self.temperature < COLDEST


@hinted
@dataclass
class BeamSearchParams:
    """The width of a beam search, its longest answer in tokens, and its scores, with the fields of vLLM.

    Attributes:
        length_penalty: the exponent of an answer's length; its log-probability is divided by this power. Above 0, it
            favours longer answers.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check("BeamSearchParams", changed(self))
        if self.beam_width < 1 or self.max_tokens < 1:
            raise InvalidRequest(f"beam_width and max_tokens must be at least 1, got {self}")


@hinted
@dataclass
class PoolingParams:
    """The form of an embedding or of classes, with the fields of vLLM."""

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: Sequence[int] | None = None
    task: str | None = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: Any = None
    extra_kwargs: Mapping[str, Any] | None = None
    output_kind: Any = None
    late_chunking_params: Any = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check("PoolingParams", changed(self))


def changed(params: Any) -> dict[str, Any]:
    """Return the fields of parameters with other values than their defaults."""
    values = {each.name: (getattr(params, each.name), each.default) for each in fields(params)}
    return {name: value for name, (value, default) in values.items() if not _is_equal(value, default)}


def _is_equal(value: Any, default: Any) -> bool:
    """Return True for equal values, of which one may be an array."""
    return value is default or (default is not MISSING and default is not None and value == default)
