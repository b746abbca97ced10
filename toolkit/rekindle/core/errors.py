"""Every error that Rekindle raises on purpose, in one tree.

    RekindleError
    ├── ConfigError (ValueError)         a setting of `open` that cannot be served
    ├── ModelError
    │   ├── ModelNotFound                nothing that can be opened at the given place
    │   ├── UnsupportedModel             a model whose architecture or options are not implemented
    │   ├── CheckpointError              a model file that is truncated, corrupt or incomplete
    │   └── ModelTooLarge                a model that does not fit into the memory of its device
    ├── InvalidRequest (ValueError)      a prompt or sampling parameter that cannot be served
    │   ├── PromptTooLong                more tokens than the context or the page pool can hold
    │   └── InvalidBatch                 prompts of a batch that cannot be served, by index
    ├── InvalidData (ValueError)         data that a generation cannot be read from
    ├── BatchFailed                      a request of a batch failed after others had ended
    ├── QueueFull                        `submit` found the waiting queue full
    ├── RequestCancelled                 the request was cancelled before it ended
    ├── ConstraintFailed                 a constraint and other parameters left no token to choose
    ├── LogitsNotFinite                  the model computed NaN or infinity for the request
    ├── StepTimeout                      the device did not finish a tick of the request in time
    ├── ReplicaLost                      the processes that computed the request are gone
    ├── WeightsChanged                   `update_weights` ended the request
    ├── StorageError                     the cache directory cannot be used
    │   └── UnsafeStorage                somebody else could have written what it holds
    ├── NotRestored                      `open(restore="require")` would have had to compile
    ├── HostRefused                      a process has another secret, version or model than its leader
    └── SessionError
        ├── SessionClosed                the session was used after, or closed during, the call
        └── EngineFailed                 the engine stopped; the cause is chained
            └── HostLost                 a process that served the session with this one is gone

Every message says what was expected, what came, and what to do. `ParametersIgnored` is a warning. In IPython, a cell
shows of an error the lines of the user's own code and the message.
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
    """The base of all errors raised by Rekindle."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of this error, which asks for it by this name."""
        return in_a_cell(self)


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


class ModelTooLarge(ModelError):
    """A model that does not fit into the memory of its device; nothing of it was loaded."""


class InvalidRequest(RekindleError, ValueError):
    """A prompt or sampling parameter that cannot be served.

    Attributes:
        parameter: the sampling parameter that it is about, or "prompt"; None if it is about something else, or about
            several.
    """

    parameter: str | None = None

    @classmethod
    def of(cls, parameter: str, message: str) -> Self:
        """Return the error of one parameter."""
        error = cls(message)
        error.parameter = parameter
        return error


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


class InvalidData(RekindleError, ValueError):
    """Data that a generation cannot be read from."""


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


class ConstraintFailed(RekindleError):
    """A request came to where its constraint and its other parameters left no token to choose."""


class LogitsNotFinite(RekindleError):
    """The model computed NaN or infinity where a request's token was to be chosen or its prompt to be scored."""


class StepTimeout(RekindleError):
    """The device did not finish in time a tick that the request waited for.

    Attributes:
        tick: the number of the tick.
        prompt_tokens: how many tokens of prompts it computes.
        rows: how many requests it computes one more token of.
        requests: the ids of the requests that it computes something of.
        seconds: how long it had taken.
        stacks: what every thread of the process was doing then, as tracebacks.
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
    """The replica that computed the request is gone, and no other one could go on with it."""


class WeightsChanged(RekindleError):
    """The request was ended by `update_weights`."""


class StorageError(RekindleError):
    """The cache directory cannot be used."""


class UnsafeStorage(StorageError):
    """A directory or file in the cache directory belongs to another user, or is writable by others."""


class NotRestored(RekindleError):
    """A program is not in the cache directory, and `restore="require"` forbids to compile it."""


class HostRefused(RekindleError):
    """Two processes cannot serve a session together, because their secrets, versions or models differ."""


class SessionError(RekindleError):
    """The session cannot serve requests."""


class SessionClosed(SessionError):
    """The session was used after it was closed, or closed during the call."""


class EngineFailed(SessionError):
    """The engine stopped because of an error, which is chained as the cause."""


class HostLost(EngineFailed):
    """A process that served the session with this one is gone, or has failed."""


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
    "host_cache_bytes": ("swap_space", "cpu_offload_gb"),
}
"""Names of the same things in transformers, vLLM, llama.cpp, Ollama and OpenAI's API, by ours."""


