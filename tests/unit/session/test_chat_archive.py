"""Conversations are kept for later starts: privately, few, not for long, and for each process in a file of its own."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tokenizers import Tokenizer as Backend

from rekindle.chats import archive
from rekindle.chats.archive import DAYS, MOST, Recording, TalkArchive, prune
from rekindle.chats.turn_tokens import NO_TOKENS, TurnPrefix, TurnTokens
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.images.parts import with_sources
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session

SECRET = "owner/secret-project"
PART = '{"type": "image", "image": "data:image/png;base64,AAAA"}'
DAMAGED_IMAGE = f'{{"model": "m", "messages": [{{"role": "user", "content": [{PART}]}}]}}'


@pytest.fixture
def folder() -> Path:
    return Path(os.environ["REKINDLE_CACHE"]) / "history"


@pytest.fixture
def texts(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer)) as session:
        yield session


def talk(*words: str) -> list[dict[str, Any]]:
    """Make messages of the user and the assistant in turn."""
    return [{"role": ("user", "assistant")[place % 2], "content": each} for place, each in enumerate(words)]


def contents(model: str = SECRET, count: int = 99) -> list[list[str]]:
    """Return the texts of the kept conversations, latest first."""
    chats, lines = TalkArchive(model).latest(count)
    assert lines == []
    return [[message["content"] for message in chat.messages] for chat in chats]


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds, time.time() - seconds))


def test_a_conversation_is_one_file_for_its_user_alone(folder: Path) -> None:
    recording = Recording(TalkArchive(SECRET))
    assert recording.write([{"role": "system", "content": "Be brief."}]) == ""
    assert recording.write(talk("password")) == ""
    assert not folder.exists() or list(folder.iterdir()) == [], "nothing was answered"
    recording.write(talk("password", "no"))
    recording.write(talk("password", "no", "why", "so"))
    (file,) = folder.iterdir()
    assert os.name == "nt" or (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not any(word in file.name for word in ("secret", "owner", "password"))
    assert contents() == [["password", "no", "why", "so"]]
    assert contents("owner/other") == []


def test_another_first_message_begins_another_file() -> None:
    recording = Recording(TalkArchive(SECRET))
    for words in (("one", "1"), ("two", "2"), ("one", "1", "more", "yes")):
        recording.write(talk(*words))
    assert sorted(contents()) == [["one", "1", "more", "yes"], ["two", "2"]]


def test_two_processes_that_continue_one_conversation_keep_both(folder: Path) -> None:
    Recording(TalkArchive(SECRET)).write(talk("one", "1"))
    recordings = [Recording(TalkArchive(SECRET)) for _ in range(2)]
    for recording in recordings:
        recording.resume(TalkArchive(SECRET).latest(1)[0][0])
    assert contents() == [["one", "1"]], "it stays until a turn is written"
    for number, recording in enumerate(recordings):
        recording.write(talk("one", "1", f"by {number}", "yes"))
    assert sorted(contents()) == [["one", "1", f"by {number}", "yes"] for number in range(2)]


def test_a_resumed_conversation_stays_if_its_process_goes_on_or_it_was_left() -> None:
    first = Recording(TalkArchive(SECRET))
    first.write(talk("one", "1"))
    second, third = Recording(TalkArchive(SECRET)), Recording(TalkArchive(SECRET))
    for recording in (second, third):
        recording.resume(TalkArchive(SECRET).latest(1)[0][0])
    third.write(talk("else", "2"))
    first.write(talk("one", "1", "first", "yes"))
    second.write(talk("one", "1", "second", "yes"))
    assert sorted(contents()) == [["else", "2"], ["one", "1", "first", "yes"], ["one", "1", "second", "yes"]]


def test_an_old_one_is_not_offered_before_it_is_removed(folder: Path) -> None:
    Recording(TalkArchive(SECRET)).write(talk("one", "1"))
    (file,) = folder.iterdir()
    age(file, (DAYS + 1) * 86400)
    assert contents() == []
    assert file.exists()


def test_few_are_kept_and_not_for_long(folder: Path) -> None:
    for number in range(MOST + 5):
        Recording(TalkArchive(SECRET)).write(talk(f"{number}", "yes"))
        for file in folder.iterdir():
            age(file, time.time() - file.stat().st_mtime + 60)
    assert [words[0] for words in contents()] == [f"{number}" for number in range(MOST + 4, 4, -1)]
    Recording(TalkArchive("another")).write(talk("other", "yes"))
    assert len(contents()) == MOST, "the bound is for each model"
    (folder / "chat").write_text("typed lines")
    (folder / ".chat-0.json.x").write_text("of a killed process")
    (folder / ".chat-1.json.x").write_text("being written")
    for file in folder.glob("*0*"):
        age(file, (DAYS + 1) * 86400)
    age(folder / ".chat-0.json.x", 2 * 3600)
    age(folder / "chat", 2 * DAYS * 86400)
    prune()
    left = {file.name for file in folder.iterdir()}
    assert {"chat", ".chat-1.json.x"} <= left
    assert ".chat-0.json.x" not in left


@pytest.mark.parametrize(
    "content",
    [
        DAMAGED_IMAGE,
        "",
        "{",
        "[]",
        "3",
        '{"messages": 3}',
        '{"model": "m", "messages": []}',
        "[" * 100_000,
        "\xff",
    ],
)
def test_damaged_files_are_skipped_with_a_line(content: str, folder: Path) -> None:
    Recording(TalkArchive(SECRET)).write(talk("one", "1"))
    damaged = folder / f"{TalkArchive(SECRET).prefix}-0.json"
    damaged.write_bytes(content.encode("latin-1"))
    chats, lines = TalkArchive(SECRET).latest(5)
    assert [chat.title for chat in chats] == ["one"]
    (line,) = lines
    assert line.startswith(f"{damaged.name} was skipped: ")
    assert "\n" not in line
    assert len(line) < 200


def test_a_picture_is_kept_and_a_large_one_is_said_not_to_be(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    file = BytesIO()
    Image.new("RGB", (8, 6), "orange").save(file, "PNG")
    parts = [{"type": "image", "image": file.getvalue()}, {"type": "text", "text": "What is it?"}]
    messages = [*with_sources([{"role": "user", "content": parts}]), {"role": "assistant", "content": "A fruit"}]
    recording = Recording(TalkArchive(SECRET))
    assert recording.write(messages) == ""
    (chat,), _ = TalkArchive(SECRET).latest(1)
    (image, _) = with_sources(list(chat.messages))[0]["content"]
    assert image["image"].data == file.getvalue()
    assert chat.title == "[image of 8 x 6 pixels] What is it?"
    second = Recording(TalkArchive(SECRET))
    second.resume(chat)
    second.write([*with_sources(list(chat.messages)), *talk("And?", "Sweet")])
    assert len(list(folder.iterdir())) == 1, "its pixels are the same in the file that goes on"
    monkeypatch.setattr(archive, "MOST_BYTES", 100)
    assert recording.write(messages).startswith("not kept for later: it takes ")


def test_what_cannot_be_written_is_told_and_raises_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recording = Recording(TalkArchive(SECRET))
    assert "not kept for later: " in recording.write([*talk("one"), {"role": "assistant", "content": object()}])
    assert recording.write(talk("lone \ud800", "\udfff")) == ""
    (tmp_path / "file").touch()
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "file"))
    assert "cannot be created" in recording.write(talk("two", "2"))
    assert TalkArchive(SECRET).latest(1) == ([], [])


def test_tokens_come_back_for_the_same_tokenizer_alone(byte_tokenizer: Tokenizer, folder: Path) -> None:
    backend = byte_tokenizer.backend
    tokens = TurnTokens(
        (TurnPrefix("u:", (), (7,)), TurnPrefix("u:one;a:1", (), (7, 8, 9)), TurnPrefix("u:one", ((1, 2),), (5,) * 9))
    )
    recording = Recording(TalkArchive(SECRET), byte_tokenizer)
    recording.write(talk("one", "1"), tokens)
    (chat,), _ = TalkArchive(SECRET).latest(1)
    assert recording.tokens_of(chat) == TurnTokens((TurnPrefix("u:one;a:1", (), (7, 8, 9)),)), (
        "images are tokenized anew"
    )
    smaller = Backend.from_str(backend.to_str())
    smaller.add_tokens(["another"])
    assert Recording(TalkArchive(SECRET), Tokenizer(smaller)).tokens_of(chat) == NO_TOKENS
    assert Recording(TalkArchive(SECRET)).tokens_of(chat) == NO_TOKENS
    (file,) = folder.iterdir()
    whole = json.loads(file.read_text())
    damages: list[Any] = [None, 3, {"token_ids": [-1]}, {"token_ids": [10**9]}, {"token_ids": [True]}, {"text": 3}]
    for damage in damages:
        damaged = whole["tokens"] | damage if isinstance(damage, dict) else damage
        file.write_text(json.dumps({**whole, "tokens": damaged}))
        (chat,), _ = TalkArchive(SECRET).latest(1)
        assert recording.tokens_of(chat) == NO_TOKENS


def test_paths_of_one_model_are_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert TalkArchive("./model").prefix == TalkArchive(str(tmp_path / "model")).prefix != TalkArchive("model-2").prefix


def test_conversations_of_others_and_of_nothing_stored_are_not_kept(texts: Session) -> None:
    assert texts.chat().widget()._resuming._recording is not None
    assert texts.chat(cache_salt="a user").widget()._resuming._recording is None
    assert texts.chat().widget(keep=False)._resuming._recording is None
    settings: Any = texts._engine.facts.settings
    for off in ({"restore": "off"}, {"disk_cache_bytes": 0}):
        object.__setattr__(texts._engine.facts, "settings", replace(settings, **off))
        assert texts.chat().widget()._resuming._recording is None


def test_two_boxes_of_one_chat_write_one_file(texts: Session) -> None:
    chat = texts.chat()
    assert chat.widget()._resuming._recording is chat.widget()._resuming._recording
    assert chat.fork().widget()._resuming._recording is not chat.widget()._resuming._recording
