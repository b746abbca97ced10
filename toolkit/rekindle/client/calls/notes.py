"""Notes about the calls of a session, each displayed once."""

from collections.abc import Callable, Mapping
from typing import Any

from rekindle.core.concurrency.warning import warn
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.rendering.chat import unread_variables


class Notes:
    """The notes of one session, by subject.

    Args:
        write: displays a note; None displays none.
        tokenizer: the tokenizer with the chat template; None without one.
    """

    def __init__(self, write: Callable[[str], None] | None, tokenizer: Tokenizer | None):
        self._write, self._tokenizer = write, tokenizer
        self._subjects = set[str]()
        self._variables = set[str]()

    def note_once(self, subject: str, text: str) -> None:
        """Display a note, unless there was one about the subject."""
        if self._write is not None and subject not in self._subjects:
            self._subjects.add(subject)
            self._write(text)

    def warn_unread(self, variables: Mapping[str, Any]) -> None:
        """Warn about variables that the chat template does not read, once for each name."""
        if self._tokenizer is None or self._variables.issuperset(variables):
            return
        unread = unread_variables(variables, self._tokenizer.chat_template, self._tokenizer.tool_template)
        for name in unread.keys() - self._variables:
            self._variables.add(name)
            warn(f"{unread[name]}, so it has no effect")