_OTHERWISE: Final = {
    ("messages", "prompts", "inputs", "input", "text", "texts"): "the prompt is the first argument, and has no name",
    ("system", "system_prompt"): 'begin the messages with {"role": "system", "content": ...}',
    ("stream", "streamer"): "session.stream() gives the pieces as they come",
    ("timeout",): "put the call into asyncio.timeout() or anyio.fail_after(), which cancel it",
    ("quantization", "quantize", "load_in_4bit", "load_in_8bit"): "weights are computed in dtype, and a GGUF file's "
    "blocks are widened to that when it is opened: leave it out",
}
"""What does the same as a keyword elsewhere that has no keyword here."""


def not_installed(what: str, extra: str, error: ImportError) -> ConfigError:
    """Return the error of an extra of Rekindle that is not installed, or not as a whole."""
    return ConfigError(f"{what} cannot be imported ({error}); install it: pip install 'rekindle[{extra}]'")


def suggestion(name: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown name: what it is called here, the closest one, or all of them."""
    for names, way in _OTHERWISE.items():
        if name in names:
            return way
    return likely(name, known) or f"known are {', '.join(known)}"


def likely(name: str, known: Collection[str]) -> str:
    """Return what an unknown name is called here, or the closest one, in words; nothing if none is close."""
    for ours, theirs in _ELSEWHERE.items():
        if name in theirs and ours in known:
            return f"here it is {ours}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else ""


def in_a_cell(error: BaseException) -> list[str]:
    """Return the parts of what IPython shows of an error: the lines of the user's own code, and the message.

    IPython draws them as it draws all others, in its colours. What the error was raised from is named, or is drawn too
    where it passed through code of the user. In a mode other than IPython's default, the error is drawn as all others.
    """
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return traceback.format_exception(error)
    draw: Any = shell.InteractiveTB
    if draw.mode != "Context":
        parts: list[str] = draw.structured_traceback(type(error), error, error.__traceback__)
        return parts
    shown, unseen = _abridged(error)
    parts = draw.structured_traceback(type(shown), shown, shown.__traceback__, tb_offset=0)
    draw.tb = error.__traceback__  # %debug starts from what was drawn last
    return [*parts, *unseen, "`%tb Plain` shows the whole traceback."]


def told_briefly(error: AnyError) -> AnyError:
    """Return an error that is not of this package, which IPython from now on shows as it shows those that are."""
    vars(error)["_render_traceback_"] = _last_in_a_cell  # no method of the error's own, which would be a circle
    return error


def _last_in_a_cell() -> list[str]:
    """Return what IPython shows of the error that it shows now, which it keeps there for debuggers."""
    error = sys.last_value
    assert error is not None, "IPython keeps the error before it draws it"
    return in_a_cell(error)


def _abridged(error: BaseException) -> tuple[Exception, list[str]]:
    """Return an error that reads as this one does, with the user's own frames alone, and the causes that it leaves out.

    Its causes are those that passed through the user's code. Of the others, those that were raised from on purpose are
    returned as lines, unless a message has told them already.
    """
    shown = first = _alike(error, _own_frames(error.__traceback__))
    unseen: list[str] = []
    told, on_purpose, seen = str(error), True, {id(error)}
    while (before := _before(error)) is not None and id(before) not in seen:
        on_purpose = on_purpose and before is error.__cause__
        error = before
        seen.add(id(error))
        if frames := _own_frames(error.__traceback__):
            cause = _alike(error, frames)
            if on_purpose:
                shown.__cause__ = cause
            else:
                shown.__context__ = cause
            shown = cause
        elif on_purpose and (not str(error) or str(error) not in told):
            unseen.append(f"caused by {type(error).__name__}: {error}".splitlines()[0])
        told += str(error)
    return first, unseen


def _before(error: BaseException) -> BaseException | None:
    """Return the error that Python tells before this one."""
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _alike(error: BaseException, frames: TracebackType | None) -> Exception:
    """Return an error of the same name and message, because a copy of the error itself may not be possible."""
    alike: Exception = type(type(error).__name__, (Exception,), {})(str(error))
    for note in getattr(error, "__notes__", ()):
        alike.add_note(note)
    return alike.with_traceback(frames)


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of libraries."""
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
    """Tell whether a frame runs code of this package, of an installed one, or of Python itself."""
    path = frame.f_code.co_filename
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return (
        package in ("rekindle", "rekindle_kernels", "IPython")
        or path.startswith((_STANDARD_LIBRARY, "<frozen "))
        or not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)
    )
