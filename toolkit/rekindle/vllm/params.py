"""Parameters with the fields and the defaults of vLLM's."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import hinted
from rekindle.core.request.repetition import RepetitionLimit
from rekindle.vllm.table import check

GREEDY: Final = 1e-5
"""The temperature below which vLLM takes the likeliest token."""


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
        check("StructuredOutputsParams", changed(self))

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of the constraint for `session.generate`."""
        import json

        texts: dict[str, Any] = {"regex": self.regex, "choice": self.choice, "grammar": self.grammar}
        options = {name: value for name, value in texts.items() if value is not None}
        if self.json is not None:
            options["json_schema"] = json.loads(self.json) if isinstance(self.json, str) else self.json
        if self.json_object:
            options["json_schema"] = {"type": "object"}
        if len(options) != 1:
            raise InvalidRequest("StructuredOutputsParams takes one of json, regex, choice, grammar and json_object")
        return options


GuidedDecodingParams = StructuredOutputsParams


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
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    extra_args: Mapping[str, Any] | None = None
    bad_words: Sequence[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: Any = None
    guided_decoding: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.guided_decoding is not None:  # the name of earlier versions
            self.structured_outputs, self.guided_decoding = self.guided_decoding, None
        check("SamplingParams", changed(self))

    @property
    def options(self) -> dict[str, Any]:
        """The keywords for `session.enqueue`, without the seed: all, as a model's defaults do not apply."""
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
        return options | ({} if self.structured_outputs is None else self.structured_outputs.options)

    @property
    def is_greedy(self) -> bool:
        """True if the likeliest token is taken."""
        return self.temperature < GREEDY


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
    structured_outputs: StructuredOutputsParams | None = None
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


@hinted
@dataclass(frozen=True)
class LoRARequest:
    """An adapter: its name, a number from 1, and its directory."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        check("LoRARequest", changed(self))


def changed(params: Any) -> dict[str, Any]:
    """Return the fields of parameters with other values than their defaults."""
    values = {each.name: (getattr(params, each.name), each.default) for each in fields(params)}
    return {name: value for name, (value, default) in values.items() if default is MISSING or value != default}
