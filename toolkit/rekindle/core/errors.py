"""Exceptions raised by Rekindle, in one hierarchy.

    RekindleError
    ├── ConfigError (ValueError)         a setting of `open` is invalid or cannot be served
    ├── ModelError
    │   ├── ModelNotFound                no model at the given name or path
    │   ├── UnsupportedModel             the architecture or an option of the model is not implemented
    │   ├── CheckpointError              a model file is truncated, corrupt or incomplete
    │   └── ModelTooLarge                the model does not fit into the memory of its device
    ├── InvalidRequest (ValueError)      a prompt or sampling parameter is invalid or cannot be served
    │   ├── PromptTooLong                the prompt exceeds the context or the page pool
    │   └── InvalidBatch                 prompts of a batch are invalid, by index
    ├── InvalidData (ValueError)         data is not a serialized generation
    ├── BatchFailed                      a request of a batch failed after others had ended
    ├── QueueFull                        `submit` found the waiting queue full
    ├── RequestCancelled                 the request was cancelled before it ended
    ├── ConstraintFailed                 a constraint and other parameters left no token to choose
    ├── LogitsNotFinite                  the model computed NaN or infinity for the request
    ├── StepTimeout                      the device did not finish a tick of the request in time
    ├── ReplicaLost                      the processes that computed the request are gone
    ├── WeightsChanged                   `update_weights` or `sleep` ended the request
    ├── StorageError                     the cache directory cannot be used
    │   └── UnsafeStorage                another user could have written its content
    ├── NotRestored                      `open(restore="require")` would have had to compile
    ├── HostRefused                      a process has another secret, version or model than its leader
    └── SessionError
        ├── NoWeights                    `open(weights=None)` has no weights until `update_weights` gives some
        ├── SessionClosed                the session is closed, or was closed during the call
        └── EngineFailed                 the engine stopped; the cause is chained
            └── HostLost                 another process of this session is gone

Each message says what was expected, what came, and what to do. `ParametersIgnored` is a warning. In a cell of IPython,
the traceback of an error has only the lines of the user's code and the message.
"""

import difflib
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self, TypeVar

_PACKAGE = str(Path(__file__).parents[1])
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")

AnyError = TypeVar("AnyError", bound=BaseException)


class RekindleError(Exception):
    """Base class of all exceptions raised by Rekindle."""

    def _render_traceback_(self) -> list[str]:
        """Return the traceback lines for IPython, which looks this method up by its name."""
        return in_a_cell(self)


class ConfigError(RekindleError, ValueError):
    """A setting of `open` is invalid or cannot be served."""


class ModelError(RekindleError):
    """A model cannot be opened."""


class ModelNotFound(ModelError):
    """No model can be opened at a name or path."""


class UnsupportedModel(ModelError):
    """The architecture or an option of a model is not implemented."""


class CheckpointError(ModelError):
    """A model file is truncated, corrupt or incomplete."""


class ModelTooLarge(ModelError):
    """A model does not fit into the memory of its device. No weights were loaded."""


class InvalidRequest(RekindleError, ValueError):
    """A prompt or sampling parameter is invalid or cannot be served.

    Attributes:
        parameter: name of the invalid sampling parameter, or "prompt"; None for any other cause, or several parameters.
    """

    parameter: str | None = None

    @classmethod
    def of(cls, parameter: str, message: str) -> Self:
        """Return the error with its `parameter`."""
        error = cls(message)
        error.parameter = parameter
        return error


class PromptTooLong(InvalidRequest):
    """A prompt has more tokens than the model's context or the page pool can hold.

    Attributes:
        tokens: number of tokens in the prompt; None if held prefixes leave too few pages.
        most: most tokens of a prompt.
    """

    tokens: int | None = None
    most: int | None = None


class InvalidBatch(InvalidRequest):
    """Prompts of a batch cannot be served. Nothing of the batch was computed.

    Attributes:
        errors: error of each invalid prompt, by index in the batch.
        total: number of prompts of the batch.
    """

    def __init__(self, message: str, errors: Mapping[int, Exception] | None = None, total: int = 0):
        super().__init__(message)
        self.errors, self.total = dict(errors or {}), total


class InvalidData(RekindleError, ValueError):
    """Data is not a serialized generation."""


class BatchFailed(RekindleError):
    """A request of a batch failed, and the unfinished requests were cancelled. Its error is chained as the cause.

    Attributes:
        results: the list that `generate` would have returned: a generation for each finished request, the error for the
            failed request, and None for each cancelled one.
    """

    def __init__(self, message: str, results: Sequence[Any] = ()):
        super().__init__(message)
        self.results = results


class QueueFull(RekindleError):
    """The waiting queue is full."""


class RequestCancelled(RekindleError):
    """The request was cancelled before it ended."""


class ConstraintFailed(RekindleError):
    """The constraint and the other parameters of a request left no token to choose."""


