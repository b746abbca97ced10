"""Every error that Rekindle raises on purpose, in one tree.

    RekindleError
    ├── ConfigError (ValueError)         a setting of `open` that cannot be served
    ├── ModelError
    │   ├── ModelNotFound                nothing that can be opened at the given place
    │   ├── UnsupportedModel             a model whose architecture or options are not implemented
    │   └── CheckpointError              a model file that is truncated, corrupt or incomplete
    ├── InvalidRequest (ValueError)      a prompt or sampling parameter that cannot be served
    │   ├── PromptTooLong                more tokens than the context or the page pool can hold
    │   └── InvalidBatch                 prompts of a batch that cannot be served, by index
    ├── BatchFailed                      a request of a batch failed after others had ended
    ├── QueueFull                        `submit` found the waiting queue full
    ├── RequestCancelled                 the request was cancelled before it ended
    ├── WeightsChanged                   `update_weights` ended the request
    ├── StorageError                     the cache directory cannot be used
    │   └── UnsafeStorage                somebody else could have written what it holds
    ├── NotRestored                      `open(restore="require")` would have had to compile
    └── SessionError
        ├── SessionClosed                the session was used after, or closed during, the call
        └── EngineFailed                 the engine stopped; the cause is chained

Every message says what was expected, what came, and what to do. `ParametersIgnored` is a warning.
"""

import difflib
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_PACKAGE = str(Path(__file__).parent)


class RekindleError(Exception):
    """The base of all errors raised by Rekindle."""


class ConfigError(RekindleError, ValueError):
    """A setting of `open` that cannot be served."""


class ModelError(RekindleError):
    """A model that cannot be opened."""


class ModelNotFound(ModelError):
    """A model name or path at which nothing can be opened."""


class UnsupportedModel(ModelError):
    """A model whose architecture or options are not implemented."""


class CheckpointError(ModelError):
    """A model file that is truncated, corrupt or incomplete."""


class InvalidRequest(RekindleError, ValueError):
    """A prompt or sampling parameter that cannot be served."""


class PromptTooLong(InvalidRequest):
    """A prompt with more tokens than the model's context or the page pool can hold."""


class InvalidBatch(InvalidRequest):
    """Prompts of a batch cannot be served, and nothing of the batch was computed.

    Attributes:
        errors: the error of each of these prompts, by its index in the batch.
    """

    def __init__(self, message: str, errors: Mapping[int, Exception] | None = None):
        super().__init__(message)
        self.errors = dict(errors or {})


class BatchFailed(RekindleError):
    """A request of a batch failed, and those that had not ended were cancelled. The cause is that request's error.

    Attributes:
        results: what `generate` would have returned, with the generations that had ended, the error in the place of the
            request that failed, and None for each that was cancelled.
    """

    def __init__(self, message: str, results: Sequence[Any] = ()):
        super().__init__(message)
        self.results = results


class QueueFull(RekindleError):
    """The waiting queue is full."""


class RequestCancelled(RekindleError):
    """The request was cancelled before it ended."""


class WeightsChanged(RekindleError):
    """The request was ended by `update_weights`."""


class StorageError(RekindleError):
    """The cache directory cannot be used."""


class UnsafeStorage(StorageError):
    """A directory or file in the cache directory belongs to another user, or is writable by others."""


class NotRestored(RekindleError):
    """A program is not in the cache directory, and `restore="require"` forbids to compile it."""


class SessionError(RekindleError):
    """The session cannot serve requests."""


class SessionClosed(SessionError):
    """The session was used after it was closed, or closed during the call."""


class EngineFailed(SessionError):
    """The engine stopped because of an error, which is chained as the cause."""


class ParametersIgnored(UserWarning):
    """Sampling parameters were given that do nothing beside the others."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn of the line that called this package, however many calls it is away."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


_ELSEWHERE: Final = {
    "max_tokens": ("max_new_tokens", "max_completion_tokens", "max_length", "n_predict", "num_predict"),
    "min_tokens": ("min_new_tokens", "min_length"),
    "temperature": ("do_sample", "temp"),
    "repetition_penalty": ("repeat_penalty",),
    "n": ("best_of", "num_return_sequences", "num_samples"),
    "stop": ("stop_sequences", "stop_strings", "stop_words"),
    "stop_token_ids": ("eos_token_id",),
    "token_ids": ("prompt_token_ids", "input_ids"),
    "logprobs": ("top_logprobs", "n_probs"),
    "seed": ("random_seed", "random_state"),
    "bad_words": ("bad_words_ids",),
    "device": ("device_map",),
    "dtype": ("torch_dtype",),
    "max_context": ("max_model_len", "max_seq_len", "max_seq_length", "n_ctx", "num_ctx"),
    "max_running": ("max_num_seqs", "max_batch_size", "batch_size"),
    "max_prefill_tokens": ("max_num_batched_tokens", "n_batch"),
    "num_pages": ("gpu_memory_utilization", "num_gpu_blocks_override", "mem_fraction_static"),
    "page_size": ("block_size",),
    "prefix_cache": ("enable_prefix_caching",),
    "host_cache_bytes": ("swap_space", "cpu_offload_gb"),
}
"""Names of the same things in transformers, vLLM, llama.cpp, Ollama and OpenAI's API, by ours."""


def suggestion(name: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown name: what it is called here, the closest one, or all of them."""
    for ours, theirs in _ELSEWHERE.items():
        if name in theirs and ours in known:
            return f"here it is {ours}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
