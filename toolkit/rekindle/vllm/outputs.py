"""Results with the fields of vLLM's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from rekindle.core.request.tokens import TokenLogprob
from rekindle.results.generation import Generation
from rekindle.vllm.params import LoRARequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of a token, with its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One sample of a prompt.

    Attributes:
        index: its number among the samples.
        text, token_ids: the generated text, and its tokens.
        cumulative_logprob: the sum of the log-probabilities; None without `logprobs`.
        logprobs: at each position, the log-probabilities by token id.
        finish_reason: "stop", "length" or "repetition".
        stop_reason: the stop string or the stop token; None for the end token of the model.
        lora_request: the adapter.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None
    logprobs: Sequence[Mapping[int, Logprob]] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        """Return True; a result is complete."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The samples of a prompt.

    Attributes:
        request_id: the number of the prompt, as text.
        prompt, prompt_token_ids: the prompt; for a conversation, as the template renders it.
        prompt_logprobs: the log-probabilities of its tokens, with None for the first one.
        outputs: the samples.
        finished: True.
        lora_request: the adapter.
        num_cached_tokens: the tokens found in the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    prompt_logprobs: Sequence[Mapping[int, Logprob] | None] | None
    outputs: Sequence[CompletionOutput]
    finished: bool = True
    lora_request: LoRARequest | None = None
    num_cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """An embedding."""

    embedding: Sequence[float]

    @property
    def hidden_size(self) -> int:
        """The number of components."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class ClassificationOutput:
    """The probability of each class."""

    probs: Sequence[float]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.probs)


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """The similarity of two texts."""

    score: float


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    """The similarity of a pair of texts."""

    request_id: str
    outputs: ScoringOutput
    finished: bool = True


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    """The result of a pooling task: an embedding, or the probabilities of classes.

    Attributes:
        data: the numbers, float32; vLLM has a tensor of torch here.
    """

    data: np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput(Generic[T]):
    """The result of a pooling task for a prompt, with the tokens of the prompt."""

    request_id: str
    outputs: T
    prompt_token_ids: Sequence[int]
    finished: bool = True


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The embedding of a prompt, with the tokens of the prompt."""

    __slots__ = ()


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The classes of a prompt, with the tokens of the prompt."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """One result of a beam search.

    Attributes:
        tokens: the tokens of the prompt and of the answer, with the end token.
        logprobs: at each position of the answer, the log-probabilities by token id.
        lora_request: the adapter.
        cum_logprob: the sum of the log-probabilities of the answer.
        text: the text of the prompt and the answer.
        finish_reason, stop_reason: None, as in vLLM.
    """

    tokens: Sequence[int]
    logprobs: Sequence[Mapping[int, Logprob]]
    lora_request: LoRARequest | None = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The sequences of a prompt, at most as many as the width of the beam, the best first."""

    sequences: Sequence[BeamSearchSequence]


def completion(index: int, generation: Generation, stops: Sequence[int], lora: LoRARequest | None) -> CompletionOutput:
    """Return a sample from a generation; `stops` are the stop tokens of the request."""
    stopped = generation.stopped_by
    return CompletionOutput(
        index,
        generation.text,
        list(generation.token_ids),
        None if generation.logprobs is None else sum(each.logprob for each in generation.logprobs),
        None if generation.logprobs is None else [by_token(each) for each in generation.logprobs],
        generation.finish_reason,
        stopped if isinstance(stopped, str) or stopped in stops else None,
        lora,
    )


def prompt_logprobs(generation: Generation) -> list[dict[int, Logprob] | None] | None:
    """Return the log-probabilities of a prompt; None unless requested."""
    if generation.prompt_logprobs is None:
        return None
    return [None if each is None else by_token(each) for each in generation.prompt_logprobs]


def by_token(token: TokenLogprob) -> dict[int, Logprob]:
    """Return the log-probabilities at a position: of the token, and of the likeliest ones."""
    every: tuple[Any, ...] = (token, *token.top)
    return {each.token_id: Logprob(each.logprob, each.rank, each.text) for each in every}