class LogitsNotFinite(RekindleError):
    """The model computed NaN or infinity at a position to sample or to score."""


class StepTimeout(RekindleError):
    """The device did not finish a tick of the request in time.

    Attributes:
        tick: number of the tick.
        prompt_tokens: prompt tokens in the tick.
        rows: decode rows in the tick, one per request.
        requests: ids of the requests in the tick.
        seconds: time since the tick began.
        stacks: tracebacks of all threads of the process.
    """

    def __init__(
        self,
        message: str,
        *,
        tick: int = 0,
        prompt_tokens: int = 0,
        rows: int = 0,
        requests: tuple[int, ...] = (),
        seconds: float = 0.0,
        stacks: str = "",
    ):
        super().__init__(message)
        self.tick, self.prompt_tokens, self.rows, self.requests = tick, prompt_tokens, rows, requests
        self.seconds, self.stacks = seconds, stacks


class ReplicaLost(RekindleError):
    """The replica of the request is gone, and no other replica could continue the request."""


class WeightsChanged(RekindleError):
    """`update_weights` or `sleep` ended the request."""


class StorageError(RekindleError):
    """The cache directory cannot be used."""


class UnsafeStorage(StorageError):
    """A directory or file in the cache directory belongs to another user, or is writable by others."""


class NotRestored(RekindleError):
    """A program is not stored in the cache directory, and `restore="require"` forbids compiling it."""


class HostRefused(RekindleError):
    """Two processes cannot serve one session, because their secrets, versions or models differ."""


class SessionError(RekindleError):
    """The session cannot serve requests."""


class NoWeights(SessionError):
    """The session was opened with `weights=None`, and `update_weights` has not given it weights yet."""


class SessionClosed(SessionError):
    """The session is closed, or was closed during the call."""


class EngineFailed(SessionError):
    """The engine stopped because of an error. The error is chained as the cause."""


class HostLost(EngineFailed):
    """Another process of this session is gone or has failed."""


class ParametersIgnored(UserWarning):
    """A sampling parameter has no effect together with the others."""


def warn(message: str, category: type[Warning]) -> None:
    """Give a warning at the nearest calling line outside this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


_ELSEWHERE: Final = {
    "max_tokens": ("max_new_tokens", "max_completion_tokens", "max_length", "n_predict", "num_predict"),
    "max_output_tokens": ("max_tokens", "max_completion_tokens", "max_new_tokens"),  # over HTTP alone
    "min_tokens": ("min_new_tokens", "min_length"),
    "temperature": ("do_sample", "temp"),
    "repetition_penalty": ("repeat_penalty",),
    "n": ("best_of", "num_return_sequences", "num_samples"),
    "stop": ("stop_sequences", "stop_strings", "stop_words"),
    "stop_token_ids": ("eos_token_id",),
    "token_ids": ("prompt_token_ids", "input_ids"),
    "logprobs": ("top_logprobs", "n_probs"),
    "prompt_logprobs_from": ("logprob_start_len", "prompt_logprobs_start"),
    "seed": ("random_seed", "random_state"),
    "bad_words": ("bad_words_ids",),
    "json_schema": ("guided_json", "response_format", "response_model", "schema", "output_type"),
    "regex": ("guided_regex", "pattern"),
    "choice": ("guided_choice", "choices", "options"),
    "grammar": ("guided_grammar", "ebnf", "lark"),
    "device": ("device_map",),
    "dtype": ("torch_dtype",),
    "tensor": ("tensor_parallel_size", "tp_size", "tp", "num_devices", "num_gpus"),
    "mesh": ("device_mesh",),
    "max_context": ("max_model_len", "max_seq_len", "max_seq_length", "n_ctx", "num_ctx"),
    "max_running": ("max_num_seqs", "max_batch_size", "batch_size"),
    "max_prefill_tokens": ("max_num_batched_tokens", "n_batch"),
    "num_pages": ("num_gpu_blocks_override",),
    "pool_bytes": ("gpu_memory_utilization", "mem_fraction_static", "kv_cache_memory_bytes"),
    "page_size": ("block_size",),
    "prefix_cache": ("enable_prefix_caching",),
    "quantize": ("quantization", "quantisation", "quantization_config", "load_in_4bit", "load_in_8bit"),
    "host_cache_bytes": ("swap_space", "cpu_offload_gb"),
}
"""Names of the same parameters in transformers, vLLM, llama.cpp, Ollama and OpenAI's API, by Rekindle's name."""


_OTHERWISE: Final = {
    ("messages", "prompts", "inputs", "input", "text", "texts"): "the prompt is the first argument, and has no name",
    ("system", "system_prompt"): 'begin the messages with {"role": "system", "content": ...}',
    ("stream", "streamer"): "session.stream() gives the pieces as they come",
    ("trust_remote_code",): "no code of a model is run: leave it out",
    ("token", "hf_token", "use_auth_token"): "log in by `hf auth login`, or set HF_TOKEN",
    ("cache_dir", "download_dir"): "set HF_HOME for downloaded models, and REKINDLE_CACHE for programs and pages",
    ("verbose", "disable_log_stats", "disable_log_requests"): "progress=False hides the progress",
    ("enforce_eager", "attn_implementation", "use_cache"): "there is nothing to choose: leave it out",
    ("timeout",): "put the call into asyncio.timeout() or anyio.fail_after(), which cancel it",
}
"""Hints for keywords of other libraries without a counterpart here."""


def not_installed(what: str, extra: str, error: ImportError) -> ConfigError:
    """Return the error for an extra of Rekindle that is missing or incomplete."""
    return ConfigError(f"{what} cannot be imported ({error}); install it: pip install 'rekindle-llm[{extra}]'")


def suggestion(name: str, choices: Collection[str]) -> str:
    """Return the end of a message about an unknown name: Rekindle's name, the closest choice, or all choices."""
    for names, way in _OTHERWISE.items():
        if name in names:
            return way
    return likely(name, choices) or f"known are {', '.join(choices)}"


