"""Lines of input: from a terminal with history and editing, or from a pipe."""

import sys
from contextlib import suppress
from typing import Any, Final, Protocol

from rekindle.chats.archive import HISTORY
from rekindle.core.errors import StorageError
from rekindle.core.store.directory import cache_dir

PROMPT: Final = ">>> "
CONTINUATION: Final = "... "
COLOUR: Final = "ansicyan bold"
"""The style of typed lines, to tell them from answers."""
QUOTES: Final = '"""'
"""The mark before and after a message of several lines."""


class Lines(Protocol):
    """A source of messages.

    Attributes:
        interactive: whether a person types the messages and reads the answers.
    """

    interactive: bool

    def read(self, text: str = "") -> str:
        """Return the next message; a person can edit it, beginning from `text`.

        Raises:
            EOFError: there are no more messages.
            KeyboardInterrupt: the person began the message anew.
        """

    def ask(self, question: str) -> str:
        """Return the answer to a question, which is no message; "" at the end of the lines.

        Raises:
            KeyboardInterrupt: the person answered with an interrupt.
        """


def open_lines(commands: list[str], *, coloured: bool, keeps: bool) -> Lines:
    """Return the lines of a terminal, or of standard input if it is no terminal.

    Args:
        commands, coloured, keeps: see `TerminalLines`.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return PlainLines(interactive=False)
    try:
        return TerminalLines(commands, coloured=coloured, keeps=keeps)
    except ImportError:  # of prompt_toolkit, in an environment with another choice of packages
        return PlainLines(interactive=True)


class PlainLines:
    """Lines of standard input. Lines between triple quotes form one message.

    Attributes:
        interactive: as in `Lines`.
    """

    def __init__(self, *, interactive: bool):
        self.interactive = interactive

    def read(self, text: str = "") -> str:
        """Return the next message, as in `Lines`; it cannot begin from a text."""
        message = self._line(PROMPT)
        while not is_complete(message):
            try:
                message += f"\n{self._line(CONTINUATION)}"
            except EOFError:
                break
        return unquoted(message)

    def ask(self, question: str) -> str:
        """Return the answer to a question, as in `Lines`."""
        try:
            return self._line(question)
        except EOFError:
            return ""

    def _line(self, prompt: str) -> str:
        if self.interactive:
            return input(prompt)
        line = "" if sys.stdin is None else sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")


class TerminalLines:
    """Lines of a terminal, with the keys of prompt_toolkit.

    Attributes:
        interactive: as in `Lines`.

    Args:
        commands: the words that Tab completes.
        coloured: whether the lines have a colour.
        keeps: whether the lines are kept for later chats.
    """

    interactive = True

    def __init__(self, commands: list[str], *, coloured: bool, keeps: bool):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.shortcuts import CompleteStyle
        from prompt_toolkit.styles import Style

        file = None
        with suppress(StorageError):  # a disk that cannot be written only loses the history
            file = cache_dir(HISTORY) / "chat" if keeps else None
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=lambda width, line, wraps: " " * len(CONTINUATION) if wraps else CONTINUATION,
            key_bindings=_keys(),
            history=InMemoryHistory() if file is None else FileHistory(str(file)),
            style=Style([("", COLOUR)]) if coloured else None,
            completer=WordCompleter(commands, sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            enable_open_in_editor=True,
        )

    def read(self, text: str = "") -> str:
        """Return the next message, as in `Lines`."""
        return unquoted(self._session.prompt(default=text))

    def ask(self, question: str) -> str:
        """Return the answer to a question, as in `Lines`; the history of messages does not have it."""
        from prompt_toolkit import PromptSession

        try:
            return PromptSession[str](question).prompt()
        except EOFError:
            return ""


def _keys() -> Any:
    """Return the keys: Enter sends a complete message, Alt-Enter begins a line."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @keys.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def is_complete(message: str) -> bool:
    """Return False for a message that begins with triple quotes, before it ends with them."""
    text = message.strip()
    return not text.startswith(QUOTES) or (len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES))


def unquoted(message: str) -> str:
    """Return a message without its triple quotes, and without space around it."""
    text = message.strip()
    if not text.startswith(QUOTES):
        return text
    return text.removeprefix(QUOTES).removesuffix(QUOTES).strip()
