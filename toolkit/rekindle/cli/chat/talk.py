"""A chat in the terminal: messages, answers, and what stops them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rekindle.chats.archive import Archive, ArchivedChat, Recording
from rekindle.chats.chat import ROUNDS, Chat
from rekindle.chats.turns import SayOptions
from rekindle.cli.chat.branches import Branches
from rekindle.cli.chat.keys import hidden_keys
from rekindle.cli.chat.lines import Lines
from rekindle.cli.chat.screen import Screen
from rekindle.client.handle import Handle, Stream
from rekindle.core.concurrency.waits import Waits, blocked
from rekindle.core.request.params import SamplingOptions
from rekindle.core.words import quantity
from rekindle.formats.images.sources import ImageSource, image_source
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.tools.sources import ToolSource

OFFERED: Final = 9
"""Most earlier conversations for /resume."""
STOPPED: Final = "stopped; the chat has the answer so far (/undo drops it)"


class Talk:
    """The state of a chat.

    Args:
        options: the sampling options of all answers.
        archive: the conversations of earlier starts; None without them.
        sources: the sources of tools.

    Attributes:
        session: the session.
        lines: the source of messages.
        screen: the output.
        branches: the conversations.
        answer: the last answer; None before the first.
        earlier: the last conversations of earlier starts, latest first.
        sources: as above.
    """

    def __init__(
        self,
        session: Session,
        lines: Lines,
        screen: Screen,
        options: SamplingOptions,
        archive: Archive | None = None,
        sources: Sequence[ToolSource] = (),
    ):
        self.session, self.lines, self.screen, self._options = session, lines, screen, options
        self._recording, self.sources = None if archive is None else Recording(archive, session.tokenizer), sources
        self.earlier, damages = ([], []) if archive is None else archive.latest(OFFERED)
        for damage in damages:
            screen.note(damage)
        self.branches = Branches(self.chat_of([]))
        self.answer: Generation | None = None
        self._images: list[ImageSource] = []

    @property
    def chat(self) -> Chat:
        """The current conversation."""
        return self.branches.now.now

    def chat_of(self, messages: Sequence[Mapping[str, Any]]) -> Chat:
        """Return a conversation with messages.

        Raises:
            InvalidRequest: the messages are invalid.
        """
        return self.session.chat(messages=messages or None, tools=self.sources or None, **self._options)

    def resume(self, earlier: ArchivedChat) -> None:
        """Replace the conversation by an earlier one."""
        chat = self.chat_of(earlier.messages)
        if self._recording is not None:
            chat._know(self._recording.tokens_of(earlier))
            self._recording.resume(earlier)
        self.branches.now.replace(chat)

    def add_image(self, name: str) -> None:
        """Send the image of a file with the next message.

        Raises:
            InvalidRequest: the file cannot be read, or is no image.
            ConfigError: Pillow is not installed.
        """
        self._images.append(image_source(name))

    def say(self, text: str | None) -> bool:
        """Print the answer to a message as it arrives; return whether the conversation has grown.

        An interrupt stops the answer, and the conversation keeps its text so far.

        Args:
            text: the message; None if the last message of the conversation awaits an answer.

        Raises:
            KeyboardInterrupt: an interrupt came, and no person types the messages.
            RekindleError: the request failed, and the conversation is unchanged.
        """
        before = len(self.chat)
        try:
            options: SayOptions = {"images": self._images} if self._images and text is not None else {}
            answer = blocked(self.chat._turn(text, options, self._draw))
        except KeyboardInterrupt:
            self.screen.end()
            if not self.lines.interactive:
                raise
            if len(self.chat) == before:
                self.screen.note("stopped before the first word; the chat is as before")
                return False
            self.screen.note(STOPPED)
            self.keep()
        else:
            self._end(answer)
        if text is not None:
            self._images = []
        return True

    def _draw(self, handle: Handle) -> Waits[Generation]:
        """Print an answer as it arrives; return it, or its part if an interrupt stops it.

        Raises:
            KeyboardInterrupt: an interrupt came before the first word, or no person types the messages.
        """
        yield from ()  # an operation without waits of its own: the terminal blocks
        stream, record = Stream(handle), handle.record
        try:
            with hidden_keys():
                self.screen.wait()
                for part in stream.parts():
                    if part.kind != "tool_call" or not self.sources:  # a call is shown before it runs
                        self.screen.part(part)
        except KeyboardInterrupt:
            stream.close()
            if not self.lines.interactive:
                raise
            if record.generation is None or record.cancelling:
                answer = record.so_far()
                if not answer.text:
                    raise
                self.screen.end()
                return answer
            self.screen.end()
            self.screen.note("the answer had just ended, and the chat has all of it")
        self.screen.end()
        return handle.result()

    def _end(self, answer: Generation) -> None:
        """Note the reason for the end of an answer, unless the model ended it."""
        if answer.finish_reason == "cancelled":
            self.screen.note(STOPPED)
        elif answer.tool_calls and answer.finish_reason != "length":
            self.screen.note(f"ended after {ROUNDS} answers with calls of tools; a further message goes on")
        if answer.finish_reason == "length":
            self.screen.note(f"ended after {quantity(len(answer.token_ids), 'token')}: --max-tokens N allows more")
        if answer.finish_reason == "repetition":
            self.screen.note("ended, as the answer repeated itself; the chat keeps the repeated part once")
        self.answer = answer
        self.keep()

    def keep(self) -> None:
        """Write the conversation for the next start, once it has an answer of this one."""
        if (
            self._recording is not None
            and self.answer is not None
            and (why := self._recording.write(self.chat.messages, self.chat._turn_tokens))
        ):
            self.screen.note(why)
