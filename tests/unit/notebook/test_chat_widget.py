"""A box in a cell talks to the model: Enter starts a turn, its answer is drawn as it comes, and errors are shown."""

import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from rekindle.chats.chat import Chat
from rekindle.chats.widget import ChatWidget
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.notebook import front_end
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.cards import ALLOWED, read
from tests.waiting import until_blocking

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


class Output:
    """A stand-in for an output of a cell, with a record of its bundles."""

    instances: list["Output"]

    def __init__(self) -> None:
        self.bundles: list[Mapping[str, Any]] = []
        Output.instances.append(self)

    def draw(self, bundle: Mapping[str, Any]) -> None:
        self.bundles.append(bundle)

    @property
    def html(self) -> str:
        return str(self.bundles[-1].get("text/html", "")) if self.bundles else ""


@pytest.fixture
def session(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    tokenizer = Tokenizer(byte_tokenizer.backend, chat_template=TEMPLATE)
    with fake_session(fake_loaded_engine(fake_limits(page_size=16), tokenizer=tokenizer)) as session:
        yield session


@pytest.fixture
def chat(session: Session) -> Chat:
    return session.chat(max_tokens=6)


@pytest.fixture
def widget(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatWidget]:
    """Display the widget of a conversation, as a cell of a notebook does."""
    Output.instances = []
    monkeypatch.setattr(front_end, "kernel", object)
    monkeypatch.setattr(front_end, "CellOutput", Output)
    widget = chat.widget()
    widget._ipython_display_()
    yield widget
    widget.close()


def parts(widget: ChatWidget) -> tuple[Any, Any, Any]:
    """Return the box, the button to send and the button to stop."""
    assert widget._inputs is not None
    box, send, stop = widget._inputs._root.children
    return box, send, stop


def at_rest(widget: ChatWidget) -> None:
    until_blocking(lambda: not parts(widget)[1].disabled, "the turn had ended")


def history(widget: ChatWidget) -> Output:
    return widget._history  # type: ignore[return-value]


def test_enter_starts_a_turn_and_the_conversation_has_its_figures(chat: Chat, widget: ChatWidget) -> None:
    box, _, stop = parts(widget)
    for text in ("Hello there", "And once more, so that pages are found again"):
        box.value = text
        assert stop.disabled, "without its line end a text is not sent"
        box.value = f"{text}\n"
        assert box.value == ""
        at_rest(widget)
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
    page = read(history(widget).html, ALLOWED | {"p", "br"})
    assert "And once more" in page.text
    second = widget.answers[3]
    assert second.cached_tokens
    assert f"{second.cached_tokens:,} of {second.usage.prompt_tokens:,} tokens" in page.text
    assert widget._current.bundles[-1] == front_end.EMPTY  # type: ignore[attr-defined]


def test_stop_keeps_what_has_come(session: Session, chat: Chat, widget: ChatWidget) -> None:
    box, send, stop = parts(widget)
    session.pause_sync()
    box.value = "Hello"
    send.click()
    until_blocking(lambda: bool(session.requests), "its request was submitted")
    box.value = "too early\n"
    assert box.value == "too early", "a turn runs, and the text stays"
    until_blocking(lambda: widget._handle is not None, "the widget knew of it")
    stop.click()
    session.resume()
    at_rest(widget)
    assert widget.answers[1].finish_reason == "cancelled"
    assert len(chat) == 2


def test_an_error_is_shown_and_the_conversation_stays(session: Session, chat: Chat, widget: ChatWidget) -> None:
    session.close_sync()
    assert widget.send("Hello")
    at_rest(widget)
    current = read(widget._current.html)  # type: ignore[attr-defined]
    assert ("role", "alert") in current.attributes
    assert "the session is closed" in current.text
    assert len(chat) == 0


def test_without_widgets_or_a_notebook_it_is_the_conversation(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    chat.say_sync("Hello")
    widget = chat.widget()
    with pytest.raises(NotImplementedError):
        widget._ipython_display_()
    monkeypatch.setattr(front_end, "kernel", object)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(NotImplementedError):
        widget._ipython_display_()
    assert widget._repr_mimebundle_() == chat._repr_mimebundle_()


def test_chosen_images_are_sent_with_the_next_message(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chat, "takes_images", property(lambda chat: True))
    Output.instances = []
    monkeypatch.setattr(front_end, "kernel", object)
    monkeypatch.setattr(front_end, "CellOutput", Output)
    turns: list[Any] = []
    turn = chat._turn

    def noted(text: Any, options: Any, *others: Any) -> Any:
        turns.append((text, options))
        return turn(text, {}, *others)

    monkeypatch.setattr(chat, "_turn", noted)
    widget = chat.widget()
    widget._ipython_display_()
    assert widget._inputs is not None
    box, files, send, _ = widget._inputs._root.children
    (button,) = files.children
    assert (button.accept, button.multiple, button.description) == ("image/*", True, "Images")
    changed = datetime.now(UTC)
    file = {"name": "a.png", "type": "image/png", "size": 3, "content": memoryview(b"abc"), "last_modified": changed}
    button.value = (file,)
    box.value = "\n"
    assert files.children == (button,), "images wait for a text"
    for text in ("What is it?", "And why?"):
        box.value = f"{text}\n"
        until_blocking(lambda: not send.disabled, "the turn had ended")
    assert turns == [("What is it?", {"images": [b"abc"]}), ("And why?", {})]
    assert files.children != (button,)
    assert any("[1 image]" in bundle["text/plain"] for output in Output.instances for bundle in output.bundles)
    widget.close()


def test_a_model_of_text_alone_has_no_button_for_images(chat: Chat, widget: ChatWidget) -> None:
    assert not chat.takes_images
    assert len(parts(widget)) == 3
