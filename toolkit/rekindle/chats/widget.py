"""Box to talk to a model in a notebook: the conversation, the answer as it arrives, and an input with buttons."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from rekindle import markup
from rekindle.chats.actions import STEPS, Press, places, spare
from rekindle.chats.archive import Recording
from rekindle.chats.card import content, message_html
from rekindle.chats.inputs import Inputs, UpperPart
from rekindle.chats.resuming import Resuming
from rekindle.chats.states import Again, Continue, Retry, State, question_of
from rekindle.chats.turn_tokens import TurnTokens
from rekindle.chats.turns import Draw, SayOptions
from rekindle.chats.versions import Versions
from rekindle.client.handle import Handle
from rekindle.client.record import Record
from rekindle.client.window import REMEDY, WhenFull, Words, cut_text
from rekindle.core.concurrency.threads import ending
from rekindle.core.concurrency.waits import Waits, blocked
from rekindle.core.errors import RekindleError, RequestCancelled
from rekindle.core.words import quantity, seconds
from rekindle.formats.images.sources import ImageSource
from rekindle.formats.rendering.content_form import text_of
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


class WidgetChat(Protocol):
    """Interface of a `Chat` for its widget."""

    @property
    def messages(self) -> list[Mapping[str, Any]]: ...
    @property
    def _no_images(self) -> str: ...
    @property
    def _when_full(self) -> WhenFull: ...
    @property
    def _history(self) -> Sequence[State]: ...
    @property
    def _turn_tokens(self) -> TurnTokens: ...
    def _go(self, state: State) -> None: ...
    def edit(self, index: int, text: str) -> None: ...
    def undo(self) -> None: ...
    def _turn(
        self,
        new_messages: str | Again | None,
        options: SayOptions,
        draw: Draw,
        on_step: Any = ...,
        words: Words | None = ...,
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

    """

    def __init__(self, chat: WidgetChat, recording: Recording | None = None):
        self._chat, self._resuming = chat, Resuming(chat, recording)
        self._answers: dict[int, tuple[Mapping[str, Any], Generation]] = {}  # by the identity of their messages
        self._lock = threading.RLock()
        self._handle: Handle | None = None
        self._is_busy = False
        self._inputs: Inputs | None = None
        self._history: front_end.CellOutput | UpperPart = front_end.CellOutput()
        self._current: front_end.CellOutput | UpperPart = front_end.CellOutput()

    @property
    def answers(self) -> dict[int, Generation]:
        """The answers of this widget in the conversation, by the number of messages before each."""
        places = enumerate(self._chat._history[-1].messages)
        return {place: self._answers[id(each)][1] for place, each in places if id(each) in self._answers}

    def send(self, text: str, images: Sequence[ImageSource] = ()) -> bool:
        """Start a turn with a user message on a thread; return False if another turn is running.

        Args:
            text: the text of the message.
            images: its images.
        """
        return self._start(text, _user_message(text, images), images=images)

    def act(self, press: Press) -> None:
        """Take the press of a button on a message; none while a turn runs, or of an earlier page."""
        messages = self._chat._history[-1].messages
        if self._is_busy or press.place >= len(messages):
            return
        if press.name == "edit" and self._inputs is not None:
            self._inputs.edit(press.place, text_of(messages[press.place]))
        elif press.name == "continue":
            self._start(Continue(), NO_MESSAGE, until=len(messages) - 1)
        elif press.name == "retry":
            self._start(Retry(press.place), NO_MESSAGE, until=len(question_of(messages[: press.place + 1])))
        elif press.name in STEPS:
            with self._errors_shown():
                self._chat._go(Versions(self._chat._history).neighbour(press.place, STEPS[press.name]))
            self._draw_history()

    def replace(self, place: int, text: str) -> bool:
        """Replace the text of a message, and answer it anew if it is one of the user; return False during a turn.

        Args:
            place: the index of the message.
            text: its new text.
        """
        if self._is_busy:
            return False
        is_question = self._chat._history[-1].messages[place]["role"] == "user"
        with self._errors_shown():
            self._chat.edit(place, text)
            if is_question:
                return self._start(None, NO_MESSAGE, until=place + 1, undoes=True)
        self._resuming.keep()
        self._draw_history()
        return True

    def resume(self, name: str) -> None:
        """Continue the earlier conversation of a button; none during a turn, or after the first."""
        with self._lock:
            if not self._is_busy and self._resuming.press(name):
                self._draw_history()
        self._show_busy()

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

    def _start(
        self,
        turn: str | Again | None,
        user: markup.Bundle,
        *,
        images: Sequence[ImageSource] = (),
        until: int | None = None,
        undoes: bool = False,
    ) -> bool:
        """Start a turn on a thread; return False if another one is running.

        Args:
            turn: a message of the user, a turn without one, or None for an answer to the last message.
            user: the message in the display of the turn.
            images: the images of the message.
            until: the number of messages to show above the turn; None for all.
            undoes: whether a failed turn undoes the edit before it.
        """
        with self._lock:
            if self._is_busy:
                return False
            self._is_busy = True
        self._show_busy()
        if until is not None:
            self._draw_history(until)
        self._current.draw(_turn_bundle(user, "", "waiting", ""))
        front_end.draw_soon(partial(self._run, turn, images, user, undoes=undoes), "chat")
        return True

    @contextmanager
    def _errors_shown(self) -> Iterator[None]:
        """Show an error of a block below the conversation."""
        try:
            yield
        except RekindleError as error:
            self._current.draw(_error_bundle(NO_MESSAGE, f"{type(error).__name__}: {error}"))

    def _display_(self) -> object:
        """Show the conversation and the input in a cell of marimo: its display protocol."""
        try:
            inputs = self._new_inputs()
        except ImportError:
            return marimo_cell.html(self._repr_mimebundle_()["text/html"])
        with self._lock:
            self._history, self._current, self._inputs = inputs.part(), inputs.part(), inputs
            self._draw_history()
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
            self._inputs = inputs
            self._draw_history()
            self._current.draw(front_end.EMPTY)
            inputs.show()
        self._show_busy()

    def _new_inputs(self) -> Inputs:
        """Return a box; raises ImportError without anywidget."""
        self._resuming.look()
        inputs = Inputs(self, no_images=self._chat._no_images)
        inputs.show_above(self._resuming.html)
        return inputs

    def _run(
        self, turn: str | Again | None, images: Sequence[ImageSource], user: markup.Bundle, *, undoes: bool
    ) -> None:
        """Run a turn to its end, on a thread of its own; an error is displayed. Arguments are as in `_start`."""
        before, why = self._chat._history[-1], ""
        options: SayOptions = {"images": list(images)} if images else {}
        try:
            draw = partial(self._draw, user)
            answer = blocked(self._chat._turn(turn, options, draw, self._draw_results, words=WORDS))
            message = self._chat._history[-1].messages[-1]
            self._answers[id(message)] = message, answer
        except Exception as error:
            if ending():  # a kernel at shutdown has no sockets
                return
            why = f"{type(error).__name__}: {error}"
        is_unchanged = self._chat._history[-1] is before
        if is_unchanged and undoes:
            self._chat.undo()
        self._resuming.keep()
        self._draw_history()
        self._current.draw(_error_bundle(user, why) if is_unchanged and why else front_end.EMPTY)
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

    def _draw_history(self, until: int | None = None) -> None:
        """Draw the conversation, or its beginning during a turn, with the places of its buttons."""
        states = self._chat._history
        acts = places(states) if until is None else {}
        messages, stops = states[-1].messages[:until], self._chat._when_full == "stop"
        self._history.draw(history_bundle(messages, self.answers, acts, states[-1].window.start, stops=stops))
        if self._inputs is not None:
            self._inputs.show_acts(spare(acts))

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

    def __init__(self, user: markup.Bundle, record: Record, output: front_end.CellOutput | UpperPart):
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
    messages: Sequence[Mapping[str, Any]],
    answers: Mapping[int, Generation],
    acts: Mapping[int, str] = MappingProxyType({}),
    start: int = 0,
    *,
    stops: bool = False,
) -> markup.Bundle:
    """Return a conversation as text and as HTML, with the figures of known answers.

    Args:
        answers: the answers by the index of their message.
        acts: the places of buttons as HTML, by the index of their message.
        start: the index of the first message in the window, with a line above it.
        stops: whether the chat ends when the context is full.
    """
    state = quantity(len(messages), "message")
    parts = [
        _message_html(message, answers.get(place), acts.get(place, ""), stops=stops)
        for place, message in enumerate(messages)
    ]
    if 0 < start < len(messages):
        parts.insert(start, f'<div style="margin:0.6em 0 0 0">{markup.note(NO_LONGER_SENT)}</div>')
    html = "".join(parts)
    plain = "\n".join(f"{message.get('role')}: {content(message)}" for message in messages)
    return markup.bundle(plain or f"Chat: {state}", markup.card("Chat", state, html))


def _message_html(message: Mapping[str, Any], answer: Generation | None, acts: str = "", *, stops: bool = False) -> str:
    role, body = str(message.get("role")), message_html(message)
    figures = "" if answer is None else _figures(answer, stops)
    return f'<div style="margin:0.6em 0 0 0">{markup.note(role)}{body}{figures}{acts}</div>'


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
        "cut": cut_text(answer, stops=stops),
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
