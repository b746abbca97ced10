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
    ├── OutOfMemory                      the device had no memory for a step of the request
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

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from rekindle.core.tracebacks import in_a_cell

_PACKAGE = str(Path(__file__).parents[1])


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


class OutOfMemory(RekindleError):
    """The device had no memory for a step of the request. The session goes on."""


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


@contextmanager
def panics_as(kind: Callable[[str], Exception]) -> Iterator[None]:
    """Raise a panic of a library in Rust, which is no Exception and would end the engine, as an error of a kind."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise kind(f"it broke down ({error!s:.200})") from error


def not_installed(what: str, extra: str, error: ImportError) -> ConfigError:
    """Return the error for an extra of Rekindle that is missing or incomplete."""
    return ConfigError(f"{what} cannot be imported ({error}); install it: pip install 'rekindle-llm[{extra}]'")
