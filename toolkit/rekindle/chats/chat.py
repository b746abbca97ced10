"""Conversation with a history of turns."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from rekindle import markup
from rekindle.chats.card import chat_html, chat_text
from rekindle.chats.states import (
    Again,
    Continue,
    NewMessages,
    Retry,
    State,
    before_answer,
    messages_of,
    question_of,
    window_of,
)
from rekindle.chats.turn_tokens import TurnTokens
from rekindle.chats.turns import SAY_DEFAULTS, TURN_DEFAULTS, Draw, SayOptions, Turn, TurnOptions, draw_results, drawing
from rekindle.client.calls.images import with_sources
from rekindle.client.calls.options import is_greedy
from rekindle.client.concurrency.twins import awaitable, blocking
from rekindle.client.handle import Handle, Stream
from rekindle.client.requests import Requests
from rekindle.client.window import FULL, REMEDY, Fit, WhenFull, Words
from rekindle.core.concurrency.waits import Waits, blocked, way
from rekindle.core.cures import cured
from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import spelled_out
from rekindle.core.messages import OutputPrefix
from rekindle.core.request import checks
from rekindle.core.request.params import check_keywords
from rekindle.core.words import quantity
from rekindle.formats.rendering.chat import copy_messages
from rekindle.results.generation import Generation
from rekindle.tools.running import OnStep, Rounds
from rekindle.tools.tool import Tool
from rekindle.tools.toolset import ChatTool, Toolset

if TYPE_CHECKING:
    from rekindle.chats.archive import Recording
    from rekindle.chats.widget import ChatWidget

SEED_BITS = 53
"""Bits of a fresh seed, which survive JSON in any language."""
ROUNDS = 10
"""Maximum number of answers in one turn with tool calls."""


@dataclass(frozen=True, slots=True)
class StreamedTurn:
    """Turn with a streamed answer.

    Attributes:
        handle: the request of the answer.
        messages: the conversation up to the answer.
        turn: the requester of the answer, which records its tokens.
    """

    handle: Handle
    messages: Sequence[Mapping[str, Any]]
    turn: Turn


_CURES: Final = {
    ("ask", "complete", "generate", "invoke", "respond", "send", "send_message"): 'await chat.say("...")',
    ("clear", "reset", "new"): "a new conversation is another session.chat()",
    ("regenerate", "rerun", "resend"): "await chat.retry() answers the last message anew",
    ("continue_final_message", "extend", "go_on", "resume"): "await chat.continue_() goes on with a cut answer",
    ("history", "turns", "conversation"): "the messages are chat.messages",
    ("add_message", "append", "add_user_message"): 'chat.say takes messages, too: await chat.say([{"role": ...}])',
    ("system", "system_prompt"): "it is the first of chat.messages; session.chat(system=...) begins another",
    ("branch", "clone", "copy"): "chat.fork() gives a copy",
    ("completions",): "chat is a conversation: await chat.say(...); session.serve() serves OpenAI's API",
    ("text", "last", "response", "content"): "the last answer is chat.messages[-1], or the result of chat.say",
}  # fmt: skip
"""Attributes of conversations in other libraries."""


@cured(_CURES, call='await chat.say("...")', item="the messages are chat.messages")
class Chat:
    """Conversation from `session.chat`. Each turn computes only its new tokens, because earlier tokens are cached.

    A turn that fails leaves the conversation unchanged; an interrupted one keeps the text so far. Only one turn runs at
    a time; `fork` returns an independent copy of the conversation for another.

    Args:
        requests: the requests of the session.
        messages: the conversation so far.
        tools: the tools for the model. `say` and `show` execute its calls of functions and of tools of MCP servers.
        options: the default options of each turn.
        when_full: what to do when the conversation no longer fits the context.
    """

    def __init__(
        self,
        requests: Requests,
        messages: Sequence[Mapping[str, Any]] = (),
        tools: Sequence[ChatTool] | None = None,
        options: TurnOptions = {},  # noqa: B006  # never modified
        when_full: WhenFull = "trim",
    ):
        self._requests = requests
        self._toolset = Toolset(tools)
        self._options, self._when_full = options, when_full
        self._told_full = False
        self._states = [State(tuple(messages))]
        self._in_turn = False
        self._streamed: StreamedTurn | None = None
        self._recording: Recording | None = None

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """Messages of the conversation, in the format of `generate`: a new list of copies."""
        return copy_messages(self._now.messages)

    @property
    def window(self) -> list[Mapping[str, Any]]:
        """Messages for the model at the next turn, before the new ones: a new list of copies.

        All of `messages`, until the context is full: see `when_full` of `session.chat`.
        """
        return copy_messages(self._now.window.of(self._now.messages))

    @property
    def _history(self) -> Sequence[State]:
        """The states of the conversation, the current one last."""
        self._settle()
        return self._states

    def _go(self, state: State) -> None:
        """Return to a state; `undo` comes back."""
        self._check_idle()
        self._states.append(replace(state, extends=False))

    @property
    def _no_images(self) -> str:
        """The reason why the model takes no images; "" if it does."""
        prompts = self._requests.engine.facts.preparer.prompts
        return prompts.no_images if prompts.images is None else ""

    @awaitable('await chat.say("...")')
    @spelled_out(SayOptions, SAY_DEFAULTS)
    def say(self, message: NewMessages = None, **options: Unpack[SayOptions]) -> Waits[Generation]:
        """Add messages to the conversation, wait for the model's answer, and add the answer too.

        Calls of Python functions and of tools of MCP servers are executed as in `session.run_tools`, until the model
        answers without calls; `messages` has all steps. After 10 answers with calls, the last one is returned with its
        calls unanswered. A call of a tool passed as a JSON schema ends the turn: execute it, and pass its result to the
        next `say` as a message with the role "tool". Leaving the wait early, by an interrupt or a timeout, cancels the
        turn. The conversation keeps the text so far, if the answer has begun; `undo` drops it.

        Args:
            message: a user message as a str, or a list of messages; None if the last message awaits an answer, such as
                after `edit`.
            **options: images of the message, sampling parameters and chat template variables of this turn.

        Returns:
            The last answer of the turn.

        Raises:
            InvalidRequest: no message awaits an answer, or another turn is running, or as in `session.generate`.
            Others: as in `session.generate`. After an error, the conversation is unchanged.
        """
        return self._turn(message, options, drawing(None))

    say_sync = blocking(say)

    @awaitable('await chat.show("...")')
    @spelled_out(SayOptions, SAY_DEFAULTS)
    def show(self, message: NewMessages = None, **options: Unpack[SayOptions]) -> Waits[Generation]:
        """Run a turn as `say` does, and show the answer in the notebook cell as it arrives. In a terminal, print it.

        The cancel button raises no error: the partial answer is added to the conversation, and returned. Arguments and
        errors are as in `say`.
        """
        return (yield from self._turn(message, options, drawing((yield from way())), draw_results))

    show_sync = blocking(show)

    @awaitable("await chat.retry()")
    @spelled_out(TurnOptions, TURN_DEFAULTS)
    def retry(self, **options: Unpack[TurnOptions]) -> Waits[Generation]:
        """Answer the last message of the user anew, and replace the former answer; `undo` brings it back.

        Calls of tools in that turn are executed anew, too. Unless the temperature is 0, the answer is drawn by a
        fresh seed: with a low temperature, it is often alike.

        Args:
            **options: changes of the options of the former answer; without `seed`, it is another one.

        Raises:
            InvalidRequest: the user has no message yet, or another turn is running, or as in `session.generate`.
            Others: as in `session.generate`. After an error, the conversation is unchanged.
        """
        return self._turn(Retry(), cast(SayOptions, options), drawing(None))

    retry_sync = blocking(retry)

    @awaitable("await chat.continue_()")
    @spelled_out(TurnOptions, TURN_DEFAULTS)
    def continue_(self, **options: Unpack[TurnOptions]) -> Waits[Generation]:
        """Go on with the last answer where it was cut or stopped, so that it stays one message; `undo` cuts it again.

        It goes on from its tokens, with its seed, reasoning, grammar and begun call of a tool, as if it had not been
        cut; nothing but the new tokens is computed. An answer whose tokens are not known, as after `edit` and in
        `session.chat(messages=[...])`, goes on from its text, as with vLLM's `continue_final_message`.

        Args:
            **options: changes of the options of the answer. `max_tokens` counts the new tokens.

        Returns:
            The whole answer.

        Raises:
            InvalidRequest: the last message is no answer, or a complete one; another turn is running; or as in
                `session.generate`.
            Others: as in `session.generate`. After an error, the conversation is unchanged.
        """
        return self._turn(Continue(), cast(SayOptions, options), drawing(None))

    continue_sync = blocking(continue_)

    @spelled_out(SayOptions, SAY_DEFAULTS)
    def stream(self, message: NewMessages = None, **options: Unpack[SayOptions]) -> Stream:
        """Submit the request of a turn, and return the stream of the answer, for `async for` or a blocking `for`.

        The messages and the answer are added to the conversation once the answer has ended. Leaving the loop early
        cancels the answer and leaves the conversation unchanged. Function calls are not executed; `say` executes them.

        Args:
            message: as in `say`.
            **options: as in `say`.

        Raises:
            InvalidRequest: as in `say`.
            Others: as in `session.generate`, raised by the loop.
        """
        messages, turn = self._begin(message, options, self._toolset.tools, self._words)
        blocked(turn.fit(messages))
        self._streamed = StreamedTurn(turn.ask(messages), messages, turn)
        return Stream(self._streamed.handle)

    def fork(self) -> "Chat":
        """Return an independent copy of the conversation. Nothing is computed, because the copy shares cached pages."""
        copy = Chat(self._requests, (), None, self._options, self._when_full)
        copy._toolset, copy._states = self._toolset, [*self._states[:-1], self._now]
        return copy

    def undo(self) -> None:
        """Undo the last turn or edit.

        Raises:
            InvalidRequest: there is no turn or edit to undo, or a turn is running.
        """
        self._check_idle()
        if len(self._states) == 1:
            raise InvalidRequest("there is no turn to undo")
        self._states.pop()

    def edit(self, index: int, text: str) -> None:
        """Replace the text of a message, and drop all later messages. `undo` restores them.

        After the edit of a user message, `await chat.say()` answers it. An edited answer loses its reasoning and calls.

        Args:
            index: the index of the message in `messages`; -1 is the last.
            text: the new content.

        Raises:
            InvalidRequest: the message does not exist, `text` is not a str, or a turn is running.
        """
        self._check_idle()
        state = self._now
        count = len(state.messages)
        place = checks.integer("index", index, -count, count - 1) % count if count else None
        if place is None:
            raise InvalidRequest("there is no message to edit")
        old = state.messages[place]
        # Calls and reasoning of an answer belong to its old text.
        fields = {"role": "assistant"} if old["role"] == "assistant" else old
        new = {**fields, "content": checks.text("text", text, len(str(text)))}
        messages = (*state.messages[:place], new)
        window = window_of(state, messages[:-1])
        self._states.append(State(messages, state.turn_tokens, window, options=state.options))

    def __len__(self) -> int:
        return len(self._now.messages)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        size = quantity(len(self), "message")
        last = f", last {checks.preview(chat_text(self.messages[-1:]))}" if len(self) else ""
        return f"<rekindle.Chat of {size}{last}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        html = markup.card("Chat", quantity(len(self), "message"), chat_html(self.messages))
        return markup.bundle(chat_text(self.messages) or repr(self), html)

    def widget(self, *, keep: bool = True) -> "ChatWidget":
        """Return a box to talk to the model, for a notebook: `chat.widget()` as the last line of a cell.

        Enter, or the button "Send", starts a turn as `say` does, with tools. The answer appears as it arrives, and the
        kernel is free meanwhile. Images for the next message are pasted into the box, dropped on it or on the
        conversation, or chosen by the button "Images"; each has a thumbnail and a button to remove it. Each answer has
        its figures, and a bar with the part of its prompt that came from the prefix cache. "Stop" ends an answer and
        keeps its text. An error appears below the conversation, and the reason why a file is not taken below the box.

        "Continue" goes on with a cut answer, and "Retry" answers anew, as `continue_` and `retry` do. "Edit" changes a
        message: one of the user is answered anew, and an answer may be continued. Arrows lead from one version of a
        message to the others, each with its later messages.

        The turns are those of this object, so other cells can read or continue the conversation. A saved notebook has
        the conversation without the box.

        After each of its turns, the conversation is written to the cache directory, as `rekindle chat` does: readable
        by this user alone, at most 20 conversations with a model, for 90 days. Before the first turn, the box offers
        the last five; a click continues one, also after a restart of the kernel, with its cached pages. None are kept
        with `restore="off"` or `disk_cache_bytes=0` in `open`, and with a `cache_salt`.

        Args:
            keep: whether to keep this conversation, and to offer earlier ones.

        Raises:
            InvalidRequest: `keep` is not a bool.
        """
        from rekindle.chats.archive import Recording, archive_of
        from rekindle.chats.widget import ChatWidget

        archive = archive_of(self._requests, self._options) if checks.boolean("keep", keep) else None
        if archive is None:
            return ChatWidget(self)
        self._recording = self._recording or Recording(archive, self._requests.tokenizer)
        return ChatWidget(self, self._recording)

    @property
    def _turn_tokens(self) -> TurnTokens:
        return self._now.turn_tokens

    def _resume(self, messages: Sequence[Mapping[str, Any]], turn_tokens: TurnTokens) -> None:
        """Go on with an earlier conversation and its tokens; `undo` returns to this one."""
        self._check_idle()
        self._states.append(State(tuple(with_sources(copy_messages(messages))), turn_tokens))

    def _know(self, turn_tokens: TurnTokens) -> None:
        """Take the tokens of the conversation."""
        self._states[-1] = replace(self._states[-1], turn_tokens=turn_tokens)

    def _turn(
        self,
        new_messages: NewMessages | Again,
        options: SayOptions,
        draw: Draw,
        on_step: OnStep = lambda step: None,
        words: Words | None = None,
    ) -> Waits[Generation]:
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        tools = yield from self._toolset.wait_listed()
        messages, turn = self._begin(new_messages, options, tools, words or self._words)
        rounds, extends = self._rounds(messages, tools, turn, draw, on_step), isinstance(new_messages, Continue)
        self._in_turn = True
        try:
            run = yield from rounds.run()
            self._add(run.messages[:-1], run.answer, turn, extends=extends)
            return run.answer
        except Exception:
            raise
        except BaseException:  # an interrupt, or the end of a timeout's scope
            if (answer := turn.take_interrupted()) is not None:
                self._add(rounds.messages, answer, turn, extends=extends)
            raise
        finally:
            self._in_turn = False

    def _rounds(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], turn: Turn, draw: Draw, on_step: OnStep
    ) -> Rounds:
        """Return the rounds of a turn; without functions to call there is a single round."""
        by_name = {tool.name: tool for tool in tools}
        return Rounds(messages, by_name, ROUNDS, lambda history: turn.answer(history, draw), on_step, sees=turn.sees)

    def _begin(
        self, new_messages: NewMessages | Again, options: SayOptions, tools: Sequence[Tool], words: Words
    ) -> tuple[list[Mapping[str, Any]], Turn]:
        """Return the conversation with the new messages, and the turn that requests its next answer."""
        check_keywords(options, TURN_DEFAULTS if isinstance(new_messages, Retry | Continue) else SAY_DEFAULTS)
        self._check_idle()
        state = self._now
        if isinstance(new_messages, Retry | Continue):
            return self._begin_again(new_messages, state, options, tools, words)
        images, options = options.get("images"), cast(SayOptions, {**options, "images": None})
        messages = [*state.messages, *messages_of(new_messages, images)]
        if not messages or (new_messages is None and messages[-1].get("role") == "assistant"):
            raise InvalidRequest("nothing waits for an answer; say something: chat.say('...')")
        turn_options: Any = {**self._options, **options}
        del turn_options["images"]
        return messages, self._new_turn(state, messages, turn_options, tools, words)

    def _begin_again(
        self, again: Again, state: State, options: TurnOptions, tools: Sequence[Tool], words: Words
    ) -> tuple[list[Mapping[str, Any]], Turn]:
        """Return the conversation before the last answer, and the turn that requests it anew or more of it."""
        place = again.place if isinstance(again, Retry) and again.place is not None else len(state.messages) - 1
        turn_options: Any = {**self._options_of(state.messages[place : place + 1]), **options}
        if isinstance(again, Retry):
            messages = question_of(state.messages[: place + 1])
            if not is_greedy(self._requests.value_of("temperature", turn_options)):
                turn_options["seed"] = options.get("seed", secrets.randbits(SEED_BITS))
            return messages, self._new_turn(state, messages, turn_options, tools, words)
        messages, answer = before_answer(state.messages, state.answer)
        if messages[-1].get("role") == "tool":
            turn_options["tool_choice"] = "auto"
        last = state.answer
        if last is not None and last.seed is not None:
            turn_options["seed"] = options.get("seed", last.seed)
        turn = self._new_turn(state, messages, turn_options, tools, words)
        if last is None or last.finish_reason == "repetition":
            turn.begin_with(messages, answer)
        else:
            turn.opening = OutputPrefix(last.token_ids, last.logprobs, last.weights_version)
        return messages, turn

    def _options_of(self, answer: Sequence[Mapping[str, Any]]) -> TurnOptions:
        """Return the options of the turn with an answer, as a list; those of the chat for an unknown one."""
        turns = (state for state in self._states if state.options is not None and state.messages[-1:] != ())
        by_answer = {id(state.messages[-1]): state.options for state in turns}
        return next((by_answer[id(each)] or {} for each in answer if id(each) in by_answer), self._options)

    def _new_turn(
        self,
        state: State,
        messages: Sequence[Mapping[str, Any]],
        options: TurnOptions,
        tools: Sequence[Tool],
        words: Words,
    ) -> Turn:
        fit = Fit(
            self._when_full, window_of(state, messages), replace(words, tell=partial(self._tell_full, words.tell))
        )
        return Turn(self._requests, [tool.schema for tool in tools], options, state.turn_tokens, fit)

    @property
    def _words(self) -> Words:
        """The words about a full context for code: a note of the session, and methods."""
        return Words(lambda: self._requests.note_once(f"full chat {id(self)}", FULL), REMEDY)

    def _tell_full(self, tell: Callable[[], None]) -> None:
        """Tell once that the oldest turns have left."""
        if not self._told_full:
            self._told_full = True
            tell()

    def _add(
        self, messages: Sequence[Mapping[str, Any]], answer: Generation, turn: Turn, *, extends: bool = False
    ) -> None:
        message = turn.message(messages, self._message(answer))
        self._states.append(State((*messages, message), turn.turn_tokens, turn.window, answer, turn.options, extends))

    @property
    def _now(self) -> State:
        """State of the conversation, including the answer of an ended stream."""
        self._settle()
        return self._states[-1]

    def _settle(self) -> None:
        """Add the answer of an ended stream to the conversation; drop a cancelled one."""
        streamed = self._streamed
        if streamed is not None and (streamed.handle.done or streamed.handle.record.cancelling):
            self._streamed = None
            if (answer := streamed.handle.generation) is not None and not streamed.handle.record.cancelling:
                streamed.turn.take(answer)
                self._add(streamed.messages, answer, streamed.turn)

    def _message(self, answer: Generation) -> Mapping[str, Any]:
        """Return an answer as a message; of a repeated pattern, the model reads one occurrence in later turns."""
        message, text, content = answer.message, answer.text.rstrip(), answer.content.rstrip()
        if answer.repeats_at is None or not text.endswith(content):
            return message
        once = text[len(text) - len(content) : answer.repeats_at]
        return {**message, "content": once} if once and content.startswith(once) else message

    def _check_idle(self) -> None:
        self._settle()
        if self._in_turn or self._streamed is not None:
            raise InvalidRequest(
                "a turn of this conversation is under way; wait for its end, or fork() the conversation"
            )
