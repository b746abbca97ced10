"""Box to talk to a model in a notebook: the conversation, the answer as it arrives, and an input with buttons."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from rekindle import markup
from rekindle.chats.archive import Recording
from rekindle.chats.card import content, message_html
from rekindle.chats.inputs import Inputs, Part
from rekindle.chats.resuming import Resuming, is_offer
from rekindle.chats.turn_tokens import TurnTokens
from rekindle.chats.turns import Draw, SayOptions
from rekindle.chats.window import REMEDY, WhenFull, Words, full_text
from rekindle.client.handle import Handle
from rekindle.client.record import Record
from rekindle.core.concurrency.threads import ending
from rekindle.core.concurrency.waits import Waits, blocked
from rekindle.core.errors import RequestCancelled
from rekindle.core.words import quantity, seconds
from rekindle.formats.images.sources import ImageSource
from rekindle.notebook import front_end, marimo_cell
from rekindle.notebook.live_parts import GrowingParts, PartReader
from rekindle.notebook.live_text import REDRAW_SECONDS, draw_record
from rekindle.results.generation import Generation
from rekindle.results.tool_run import ToolStep

ENDS = {"stop": None, "length": None, "repetition": "because it repeated itself"}
"""Words for the ends of answers; None for the usual end, and for a limit, which has a fact of its own."""
STILL = "to type here, install anywidget"
"""The note below the conversation in a notebook without anywidget."""
NO_LONGER_SENT = "the context is full: the turns above this line are no longer sent to the model"
WORDS = Words(lambda: None, REMEDY)
"""The words about a full context: a line in the conversation tells it, and code has the ways out."""
NO_MESSAGE = markup.bundle("", "")
"""The message of the user between the answers of a turn with tools."""


class Conversation(Protocol):
    """Interface of a `Chat` for its widget."""

    @property
    def messages(self) -> list[Mapping[str, Any]]: ...
    @property
    def _no_images(self) -> str: ...
    @property
    def _when_full(self) -> WhenFull: ...
    @property
    def _start(self) -> int: ...
    @property
    def _turn_tokens(self) -> TurnTokens: ...
    def _turn(
        self, new_messages: str, options: SayOptions, draw: Draw, on_step: Any = ..., words: Words | None = ...
    ) -> Waits[Generation]: ...
    def _resume(self, messages: Sequence[Mapping[str, Any]], turn_tokens: TurnTokens) -> None: ...
    def _repr_mimebundle_(self) -> markup.Bundle: ...


class ChatWidget:
    """Box to talk to a model, from `chat.widget()`.

    It has three outputs: the conversation, updated after each turn; the current turn; and the input, which alone is a
    widget in Jupyter. So a saved notebook has the conversation. In marimo, all three are one widget.

    Args:
        chat: the conversation.
        recording: the file of the conversation, beside the earlier ones to offer; None without files.

    Attributes:
        answers: the answers of this widget, by the number of messages before each.
    """

    def __init__(self, chat: Conversation, recording: Recording | None = None):
        self._chat, self._resuming = chat, Resuming(chat, recording)
        self.answers: dict[int, Generation] = {}
        self._lock = threading.RLock()
        self._handle: Handle | None = None
        self._is_busy = False
        self._inputs: Inputs | None = None
        self._history: front_end.CellOutput | Part = front_end.CellOutput()
        self._current: front_end.CellOutput | Part = front_end.CellOutput()

    def send(self, text: str, images: Sequence[ImageSource] = ()) -> bool:
        """Start a turn with a user message on a thread; return False if another turn is running.

        Args:
            text: the text of the message.
            images: its images.
        """
        with self._lock:
            if self._is_busy:
                return False
            self._is_busy = True
        self._show_busy()
        user = _user_message(text, images)
        self._current.draw(_turn_bundle(user, "", "waiting", ""))
        front_end.draw_soon(partial(self._run, text, images, user), "chat")
        return True

    def stop(self) -> None:
        """Cancel the current answer; its text so far stays in the conversation."""
        if (handle := self._handle) is not None:
            handle.cancel()

    def close(self) -> None:
        """Cancel the current answer, and remove the input."""
        self.stop()
        if self._inputs is not None:
            self._inputs.close()

    def __repr__(self) -> str:
        return f"<rekindle.ChatWidget of {self._chat!r}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        bundle = self._chat._repr_mimebundle_()
        if front_end.in_notebook():
            bundle = {**bundle, "text/html": bundle["text/html"] + markup.note(STILL)}
        return bundle

    def _display_(self) -> object:
        """Show the conversation and the input in a cell of marimo: its display protocol."""
        try:
            inputs = self._new_inputs()
        except ImportError:
            return marimo_cell.html(self._repr_mimebundle_()["text/html"])
        with self._lock:
            self._history, self._current, self._inputs = inputs.part(), inputs.part(), inputs
            self._history.draw(self._history_bundle())
        self._show_busy()
        return inputs.face.widget

    def _ipython_display_(self) -> None:
        """Show the conversation and the input.

        Raises:
            NotImplementedError: no widgets are available; IPython then uses `_repr_mimebundle_`.
        """
        if front_end.kernel() is None:
            raise NotImplementedError("a conversation can be typed only in a notebook")
        if self._inputs is None:
            try:
                inputs = self._new_inputs()
            except Exception as error:  # of any kind: IPython would print the traceback
                raise NotImplementedError("an input needs anywidget") from error
        else:
            inputs = self._inputs
        with self._lock:  # a second display moves the outputs
            self._history, self._current = front_end.CellOutput(), front_end.CellOutput()
            self._history.draw(self._history_bundle())
            self._current.draw(front_end.EMPTY)
            inputs.show()
            self._inputs = inputs
        self._show_busy()

    def _new_inputs(self) -> Inputs:
        """Return a box; raises ImportError without anywidget."""
        self._resuming.look()
        inputs = Inputs(self.send, self.stop, self._press, no_images=self._chat._no_images)
        inputs.show_above(self._resuming.html)
        return inputs

    def _press(self, name: str) -> bool:
        """Continue an earlier conversation; return False if the button is none of an offer."""
        if not is_offer(name):
            return False
        with self._lock:
            if not self._is_busy and self._resuming.press(name):
                self.answers.clear()
                self._history.draw(self._history_bundle())
        self._show_busy()
        return True

    def _run(self, text: str, images: Sequence[ImageSource], user: markup.Bundle) -> None:
        """Run a turn to its end, on a thread of its own; an error is displayed.

        Args:
            text, images: as in `send`.
            user: the message in the display of the turn.
        """
        before, why = len(self._chat.messages), ""
        options: SayOptions = {"images": list(images)} if images else {}
        try:
            draw = partial(self._draw, user)
            answer = blocked(self._chat._turn(text, options, draw, self._draw_results, words=WORDS))
            self.answers[len(self._chat.messages) - 1] = answer
        except Exception as error:
            if ending():  # a kernel at shutdown has no sockets
                return
            why = f"{type(error).__name__}: {error}"
        self._resuming.keep()
        self._history.draw(self._history_bundle())
        self._current.draw(_error_bundle(user, why) if len(self._chat.messages) == before and why else front_end.EMPTY)
        with self._lock:
            self._is_busy, self._handle = False, None
        self._show_busy()

    def _draw(self, user: markup.Bundle, handle: Handle) -> Waits[Generation]:
        """Draw one answer of the turn to its end; return it, or its part if it was stopped."""
        self._handle = handle
        yield from draw_record(handle.record, _Screen(user, handle.record, self._current))
        with suppress(RequestCancelled):
            handle.record.result()
        return handle.record.so_far()

    def _draw_results(self, step: ToolStep) -> None:
        """Draw the turn during the calls of an answer; the next answer replaces this."""
        calls = ", ".join(f"{result.call.name}()" for result in step.results)
        self._current.draw(_turn_bundle(NO_MESSAGE, "", f"called {calls}", ""))

    def _history_bundle(self) -> markup.Bundle:
        return history_bundle(
            self._chat.messages, self.answers, start=self._chat._start, stops=self._chat._when_full == "stop"
        )

    def _show_busy(self) -> None:
        if self._inputs is not None:
            self._inputs.show_above(self._resuming.html)
            self._inputs.show_busy(self._is_busy)


class _Screen:
    """Current turn in an output: the user message, and the end of the growing answer.

    Attributes:
        seconds: the minimum time between two updates.
    """

    seconds: float = REDRAW_SECONDS

    def __init__(self, user: markup.Bundle, record: Record, output: front_end.CellOutput | Part):
        self._user, self._record, self._output = user, record, output
        self._position = 0
        self._reader, self._parts = PartReader(record), GrowingParts()

    def draw(self) -> None:
        """Draw the answer so far."""
        new = self._record.pieces.items[self._position :]
        self._position += len(new)
        self._parts.take(self._reader.push(new))
        facts = markup.facts(self._record.facts)
        self._output.draw(_turn_bundle(self._user, self._parts.html, self._record.state, facts, self._parts.text))

    def close(self) -> None:
        """Leave the last state; the conversation takes its place."""


def history_bundle(
    messages: Sequence[Mapping[str, Any]], answers: Mapping[int, Generation], start: int = 0, *, stops: bool = False
) -> markup.Bundle:
    """Return a conversation as text and as HTML, with the figures of known answers.

    Args:
        answers: the answers by the index of their message.
        start: the index of the first message in the window, with a line above it.
        stops: whether the chat ends when the context is full.
    """
    state = quantity(len(messages), "message")
    parts = [_message_html(message, answers.get(place), stops) for place, message in enumerate(messages)]
    if start > 0:
        parts.insert(start, f'<div style="margin:0.6em 0 0 0">{markup.note(NO_LONGER_SENT)}</div>')
    html = "".join(parts)
    plain = "\n".join(f"{message.get('role')}: {content(message)}" for message in messages)
    return markup.bundle(plain or f"Chat: {state}", markup.card("Chat", state, html))


def _message_html(message: Mapping[str, Any], answer: Generation | None, stops: bool = False) -> str:
    role, body = str(message.get("role")), message_html(message)
    is_same = answer is not None and answer.message.get("content") == message.get("content")  # until undo or edit
    figures = _figures(answer, stops) if answer is not None and is_same else ""
    return f'<div style="margin:0.6em 0 0 0">{markup.note(role)}{body}{figures}</div>'


def _figures(answer: Generation, stops: bool) -> str:
    """Return the figures of an answer, with a bar for the part of its prompt that was cached."""
    cached, prompt = answer.cached_tokens, answer.usage.prompt_tokens
    share = f"{cached:,} of {prompt:,} tokens ({cached / prompt:.0%})" if prompt else "none"
    bar = markup.bar({f"rgb({markup.EMBER})": cached}, f"prompt from the cache: {share}", whole=prompt or 1)
    facts = {
        "from the cache": share,
        "generated": quantity(len(answer.token_ids), "token"),
        "first token after": seconds(answer.timings.first_token),
        "total": seconds(answer.timings.total),
        "ended": ENDS.get(answer.finish_reason, answer.finish_reason),
        "cut": answer.cut_by if answer.full_context is None else full_text(answer.full_context, stops=stops),
    }
    return f'<div style="max-width:16em">{bar}</div>{markup.facts(facts)}'


def _user_message(text: str, images: Sequence[ImageSource]) -> markup.Bundle:
    """Return a new message of the user with thumbnails, which are drawn only once."""
    parts = [{"type": "image", "image": image} for image in images]
    message = {"role": "user", "content": [*parts, {"type": "text", "text": text}]}
    return markup.bundle(f"user: {content(message)}", _message_html(message, None))


def _turn_bundle(user: markup.Bundle, html: str, state: str, facts: str, plain: str = "") -> markup.Bundle:
    """Return the current turn as text and as HTML: the user message, and the answer so far."""
    answer = f'<div style="margin:0.6em 0 0 0">{markup.note(f"assistant{markup.BETWEEN}{state}")}{html}{facts}</div>'
    return markup.bundle(
        f"{user['text/plain']}\nassistant: {plain} [{state}]", markup.frame(user["text/html"] + answer)
    )


def _error_bundle(user: markup.Bundle, why: str) -> markup.Bundle:
    """Return the turn that an error has ended; the conversation is unchanged."""
    note = markup.note("this turn failed; the conversation is as before")
    html = f'<div role="alert" style="margin:0.6em 0 0 0">{note}{markup.passage(why)}</div>'
    return markup.bundle(f"{user['text/plain']}\n[{why}]", markup.frame(user["text/html"] + html))
