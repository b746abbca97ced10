"""Open sessions of this process, by model."""

import sys
import threading
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rekindle import Session

_sessions: Final[dict[str, "Session"]] = {}
_lock: Final = threading.Lock()


def session_of(model: str) -> "Session":
    """Return the session of a model; the first call opens it. It serves all threads until the process ends.

    Programs and prefixes of earlier processes are found on disk, as by `rekindle chat`. A command for one prompt
    compiles no programs beyond its own.

    Args:
        model: the model, as for `rekindle.open`.

    Raises:
        RekindleError: the model cannot be opened.
    """
    with _lock:
        if model not in _sessions:
            import rekindle

            _sessions[model] = rekindle.open_sync(
                model,
                progress=sys.stderr is not None and sys.stderr.isatty(),
                show_restored=False,
                precompile="lazy" if _is_for_one_prompt() else "background",
            )
        return _sessions[model]


def _is_for_one_prompt() -> bool:
    """Return True in a command of `llm` other than `llm chat`, and False in programs that import `llm`."""
    context = click.get_current_context(silent=True)
    return context is not None and context.info_name != "chat"
