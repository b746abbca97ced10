"""vLLM's offline interface over a session: `from rekindle.vllm import LLM, SamplingParams`.

The names, arguments and results are vLLM's, and so are the defaults: temperature 1 and 16 tokens. Arguments with an
effect on speed alone are accepted with a note; any other argument without an equivalent raises `InvalidRequest`.
"""

from typing import NoReturn

from rekindle.vllm.inputs import TextPrompt, TokensPrompt
from rekindle.vllm.llm import LLM
from rekindle.vllm.lora.request import LoRARequest
from rekindle.vllm.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    ClassificationOutput,
    ClassificationRequestOutput,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Logprob,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from rekindle.vllm.sampling_params import (
    BeamSearchParams,
    GuidedDecodingParams,
    PoolingParams,
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from rekindle.vllm.table import ABSENT_NAMES

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "GuidedDecodingParams",
    "LoRARequest",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RepetitionDetectionParams",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
]


def __getattr__(name: str) -> NoReturn:
    """Raise ImportError for a name of vLLM without an equivalent, with another way."""
    if name in ABSENT_NAMES:
        raise ImportError(f"rekindle.vllm has no {name!r}: {ABSENT_NAMES[name]}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
