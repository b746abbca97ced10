"""A chat in the terminal: messages, answers, and what stops them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from rekindle.chats.archive import ArchivedChat, Recording, TalkArchive
from rekindle.chats.chat import ROUNDS, Chat
from rekindle.chats.states import Again
from rekindle.chats.turns import SayOptions
from rekindle.cli.chat.branches import TalkBranches
from rekindle.cli.chat.keys import hidden_keys
from rekindle.cli.chat.lines import Lines
from rekindle.cli.chat.screen import Screen
from rekindle.client.handle import Handle, Stream
from rekindle.client.parts import Parts
from rekindle.client.window import Words
from rekindle.core.concurrency.waits import Waits, blocked
from rekindle.core.request.params import SamplingOptions
from rekindle.core.words import quantity
from rekindle.formats.images.sources import ImageSource, image_source
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.tools.sources import ToolSource

OFFERED: Final = 9
"""Most earlier conversations for /resume."""
FULL: Final = (
    "the conversation has filled the context, so its oldest turns are no longer sent to the model; /show and /save "
    "have them"
)
REMEDY: Final = "/undo takes the last turn back, and /clear begins a new conversation"
STOPPED: Final = "stopped; the chat has the answer so far (/continue goes on, /undo drops it)"


class Talk:
    """The state of a chat.

    Args:
        options: the sampling options of all answers.
        archive: the conversations of earlier starts; None without them.
        sources: the sources of tools.
        when_full: as in `session.chat`.

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
        archive: TalkArchive | None = None,
        sources: Sequence[ToolSource] = (),
        when_full: Literal["trim", "stop"] = "trim",
    ):
        self.session, self.lines, self.screen, self._options = session, lines, screen, options
        self._recording = None if archive is None else Recording(archive, session.tokenizer)
        self.sources, self._when_full = sources, when_full
        self.earlier, damages = ([], []) if archive is None else archive.latest(OFFERED)
        for damage in damages:
            screen.note(damage)
        self.branches = TalkBranches(self.chat_of([]))
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
        tools = self.sources or None
        return self.session.chat(messages=messages or None, tools=tools, when_full=self._when_full, **self._options)

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

    def say(self, text: str | Again | None) -> bool:
        """Print the answer to a message as it arrives; return whether the conversation has changed.

        An interrupt stops the answer, and the conversation keeps its text so far.

        Args:
            text: the message; None if the last message of the conversation awaits an answer; or a turn without a new
                message.

        Raises:
            KeyboardInterrupt: an interrupt came, and no person types the messages.
            RekindleError: the request failed, and the conversation is unchanged.
        """
        before = self.chat.messages
        try:
            options: SayOptions = {"images": self._images} if self._images and isinstance(text, str) else {}
            words = Words(lambda: self.screen.note(FULL), REMEDY)
            answer = blocked(self.chat._turn(text, options, self._draw, words=words))
        except KeyboardInterrupt:
            self.screen.end()
            if not self.lines.interactive:
                raise
            if self.chat.messages == before:
                self.screen.note("stopped before the first word; the chat is as before")
                return False
            self.screen.note(STOPPED)
            self.keep()
        else:
            self._end(answer)
        if isinstance(text, str):
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
                for part in Parts(stream, record, record.prefix_tokens):  # without the text before a continuation
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
        if answer.full_context is not None:
            self.screen.note(f"ended, as the context of {quantity(answer.full_context, 'token')} is full: {self._next}")
        elif answer.finish_reason == "length":
            count = quantity(len(answer.token_ids), "token")
            self.screen.note(f"ended after {count}: /continue goes on, and --max-tokens N allows more")
        if answer.finish_reason == "repetition":
            self.screen.note("ended, as the answer repeated itself; the chat keeps the repeated part once")
        self.answer = answer
        self.keep()

    @property
    def _next(self) -> str:
        """The way on after an answer that has filled the context."""
        return REMEDY if self._when_full == "stop" else "/continue goes on without the oldest turns"

    @property
    def is_resumable(self) -> bool:
        """True if the next chat can continue this one."""
        return self._recording is not None and self.answer is not None

    def keep(self) -> None:
        """Write the conversation for the next start, once it has an answer of this one."""
        if (
            self._recording is not None
            and self.answer is not None
            and (why := self._recording.write(self.chat.messages, self.chat._turn_tokens))
        ):
            self.screen.note(why)
