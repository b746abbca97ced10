"""The provider of inspect-ai for models of Rekindle."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Unpack

from inspect_ai._util.error import PrerequisiteError
from inspect_ai.model import (
    ChatMessage,
    GenerateConfig,
    ModelAPI,
    ModelCall,
    ModelInfo,
    ModelOutput,
    get_model_info,
    set_model_info,
)
from inspect_ai.solver._task_state import sample_state
from inspect_ai.tool import ToolChoice, ToolInfo
from inspect_ai.util import display_type

from rekindle.client.calls.options import is_greedy
from rekindle.core.errors import ConfigError, PromptTooLong, RekindleError
from rekindle.formats.response import MessageForm
from rekindle.formats.responses.formats import format_of
from rekindle.results.generation import Generation
from rekindle.session.inspect_ai.messages import continues, conversation, tool_options
from rekindle.session.inspect_ai.options import MAX_TOKENS, for_template, of_epoch, options_of
from rekindle.session.inspect_ai.outputs import output_of, record_of
from rekindle.session.opening import open_sync
from rekindle.session.session import Session
from rekindle.settings.engine import SettingsOptions


@dataclass(eq=False, slots=True)
class SharedSession:
    """An open session with its users.

    Attributes:
        session: the session.
        model: the name of the model, or the path of its files.
        settings: the keywords of `open`, as given.
        users: the number of models of inspect-ai that use the session.
    """

    session: Session
    model: str
    settings: Mapping[str, Any]
    users: int = 0

    def leave(self) -> bool:
        """Take one user away, and return True if the session has to be closed, since it has no more users."""
        with _lock:
            self.users -= 1
            if self.users == 0 and self in _sessions:
                _sessions.remove(self)
            return self.users == 0


_sessions: list[SharedSession] = []
_lock = Lock()


def share(model: str, settings: Mapping[str, Any], *, progress: bool) -> SharedSession:
    """Return an open session of a model with one more user; open it if there is none.

    Without settings, any open session of the model will do. With settings, it must have been opened with the same ones.

    Args:
        model: the model, as in `rekindle.open`.
        settings: further keywords of `rekindle.open`.
        progress: whether to draw progress bars while opening.

    Raises:
        ConfigError: a keyword is unknown or invalid.
        ModelError: the model cannot be opened.
        Others: as in `rekindle.open`.
    """
    name = os.path.realpath(model) if os.path.exists(model) else model
    with _lock:  # for the whole opening, or two callers would open the same model
        _sessions[:] = [each for each in _sessions if each.session.error is None]
        for shared in _sessions:
            if shared.model == name and (not settings or shared.settings == settings):
                break
        else:
            options: dict[str, Any] = {"progress": progress, **settings}
            shared = SharedSession(open_sync(model, **options), name, dict(settings))
            _sessions.append(shared)
        shared.users += 1
        return shared


class RekindleAPI(ModelAPI):  # type: ignore[misc]  # inspect-ai may not be installed
    """Model of inspect-ai over a session in this process.

    Models with one name share a session. It ends with the last of them that is closed, or with the process.

    Args:
        model_name: the model, as in `rekindle.open`.
        base_url: None, since there is no server.
        api_key: None. With a key, as in inspect-ai's own look-ups of names, no session is opened.
        config: the options of all calls.
        session: an open session in place of one of the provider; it stays open.
        **settings: keywords of `rekindle.open`, such as `max_context` and `revision`.

    Raises:
        PrerequisiteError: a setting or an option is invalid, or the model cannot be opened.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        *,
        session: Session | None = None,
        **settings: Unpack[SettingsOptions],
    ):
        config = config or GenerateConfig()
        super().__init__(model_name=model_name, base_url=base_url, api_key=api_key, config=config)
        self._shared: SharedSession | None = None
        self._own = session
        try:
            options = options_of(config)
            if base_url is not None:
                raise ConfigError(f"the model runs in this process: leave out base_url={base_url!r:.80}")
            if session is not None and settings:
                raise ConfigError(f"an open session keeps its settings: leave out {', '.join(settings)}")
            if session is None and api_key is None:
                shows = display_type() in ("full", "rich", "conversation") and sample_state() is None
                self._shared = share(model_name, settings, progress=shows)
            if api_key is None:
                for_template(options, self._session.tokenizer)
                self._register()
        except RekindleError as error:
            self._leave()
            raise PrerequisiteError(f"rekindle/{model_name}: {error}") from error

    async def generate(
        self,
        input: list[ChatMessage],  # noqa: A002
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> tuple[ModelOutput, ModelCall]:
        """Return the answers to a conversation, and the record of the call.

        A conversation that ends with a message of the assistant is continued. One that is too long for the context
        gives an output with the stop reason "model_length".

        Raises:
            InvalidRequest: an option or a message cannot be served.
            Others: as in `Session.generate`.
        """
        session, state = self._session, sample_state()
        options = of_epoch(options_of(config), 1 if state is None else state.epoch)
        options = for_template(options, session.tokenizer)
        options |= tool_options(tools, tool_choice)
        options |= {"continue_final_message": True} if continues(input) else {}
        messages = conversation(input, self._form)
        call = ModelCall.create({"messages": messages, **options}, None)
        try:
            answers = await _answers(session, messages, config.num_choices or 1, options)
        except PromptTooLong as error:
            call.set_error({"error": str(error)})
            return ModelOutput.from_content(self.model_name, str(error), "model_length", str(error)), call
        call.set_response({"choices": [record_of(each) for each in answers]})
        return output_of(self.model_name, answers, options["max_tokens"]), call

    async def count_tokens(
        self,
        input: str | list[ChatMessage],  # noqa: A002
        config: GenerateConfig | None = None,
    ) -> int:
        """Return the number of tokens of a text, or of a conversation in the model's chat template."""
        if isinstance(input, str):
            return len(self._session.encode(input))
        variables = {"add_generation_prompt": False}
        messages = conversation(input, self._form)
        return len(self._session.encode(self._session.render(messages, chat_template_kwargs=variables)))

    async def count_text_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self._session.encode(text))

    async def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        return self._session.encode(text)

    def max_tokens(self) -> int:
        """Return the most tokens of an answer without `max_tokens`."""
        return MAX_TOKENS

    def max_connections(self) -> int:
        """Return the number of requests at a time: as many as the session computes together."""
        return self._session.settings.max_running

    def connection_key(self) -> str:
        """Return the scope of `max_connections`, the session."""
        return f"{self.model_name}:{id(self._session)}"

    def collapse_user_messages(self) -> bool:
        """Return True: many chat templates refuse two messages of a role in a row."""
        return True

    def collapse_assistant_messages(self) -> bool:
        """Return True, as for messages of the user."""
        return True

    def close(self) -> None:
        """Close the session if no other model uses it. Idempotent."""
        if (session := self._leave()) is not None:
            session.close_sync()

    async def aclose(self) -> None:
        """Close the session as `close` does, without blocking the event loop."""
        if (session := self._leave()) is not None:
            await session.close()

    @property
    def _session(self) -> Session:
        if self._own is not None:
            return self._own
        if self._shared is None:
            raise ConfigError(f"rekindle/{self.model_name} is closed, or has an api_key, which nothing here needs")
        return self._shared.session

    @property
    def _form(self) -> MessageForm:
        """The form of messages in the model's chat template."""
        tokenizer = self._session.tokenizer
        return MessageForm() if tokenizer is None else format_of(tokenizer).form

    def _leave(self) -> Session | None:
        """Give the shared session up, and return it if it has to be closed."""
        shared, self._shared = self._shared, None
        return shared.session if shared is not None and shared.leave() else None

    def _register(self) -> None:
        """Tell inspect-ai the length of the context, which its compaction of conversations needs."""
        name = f"rekindle/{self.model_name}"
        former = get_model_info(name)
        facts = {} if former is None else former.model_dump()
        set_model_info(name, ModelInfo(**{**facts, "context_length": self._session.settings.max_context}))


async def _answers(
    session: Session, messages: list[dict[str, Any]], count: int, options: dict[str, Any]
) -> Sequence[Generation]:
    """Return the answers to a conversation; at temperature 0, all are the same."""
    if count == 1 or is_greedy(options.get("temperature")):
        return [await session.generate(messages, **options)] * count
    answers: Sequence[Generation] = await session.generate(messages, n=count, progress=False, **options)
    return answers
