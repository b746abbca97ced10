"""Tracebacks in cells of IPython: the lines of the user's own code, and the message."""

import sys
import sysconfig
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

_PACKAGE = str(Path(__file__).parents[1])
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
AnyError = TypeVar("AnyError", bound=BaseException)


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


def release_variables(error: BaseException) -> None:
    """Clear the variables of Rekindle's frames in the tracebacks of an error and its causes.

    IPython keeps the last error of a user, and with it all arrays in the variables of a function that failed.
    """
    errors, visited = [error], set[int]()
    while errors:
        each = errors.pop()
        if id(each) in visited:
            continue
        visited.add(id(each))
        errors += [other for other in (each.__cause__, each.__context__) if other is not None]
        errors += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code.co_filename.startswith(_PACKAGE):
                with suppress(RuntimeError):  # it is running
                    frame.clear()


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
