"""A chat in the terminal: messages, answers, and what stops them."""

from collections.abc import Mapping, Sequence
from typing import Any

from rekindle.chats.chat import Chat
from rekindle.cli.chat.branches import Branches
from rekindle.cli.chat.keys import hidden_keys
from rekindle.cli.chat.last import LastChat
from rekindle.cli.chat.lines import Lines
from rekindle.cli.chat.screen import Screen
from rekindle.core.request.params import SamplingOptions
from rekindle.core.words import quantity
from rekindle.results.generation import Generation
from rekindle.session.session import Session


class Talk:
    """The state of a chat.

    Args:
        options: the sampling options of all answers.
        last_chat: the file of the last conversation; None without one.

    Attributes:
        session: the session.
        lines: the source of messages.
        screen: the output.
        branches: the conversations.
        answer: the last answer; None before the first.
        earlier: the messages of the last conversation of an earlier start.
    """

    def __init__(
        self,
        session: Session,
        lines: Lines,
        screen: Screen,
        options: SamplingOptions,
        last_chat: LastChat | None = None,
    ):
        self.session, self.lines, self.screen, self._options = session, lines, screen, options
        self._last_chat = last_chat
        self.earlier = [] if last_chat is None else last_chat.read()
        self.branches = Branches(self.chat_of([]))
        self.answer: Generation | None = None

    @property
    def chat(self) -> Chat:
        """The current conversation."""
        return self.branches.now.now

    def chat_of(self, messages: Sequence[Mapping[str, Any]]) -> Chat:
        """Return a conversation with messages.

        Raises:
            InvalidRequest: the messages are invalid.
        """
        return self.session.chat(messages=messages, **self._options) if messages else self.session.chat(**self._options)

    def say(self, text: str | None) -> bool:
        """Print the answer to a message as it arrives; return whether the conversation has grown.

        An interrupt stops the answer, and the conversation keeps its text so far.

        Args:
            text: the message; None if the last message of the conversation awaits an answer.

        Raises:
            KeyboardInterrupt: an interrupt came, and no person types the messages.
            RekindleError: the request failed, and the conversation is unchanged.
        """
        stream = self.chat.stream(text)
        try:
            with hidden_keys():
                self.screen.wait()
                for part in stream.parts():
                    self.screen.part(part)
        except KeyboardInterrupt:
            stream.close()
            self.screen.end()
            if not self.lines.interactive:
                raise
            record = stream.handle.record
            if record.generation is None or record.cancelling:
                return self._keep(text, record.so_far())
            self.screen.note("the answer had just ended, and the chat has all of it")
        self.screen.end()
        self._end(stream.handle.result())
        return True

    def _keep(self, text: str | None, answer: Generation) -> bool:
        """Add a message and its unfinished answer to the conversation, if the answer has begun."""
        if not answer.text:
            self.screen.note("stopped before the first word; the chat is as before")
            return False
        question = [] if text is None else [{"role": "user", "content": text}]
        self.branches.now.replace(self.chat_of([*self.chat.messages, *question, answer.message]))
        self.screen.note("stopped; the chat has the answer so far (/undo drops it)")
        self._end(answer)
        return True

    def _end(self, answer: Generation) -> None:
        """Note a limit that ended an answer."""
        if answer.finish_reason == "length":
            self.screen.note(f"ended after {quantity(len(answer.token_ids), 'token')}: --max-tokens N allows more")
        if answer.finish_reason == "repetition":
            self.screen.note("ended, as the answer repeated itself; the chat keeps the repeated part once")
        self.answer = answer
        self.keep()

    def keep(self) -> None:
        """Write the conversation for the next start, once it has an answer of this one."""
        if self._last_chat is not None and self.answer is not None and len(self.chat):
            self._last_chat.write(self.chat.messages)
