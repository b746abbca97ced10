"""The prompt of `generate`: words of the command line, and text from standard input."""

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Final, NoReturn, Protocol

from rekindle.formats.checkpoints.embedded import NAME
from rekindle.formats.checkpoints.hub.names import HubModel
from rekindle.formats.checkpoints.local.sources import has_prefix

STDIN: Final = "-"
"""The word in whose place the text of standard input is put."""
PATIENCE_SECONDS: Final = 1.0
"""The time after which a wait for standard input is announced."""


class Refuse(Protocol):
    """Exits with a message about invalid arguments; `ArgumentParser.error` is one."""

    def __call__(self, message: str) -> NoReturn: ...


def prompt_of(words: Sequence[str], model: str | None, refuse: Refuse) -> str:
    """Return the prompt: the words, with the text of standard input in the place of "-", or else before them.

    Standard input is read if a word is "-", if there are no words and it is no terminal, or if it is a file or a pipe.

    Args:
        words: the words of the command line, joined by spaces.
        model: the model of --model; None if there is none.
        refuse: exits with a message about a missing prompt, or about a model without --model.
    """
    if model is None and words and _is_model(words):
        rest = " ".join(words[1:]) or "your prompt"
        refuse(f"{words[0]!r} is a model, which needs -m: rekindle generate -m {words[0]} {rest!r}")
    if STDIN in words:
        return " ".join(_read_stdin() if word == STDIN else word for word in words)
    if not words:
        if sys.stdin is None or sys.stdin.isatty():
            refuse("there is no prompt: give its words, or pipe a text into the command")
        return _read_stdin()
    text = _read_stdin() if _is_redirected() else ""
    return "\n\n".join(filter(None, (text, " ".join(words))))


def _is_model(words: Sequence[str]) -> bool:
    """Return True if the first word can only be a model: its name or its path; alone, also its id on the hub."""
    first = words[0]
    if first.lower() == NAME or first.lower().endswith(".gguf"):
        return True
    try:
        is_directory = (Path(first) / "config.json").is_file()
    except (OSError, ValueError):  # a long prompt is no path
        return False
    return is_directory or (len(words) == 1 and (has_prefix(first) or HubModel.of(first) is not None))


def _is_redirected() -> bool:
    """Return True if standard input is a file or a pipe, rather than a terminal, a socket or the null device."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed, or an object of Python
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def _read_stdin() -> str:
    """Return the text of standard input without its last line end. A wait of over a second is announced."""
    note = Timer(PATIENCE_SECONDS, print, ["rekindle: reading standard input to its end"], {"file": sys.stderr})
    note.daemon = True
    note.start()
    try:
        return sys.stdin.read().removesuffix("\n")
    finally:
        note.cancel()