def likely(name: str, choices: Collection[str]) -> str:
    """Return a hint with Rekindle's name for an unknown name, or the closest choice; "" if none is close."""
    for ours, theirs in _ELSEWHERE.items():
        if name in theirs and ours in choices:
            return f"here it is {ours}"
    close = difflib.get_close_matches(name, choices, n=1)
    return f"did you mean {close[0]}?" if close else ""


def in_a_cell(error: BaseException) -> list[str]:
    """Return the traceback of an error for a cell of IPython: the lines of the user's own code, and the message.

    IPython renders the parts in its own colours. A cause is rendered too if it passed through the user's code, and only
    named otherwise. In any traceback mode except IPython's default, the error is rendered like any other error.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return traceback.format_exception(error)
    draw: Any = shell.InteractiveTB
    if draw.mode != "Context":
        parts: list[str] = draw.structured_traceback(type(error), error, error.__traceback__)
        return parts
    abridged, hidden_causes = _abridged(error)
    parts = draw.structured_traceback(type(abridged), abridged, abridged.__traceback__, tb_offset=0)
    draw.tb = error.__traceback__  # %debug starts from what was drawn last
    return [*parts, *hidden_causes, "`%tb Plain` shows the whole traceback."]


def with_short_traceback(error: AnyError) -> AnyError:
    """Give an error of another library the short traceback of Rekindle's errors in IPython, and return it."""
    vars(error)["_render_traceback_"] = _last_in_a_cell  # a bound method would make a reference cycle
    return error


def _last_in_a_cell() -> list[str]:
    """Return the traceback of the error that IPython renders now, stored by it for debuggers."""
    error = sys.last_value
    assert error is not None, "IPython stores the error before rendering it"
    return in_a_cell(error)


def _abridged(error: BaseException) -> tuple[Exception, list[str]]:
    """Return a copy of an error with the user's frames only, and one line for each omitted cause.

    The copy keeps the causes that passed through the user's code. Other explicit causes become lines, unless an earlier
    message contains the text of the cause.
    """
    copy = first = _alike(error, _own_frames(error.__traceback__))
    lines: list[str] = []
    messages, on_purpose, visited = str(error), True, {id(error)}
    while (before := _before(error)) is not None and id(before) not in visited:
        on_purpose = on_purpose and before is error.__cause__
        error = before
        visited.add(id(error))
        if frames := _own_frames(error.__traceback__):
            cause = _alike(error, frames)
            if on_purpose:
                copy.__cause__ = cause
            else:
                copy.__context__ = cause
            copy = cause
        elif on_purpose and (not str(error) or str(error).partition("\n")[0] not in messages):
            lines.append(f"caused by {type(error).__name__}: {error}".splitlines()[0])
        messages += str(error)
    return first, lines


def _before(error: BaseException) -> BaseException | None:
    """Return the cause or context of an error that Python prints before it."""
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _alike(error: BaseException, frames: TracebackType | None) -> Exception:
    """Return an error with the same name, message and notes; the error itself may not be copyable."""
    alike: Exception = type(type(error).__name__, (Exception,), {})(str(error))
    for note in getattr(error, "__notes__", ()):
        alike.add_note(note)
    return alike.with_traceback(frames)


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without frames of libraries."""
    steps = []
    while trace is not None:
        if not _of_a_library(trace.tb_frame):
            steps.append((trace.tb_frame, trace.tb_lasti, trace.tb_lineno))
        trace = trace.tb_next
    own = None
    for step in reversed(steps):
        own = TracebackType(own, *step)
    return own


def _of_a_library(frame: FrameType) -> bool:
    """Return True if a frame runs code of this package, an installed package, or Python itself."""
    path = frame.f_code.co_filename
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return (
        package in ("rekindle", "rekindle_kernels", "IPython")
        or path.startswith((_STANDARD_LIBRARY, "<frozen "))
        or not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)
    )
