"""A box in a cell talks to the model: Enter starts a turn, its answer is drawn as it comes, and errors are shown."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from io import BytesIO
from typing import Any
from unittest.mock import Mock

import pytest
from PIL import Image

from rekindle.chats import archive
from rekindle.chats.chat import Chat
from rekindle.chats.widget import ChatWidget, history_bundle
from rekindle.core.errors import InvalidRequest
from rekindle.core.store.directory import cache_dir
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.notebook import face, front_end
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


def page(widget: ChatWidget) -> str:
    """Return the HTML of the input."""
    assert widget._inputs is not None
    return str(widget._inputs.face.widget.html)


def message(widget: ChatWidget, content: Mapping[str, Any], buffers: Sequence[Any] = ()) -> None:
    """Send a message, as the page does."""
    assert widget._inputs is not None
    widget._inputs.face.widget._handle_custom_msg(content, list(buffers))


def usable(widget: ChatWidget) -> list[str]:
    """Return the names of the buttons that can be pressed."""
    return re.findall(r'data-press="([^"]*)"(?! disabled)', page(widget))


def at_rest(widget: ChatWidget) -> None:
    until_blocking(lambda: "send" in usable(widget), "the turn had ended")


def history(widget: ChatWidget) -> Output:
    return widget._history  # type: ignore[return-value]


def test_enter_starts_a_turn_and_the_conversation_has_its_figures(chat: Chat, widget: ChatWidget) -> None:
    for text in ("Hello there", "And once more, so that pages are found again"):
        assert usable(widget) == ["send"]
        message(widget, {"text": f"{text}\n"})
        at_rest(widget)
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
    shown = read(history(widget).html, ALLOWED | {"p", "br"})
    assert "And once more" in shown.text
    second = widget.answers[3]
    assert second.cached_tokens
    assert f"{second.cached_tokens:,} of {second.usage.prompt_tokens:,} tokens" in shown.text
    assert widget._current.bundles[-1] == front_end.EMPTY  # type: ignore[union-attr]


def test_stop_keeps_what_has_come(
    session: Session, chat: Chat, widget: ChatWidget, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.pause_sync()
    message(widget, {"text": "Hello"})
    until_blocking(lambda: bool(session.requests), "its request was submitted")
    assert widget._inputs is not None
    back = list[Any]()
    monkeypatch.setattr(widget._inputs.face.widget, "send", back.append)
    message(widget, {"text": "too early"})
    assert back == [{"text": "too early"}], "a turn runs, and the text goes back to the box"
    until_blocking(lambda: widget._handle is not None, "the widget knew of it")
    assert usable(widget) == ["stop"]
    message(widget, {"press": "stop"})
    session.resume()
    at_rest(widget)
    assert widget.answers[1].finish_reason == "cancelled"
    assert len(chat) == 2


def acts(widget: ChatWidget) -> list[str]:
    """Return the words of the buttons of each message, as the page reads them."""
    return re.findall('data-acts="([^"]*)"', history(widget).html)


def press(widget: ChatWidget, name: str) -> None:
    """Press a button on a message, and wait for the turn."""
    message(widget, {"press": name})
    at_rest(widget)


def say(widget: ChatWidget, text: str) -> None:
    message(widget, {"text": text})
    at_rest(widget)


def test_a_cut_answer_goes_on_by_one_press(session: Session, chat: Chat, widget: ChatWidget) -> None:
    say(widget, "Hello")
    assert acts(widget) == ["edit.0", "continue.1 retry.1 edit.1"]
    press(widget, "continue.1")
    expected = session.chat(max_tokens=12).say_sync("Hello")
    assert widget.answers[1].token_ids == expected.token_ids
    assert [each["role"] for each in chat.messages] == ["user", "assistant"]
    assert acts(widget) == ["edit.0", "continue.1 retry.1 edit.1"], "a cut answer is no version of its whole"
    shown = read(history(widget).html, ALLOWED | {"p", "br"}).text
    assert "after 12 tokens: max_tokens= allows more, and Continue goes on" in shown


def test_arrows_lead_from_an_answer_to_the_former_ones_with_their_later_turns(chat: Chat, widget: ChatWidget) -> None:
    for text in ("Hello", "And?"):
        say(widget, text)
    first = chat.messages
    press(widget, "retry.1")
    second = chat.messages
    assert [each["role"] for each in second] == ["user", "assistant"]
    assert second[1]["content"] != first[1]["content"], "a fresh seed"
    assert acts(widget) == ["edit.0", "continue.1 retry.1 edit.1 older.1 =2/2"]
    press(widget, "retry.1")
    assert acts(widget)[1].endswith("edit.1 older.1 =3/3")
    press(widget, "older.1")
    press(widget, "older.1")
    assert chat.messages == first
    assert acts(widget) == ["edit.0", "retry.1 edit.1 =1/3 newer.1", "edit.2", "continue.3 retry.3 edit.3"]
    press(widget, "newer.1")
    assert chat.messages == second
    chat.undo()
    assert chat.messages == first, "undo comes back"


def test_an_edit_answers_a_question_anew_or_changes_an_answer(
    session: Session, chat: Chat, widget: ChatWidget, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(widget, "Hello")
    first, sent = chat.messages, list[Any]()
    assert widget._inputs is not None
    monkeypatch.setattr(widget._inputs.face.widget, "send", sent.append)
    message(widget, {"press": "edit.0"})
    assert sent == [{"text": "Hello", "edit": True}]
    assert "an edit of a message" in page(widget)
    message(widget, {"press": "keep"})
    assert sent[1:] == [{"text": "", "edit": True}]
    assert "an edit of a message" not in page(widget)
    message(widget, {"press": "edit.0"})
    say(widget, "Good morning")
    assert chat.messages[0]["content"] == "Good morning"
    assert len(chat) == 2
    assert acts(widget)[0] == "edit.0 older.0 =2/2"
    assert "an edit of a message" not in page(widget)
    message(widget, {"press": "edit.1"})
    say(widget, "It was")
    assert chat.messages[1] == {"role": "assistant", "content": "It was"}
    press(widget, "continue.1")
    assert str(chat.messages[1]["content"]).startswith("It was")
    press(widget, "older.0")
    assert chat.messages == first


def test_a_press_that_fails_is_shown_and_changes_nothing(session: Session, chat: Chat, widget: ChatWidget) -> None:
    say(widget, "Hello")
    before = chat.messages
    press(widget, "retry.7")  # of an earlier page
    press(widget, "newer.1")
    assert "version 1 of 1 has no neighbour" in widget._current.html  # type: ignore[union-attr]
    session.close_sync()
    message(widget, {"press": "edit.0"})
    say(widget, "Good morning")
    assert "the session is closed" in widget._current.html  # type: ignore[union-attr]
    assert chat.messages == before, "the edit is undone"
    press(widget, "retry.1")
    assert chat.messages == before


def test_a_press_during_a_turn_does_nothing(session: Session, chat: Chat, widget: ChatWidget) -> None:
    say(widget, "Hello")
    session.pause_sync()
    message(widget, {"text": "And?"})
    until_blocking(lambda: bool(session.requests), "its request was submitted")
    for name in ("retry.1", "edit.0", "continue.1", "older.1"):
        message(widget, {"press": name})
    assert acts(widget) == ["edit.0", "continue.1 retry.1 edit.1"]
    session.resume()
    at_rest(widget)
    assert len(chat) == 4


def test_the_last_message_has_its_buttons_in_the_input_too_for_pages_that_part_outputs(widget: ChatWidget) -> None:
    assert "data-acts" not in page(widget)
    say(widget, "Hello")
    assert '<div data-spare style="font-size:0.85em" data-acts="continue.1 retry.1 edit.1"></div>' in page(widget)


def test_a_saved_conversation_has_no_words_of_buttons(widget: ChatWidget) -> None:
    say(widget, "Hello")
    shown = read(history(widget).html, ALLOWED | {"p", "br"})
    assert "Retry" not in shown.text
    assert "button" not in shown.tags


def test_a_line_in_the_conversation_tells_which_turns_are_no_longer_sent(session: Session) -> None:
    messages = [{"role": "user", "content": "Why?" + " " * 290}, {"role": "assistant", "content": "So it is."}]
    chat = session.chat(messages=messages * 16, max_tokens=6)
    chat.say_sync("Hi")
    shown = history_bundle(chat.messages, {}, start=chat._history[-1].window.start)["text/html"]
    above, _, below = str(shown).partition("the turns above this line are no longer sent")
    kept = len(chat.window) // 2 - 1
    assert 0 < kept < 16
    assert (above.count("Why?"), below.count("Why?")) == (16 - kept, kept)


def test_an_answer_cut_by_the_context_names_the_way_on(session: Session) -> None:
    for when_full, words in (
        ("trim", "Continue, or the next turn, goes on without the oldest"),
        ("stop", "chat.undo() takes"),
    ):
        chat = session.chat(max_tokens=None, ignore_eos=True, when_full=when_full)  # type: ignore[arg-type]
        answer = chat.say_sync("Hi " * 1360)
        shown = str(history_bundle(chat.messages, {1: answer}, stops=when_full == "stop")["text/html"])
        assert f"the context of 4,096 tokens is full: {words}" in shown
        assert "max_tokens=" not in shown


def test_an_error_is_shown_and_the_conversation_stays(session: Session, chat: Chat, widget: ChatWidget) -> None:
    session.close_sync()
    assert widget.send("Hello")
    at_rest(widget)
    current = read(widget._current.html)  # type: ignore[union-attr]
    assert ("role", "alert") in current.attributes
    assert "the session is closed" in current.text
    assert len(chat) == 0


def test_without_widgets_it_is_the_conversation_with_a_note(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    chat.say_sync("Hello")
    widget = chat.widget()
    with pytest.raises(NotImplementedError):
        widget._ipython_display_()
    assert widget._repr_mimebundle_() == chat._repr_mimebundle_()
    monkeypatch.setattr(front_end, "kernel", object)
    monkeypatch.setattr(face, "_kind", Mock(side_effect=ImportError))
    with pytest.raises(NotImplementedError):
        widget._ipython_display_()
    assert "to type here, install anywidget" in widget._repr_mimebundle_()["text/html"]


def test_in_marimo_the_conversation_is_in_the_widget(chat: Chat) -> None:
    chat.say_sync("Hello")
    widget = chat.widget()
    assert widget._display_() is widget._inputs.face.widget  # type: ignore[union-attr]
    assert page(widget).index("Hello") < page(widget).index("<textarea")
    message(widget, {"text": "And more"})
    at_rest(widget)
    assert page(widget).index("And more") < page(widget).index("from the cache")
    widget.close()


def offers(widget: ChatWidget) -> list[str]:
    """Return the names of the buttons that continue an earlier conversation."""
    return re.findall(r'data-press="(resume-[^"]*)"', page(widget))


@pytest.fixture
def earlier(session: Session) -> None:
    """Keep two conversations, as two kernels did."""
    for texts in (("First of all", "And then"), ("Hello <b>",)):
        widget = session.chat(max_tokens=4).widget()
        for text in texts:
            assert widget.send(text)
            until_blocking(lambda widget=widget: not widget._is_busy, "the turn had ended")  # type: ignore[misc]


def test_an_earlier_conversation_goes_on_by_a_click(session: Session, earlier: None, widget: ChatWidget) -> None:
    chat: Any = widget._chat
    assert usable(widget) == ["resume-0", "resume-1", "send"]
    shown = unescape(page(widget))
    assert "Hello <b>" not in page(widget)
    assert "“Hello <b>” · 2 messages · less than a minute ago" in shown
    assert "“First of all” · 4 messages" in shown
    message(widget, {"press": "resume-1"})
    assert [each["content"] for each in chat.messages[::2]] == ["First of all", "And then"]
    assert "First of all" in history(widget).html
    assert usable(widget) == ["send"]
    message(widget, {"text": "At last"})
    at_rest(widget)
    assert len(chat) == 6
    answer = widget.answers[5]
    known = answer.usage.prompt_tokens - len("u:At last;a:") - 16
    assert answer.cached_tokens > known, "random bytes are no text, and their tokens are known all the same"
    again = session.chat().widget()
    again._ipython_display_()
    assert re.findall("“(.*?)” · . messages", unescape(page(again))) == ["First of all", "Hello <b>"]
    again.close()


def test_an_undone_click_leaves_the_earlier_conversation(session: Session, earlier: None, widget: ChatWidget) -> None:
    chat: Any = widget._chat
    message(widget, {"press": "resume-0"})
    chat.undo()
    assert chat.messages == []
    message(widget, {"text": "Something else"})
    at_rest(widget)
    again = session.chat().widget()
    again._ipython_display_()
    assert len(offers(again)) == 3
    again.close()


def test_the_offer_ends_with_the_first_turn_and_waits_for_its_end(
    session: Session, earlier: None, widget: ChatWidget
) -> None:
    session.pause_sync()
    message(widget, {"text": "New"})
    message(widget, {"press": "resume-0"})
    assert len(widget._chat.messages) == 0, "a turn runs"
    session.resume()
    at_rest(widget)
    assert offers(widget) == []
    message(widget, {"press": "resume-0"})
    assert len(widget._chat.messages) == 2


def test_a_conversation_gone_meanwhile_has_a_line(earlier: None, widget: ChatWidget) -> None:
    for path in archive.files(cache_dir(archive.HISTORY)):
        path.unlink()
    message(widget, {"press": "resume-0"})
    assert "this conversation cannot be continued: " in page(widget)
    assert widget._chat.messages == []


def test_a_damaged_file_has_a_line_and_no_button(earlier: None, session: Session, widget: ChatWidget) -> None:
    archive.files(cache_dir(archive.HISTORY))[0].write_text("{")
    again = session.chat().widget()
    again._ipython_display_()
    assert re.search(r"chat-\S+\.json was skipped: it has no conversation", page(again))
    assert len(offers(again)) == 1
    again.close()


def test_a_conversation_that_is_not_kept_says_so(widget: ChatWidget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 10)
    message(widget, {"text": "Hello"})
    at_rest(widget)
    assert "not kept for later: it takes " in page(widget)


@pytest.mark.parametrize("keep", [True, False])
def test_keep_decides_about_offer_and_file(
    keep: bool, earlier: None, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_end, "kernel", object)
    monkeypatch.setattr(front_end, "CellOutput", Output)
    Output.instances = []
    widget = session.chat(max_tokens=4).widget(keep=keep)
    widget._ipython_display_()
    assert bool(offers(widget)) == keep
    message(widget, {"text": "Private"})
    at_rest(widget)
    chats, _ = archive.TalkArchive(session.name).latest(9)
    assert ("Private" in [chat.title for chat in chats]) == keep
    widget.close()
    with pytest.raises(InvalidRequest, match="keep must be True or False"):
        session.chat().widget(keep="no")  # type: ignore[arg-type]


def test_in_marimo_the_offer_is_in_the_widget(session: Session, earlier: None) -> None:
    widget = session.chat().widget()
    widget._display_()
    message(widget, {"press": offers(widget)[0]})
    assert page(widget).index("Hello") < page(widget).index("<textarea")
    widget.close()


class Pictured:
    """The widget of a chat whose model takes images, and its parts.

    Attributes:
        turns: the texts and the options of its turns.
    """

    def __init__(self, chat: Chat, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(Chat, "_no_images", "")
        monkeypatch.setattr(front_end, "kernel", object)
        monkeypatch.setattr(front_end, "CellOutput", Output)
        Output.instances = []
        self.turns: list[Any] = []
        turn = chat._turn

        def noted(text: Any, options: Any, *others: Any, **more: Any) -> Any:
            self.turns.append((text, options))
            return turn(text, {}, *others, **more)

        monkeypatch.setattr(chat, "_turn", noted)
        self.widget = chat.widget()
        self.widget._ipython_display_()

    @property
    def html(self) -> str:
        """The HTML of the input."""
        return page(self.widget)

    def remove(self, name: str) -> None:
        """Press the button that removes an image."""
        (button,) = re.findall(f'data-press="([^"]*)" title="Remove {name}"', self.html)
        message(self.widget, {"press": button})

    def drop(self, name: str, data: bytes, part: int = 100) -> None:
        """Send a file as the front end does, in parts."""
        for start in range(0, max(1, len(data)), part):
            content = {"name": name, "size": len(data), "start": start}
            message(self.widget, content, [memoryview(data[start : start + part])])

    def say(self, text: str) -> None:
        message(self.widget, {"text": text})
        at_rest(self.widget)


@pytest.fixture
def pictured(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pictured]:
    pictured = Pictured(chat, monkeypatch)
    yield pictured
    pictured.widget.close()


def png(width: int, height: int = 6) -> bytes:
    file = BytesIO()
    Image.new("RGB", (width, height), "orange").save(file, "PNG")
    return file.getvalue()


def test_images_are_sent_with_the_next_message(pictured: Pictured) -> None:
    assert '<input type="file" accept="image/*" multiple' in pictured.html
    pictured.drop("a.png", png(8))
    message(pictured.widget, {"text": ""})
    assert "say something about the images" in pictured.html
    for text in ("What is it?", "And why?"):
        pictured.say(text)
    (image,) = pictured.turns[0][1]["images"]
    assert image.data == png(8)
    assert pictured.turns == [("What is it?", {"images": [image]}), ("And why?", {})]
    bundles = [bundle for output in Output.instances for bundle in output.bundles]
    turn = next(bundle for bundle in bundles if "[image of 8 x 6 pixels]" in bundle["text/plain"])
    assert '<img src="data:image/jpeg;base64,' in turn["text/html"]


def test_dropped_images_have_thumbnails_and_can_be_removed(pictured: Pictured) -> None:
    pictured.drop("one.png", png(8))
    pictured.drop("two.png", png(9), part=1 << 20)
    assert pictured.html.count("<img ") == 2
    assert "two.png, image of 9 x 6 pixels" in pictured.html
    pictured.remove("one.png")
    assert pictured.html.count("<img ") == 1
    pictured.say("What is it?")
    (image,) = pictured.turns[0][1]["images"]
    assert image.size == (6, 9)
    assert "<img " not in pictured.html, "sent images leave the tray"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("notes.txt", b"only text", "notes.txt: an image must be PNG, JPEG, WebP or GIF"),
        ("none.png", b"", "none.png: .*an empty file"),
        ("half.png", png(64, 64)[:90], "half.png: .*damaged"),
    ],
)
def test_files_that_are_no_images_are_refused_with_the_reason(
    pictured: Pictured, name: str, data: bytes, reason: str
) -> None:
    pictured.drop(name, data)
    assert 'role="alert"' in pictured.html
    assert re.search(reason, pictured.html)
    assert "<img " not in pictured.html
    pictured.drop("good.png", png(8))
    assert "alert" not in pictured.html


def test_files_out_of_bounds_and_folders_are_refused_without_their_bytes(pictured: Pictured) -> None:
    message(pictured.widget, {"name": "film.png", "size": 21 << 20, "start": 0})
    assert "film.png: an image may have 20 MiB, got 21.0 MiB" in pictured.html
    message(pictured.widget, {"name": "a folder", "error": "a file or directory could not be found"})
    assert "a folder: it cannot be read (a file or directory" in pictured.html
    message(pictured.widget, {"name": "<b>", "error": "no"})
    assert "<b>:" not in pictured.html


def test_a_model_of_text_alone_says_so_of_a_dropped_image(widget: ChatWidget) -> None:
    assert "<input" not in page(widget)
    message(widget, {"name": "a.png", "size": 5, "start": 0}, [b"bytes"])
    assert "a.png: the model takes no images" in page(widget)
