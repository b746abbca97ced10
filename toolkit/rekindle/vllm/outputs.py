"""Results with the fields of vLLM's, which scripts may assign."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from rekindle.core.request.tokens import TokenLogprob
from rekindle.results.generation import Generation
from rekindle.vllm.lora.request import LoRARequest

T = TypeVar("T")


@dataclass
class Logprob:
    """Log-probability of a token, with its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
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
        routed_experts, sampling_mask, spec_decode_metrics, weight_versions: None, as in vLLM without options for them.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    routed_experts: None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None
    sampling_mask: None = None
    spec_decode_metrics: None = None
    weight_versions: None = None

    def finished(self) -> bool:
        """Return True; a result is complete."""
        return self.finish_reason is not None


@dataclass
class RequestStateStats:
    """The times of a request, with the fields of vLLM's.

    Attributes:
        num_generation_tokens: the number of generated tokens, of all samples.
        arrival_time: the time of submission, in seconds since the epoch.
        queued_ts, scheduled_ts, first_token_ts, last_token_ts: the times of submission, of the start, of the first
            token and of the last one, in seconds of `time.monotonic`.
        first_token_latency: the seconds from submission to the first token.
        is_corrupted: False.
    """

    num_generation_tokens: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    is_corrupted: bool = False


@dataclass
class RequestOutput:
    """The samples of a prompt.

    Attributes:
        request_id: the number of the prompt, as text.
        prompt, prompt_token_ids: the prompt; for a conversation, as the template renders it.
        prompt_logprobs: the log-probabilities of its tokens, with None for the first one.
        outputs: the samples.
        finished: True.
        metrics: the times of the request.
        lora_request: the adapter.
        encoder_prompt, encoder_prompt_token_ids, kv_transfer_params: None, as in vLLM for these models.
        num_cached_tokens: the tokens found in the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool = True
    metrics: RequestStateStats | None = None
    lora_request: LoRARequest | None = None
    encoder_prompt: None = None
    encoder_prompt_token_ids: None = None
    num_cached_tokens: int | None = None
    kv_transfer_params: None = None


@dataclass
class EmbeddingOutput:
    """An embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """The number of components."""
        return len(self.embedding)


@dataclass
class ClassificationOutput:
    """The probability of each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.probs)


@dataclass
class ScoringOutput:
    """The similarity of two texts."""

    score: float


@dataclass
class ScoringRequestOutput:
    """The similarity of a pair of texts."""

    request_id: str
    outputs: ScoringOutput
    finished: bool = True


@dataclass
class PoolingOutput:
    """The result of a pooling task: an embedding, or the probabilities of classes.

    Attributes:
        data: the numbers, float32; vLLM has a tensor of torch here.
    """

    data: np.ndarray[Any, np.dtype[np.float32]]


@dataclass
class PoolingRequestOutput(Generic[T]):
    """The result of a pooling task for a prompt, with the tokens of the prompt."""

    request_id: str
    outputs: T
    prompt_token_ids: list[int]
    finished: bool = True


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The embedding of a prompt, with the tokens of the prompt."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The classes of a prompt, with the tokens of the prompt."""


@dataclass
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

    tokens: list[int]
    logprobs: list[Mapping[int, Logprob]]
    lora_request: LoRARequest | None = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class BeamSearchOutput:
    """The sequences of a prompt, at most as many as the width of the beam, the best first."""

    sequences: list[BeamSearchSequence]


def completion(index: int, generation: Generation, ends: Collection[int], lora: LoRARequest | None) -> CompletionOutput:
    """Return a sample from a generation; a stop at one of `ends` has no reason in vLLM."""
    stopped, logprobs = generation.stopped_by, generation.logprobs
    is_repeated = generation.finish_reason == "repetition"
    return CompletionOutput(
        index,
        generation.text,
        list(generation.token_ids),
        None if logprobs is None else sum(each.logprob for each in logprobs),
        None if logprobs is None else [by_token(each) for each in logprobs],
        finish_reason=generation.finish_reason,
        stop_reason="repetition_detected" if is_repeated else None if stopped in ends else stopped,
        lora_request=lora,
    )


def metrics(generations: Sequence[Generation], submitted: float) -> RequestStateStats:
    """Return the times of the samples of a prompt, submitted at a time of `time.monotonic`."""
    first, last = generations[0].timings, max(each.timings.total for each in generations)
    return RequestStateStats(
        num_generation_tokens=sum(len(each.token_ids) for each in generations),
        arrival_time=time.time() - time.monotonic() + submitted,
        queued_ts=submitted,
        scheduled_ts=submitted + first.queued,
        first_token_ts=submitted + first.first_token,
        last_token_ts=submitted + last,
        first_token_latency=first.first_token,
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
