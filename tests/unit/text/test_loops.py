"""The stop of chats ends loops without equal tokens, and no code, data, verse and prose with due repetitions."""

import re
from collections.abc import Callable, Iterator

import pytest

from rekindle.core.request.loops import EARLIER, ITEMS, WINDOW, Loops
from rekindle.core.request.repetition import ROOM, TEXTS, RepetitionLimit, RepetitionWatch
from tests.unit.scripted import Serve
from tests.unit.text.repetitive_texts import AGENDA, CHORUS, LEGITIMATE, LETTER, fenced, loops

PIECE = re.compile(r" ?[^\W\d_]+|\d| ?[^\w\s]+|\s+|_+")
"""A token, about as models have them."""
LOOPS = loops()
USER = [{"role": "user", "content": "Hi"}]


def end_of(text: str, limit: RepetitionLimit = TEXTS) -> tuple[int, int] | None:
    """Return the length of a text at its stop, and where the repetition begins again; None without a stop."""
    watch, ids, length = RepetitionWatch(limit), dict[str, int](), 0
    for piece in PIECE.findall(text):
        length += len(piece)
        if watch.push(ids.setdefault(piece, len(ids)), piece):
            assert watch.repeats_at is not None
            return length, watch.repeats_at
    assert length == len(text), "the pieces are the text"
    return None


@pytest.mark.parametrize("texts", LEGITIMATE, ids=lambda texts: texts.__name__)
def test_no_text_that_is_right_to_repeat_itself_is_stopped(texts: Callable[[], Iterator[str]]) -> None:
    assert [text[: end[0]] for text in texts() if (end := end_of(text))] == []


def test_there_are_two_hundred_of_them_and_equal_tokens_alone_would_stop_many() -> None:
    every = [text for texts in LEGITIMATE for text in texts()]
    assert len({*every}) >= 200
    assert sum(end_of(text, RepetitionLimit()) is not None for text in every[:60]) > 20


@pytest.mark.parametrize("name", LOOPS)
def test_every_loop_is_stopped_and_its_text_kept_once_or_twice(name: str) -> None:
    text = LOOPS[name]
    end = end_of(text)
    assert end is not None
    stop, again = end
    assert 0 < again < stop < len(text)
    assert end_of(text[:again]) is None


def test_a_list_restarts_once_a_whole_cycle_and_twelve_items_are_said_again() -> None:
    for cycle in (3, 5, 12, 20):
        titles = [f"{AGENDA[place % 12]} {place // 12}" for place in range(cycle)]
        lines = [f"{place + 1}. {titles[place % cycle]}\n" for place in range(cycle + max(cycle, ITEMS))]
        whole = Loops()
        assert [whole.push(line) for line in lines[:-1]] == [None] * (len(lines) - 1)
        assert whole.push(lines[-1]) == len("".join(lines[:cycle])), "the second cycle begins there"
        broken = Loops()
        for place, line in enumerate(lines):
            assert broken.push("Now the second part:\n" if place == cycle else line) is None


def test_words_that_are_new_or_said_once_before_are_no_loop() -> None:
    body = LETTER.format(name="Ada")
    same = [Loops().push(body * times) is not None for times in (1, EARLIER, 3 + EARLIER)]
    assert same == [False, False, True]
    assert Loops().push("".join(LETTER.format(name=f"N{chr(97 + place) * 4}") for place in range(8))) is None


def test_the_last_chorus_may_be_sung_more_often_than_a_paragraph_is_written() -> None:
    song, paragraph = CHORUS, CHORUS.replace("\n", " ")
    assert len(paragraph.split()) * 6 > WINDOW
    assert (end_of(song * 6), end_of(paragraph * 6) is not None) == (None, True)


@pytest.mark.parametrize(
    ("line", "room"),
    [
        ("| a | b |\n", "data"),
        ("0 1 0 1\n", "data"),
        ('  {"a": null},\n', "data"),
        ("We sail away today.\n", "verse"),
        ("We sail away today and hope for wind and for another day of sun above us. ", "prose"),
    ],
)
def test_equal_lines_have_the_room_of_their_kind(line: str, room: str) -> None:
    assert end_of(line * 600) is not None
    pieces = len(PIECE.findall(line * 100)) / 100
    longest = int(max(64 * ROOM[room] / pieces, 4 * ROOM[room]))
    assert end_of(line * (longest - 1)) is None
    assert end_of(line * (longest + 12)) is not None
    fence = int(max(64 * ROOM["data"] / pieces, 4 * ROOM["data"]))
    assert end_of(fenced("", line * (fence - 1))) is None, "a fence has the most"


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_loop_is_found_in_any_pieces(size: int) -> None:
    text = LOOPS["sentences about changing places"]
    watch = Loops()
    ends = (watch.push(text[place : place + size]) for place in range(0, len(text), size))
    first = next(again for again in ends if again is not None)
    assert abs(first - end_of(text)[1]) <= WINDOW * 8  # type: ignore[index]


@pytest.mark.anyio
async def test_an_answer_of_a_chat_ends_in_a_list_that_restarts(serve: Serve) -> None:
    session, restarts = serve(LOOPS["a numbered list that restarts"]), LOOPS["a numbered list that restarts"]
    chat = session.chat(max_tokens=600)
    answer = await chat.say("Hi")
    assert answer.finish_reason == "repetition"
    assert answer.text[: answer.repeats_at] == chat.messages[-1]["content"] == "".join(restarts.splitlines(True)[:12])
    strict = session.chat(max_tokens=600, stop_on_repetition=RepetitionLimit())
    assert (await strict.say("Hi")).finish_reason == "length", "no tokens are equal"


@pytest.mark.anyio
async def test_an_answer_of_a_chat_does_not_end_in_a_table(serve: Serve) -> None:
    session = serve("| a | b |\n" * 20)
    assert (await session.chat(max_tokens=300).say("Hi")).finish_reason == "stop"
    assert (await session.generate(USER, max_tokens=300, stop_on_repetition=True)).finish_reason == "stop"
    strict = await session.generate(USER, max_tokens=300, stop_on_repetition=RepetitionLimit())
    assert strict.finish_reason == "repetition"
