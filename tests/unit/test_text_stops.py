"""Stop strings end a text where a reader, character by character, would end it, however the text comes in pieces."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rekindle.models.text import stops
from rekindle.models.text.stops import StopMatcher
from tests.unit.kept_memory import kept_bytes

Piece = tuple[str, bool]
SHOWN_AND_FOUND = tuple[list[str], str | None]


def run(pieces: Sequence[str], stops: Sequence[str], keep: bool = False, min_pieces: int = 0) -> SHOWN_AND_FOUND:
    """Return the text shown of each piece, up to the stop or to the end, and the stop."""
    matcher = StopMatcher(stops, keep)
    shown = []
    for place, piece in enumerate(pieces):
        text, found = matcher.push(piece, may_stop=place >= min_pieces)
        shown.append(text)
        if found is not None:
            return shown, found
    text, found = matcher.finish()
    return [*shown, text], found


def expected_end(pieces: Sequence[Piece], stops: Sequence[str]) -> tuple[int, str | None]:
    """Return, by definition, the number of characters up to the first complete stop, and the stop."""
    text = "".join(piece for piece, _ in pieces)
    allowed = [may_stop for piece, may_stop in pieces for _ in piece]
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete and allowed[end - 1]:
            return end, max(complete, key=len)
    return len(text), None


def expected_held(text: str, stops: Sequence[str]) -> int:
    """Return, by definition, the length of the longest end that a longer stop begins with."""
    return max(
        (length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])),
        default=0,
    )


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "found"),
    [
        (["one two"], [], ["one two", ""], None),
        (["one END two"], ["END"], ["one "], "END"),
        (["one E", "N", "D"], ["END"], ["one ", "", ""], "END"),
        (["one E", "N", "d two"], ["END"], ["one ", "", "ENd two", ""], None),
        (["one EN"], ["END"], ["one ", "EN"], None),
        (["ENEND"], ["END"], ["EN"], "END"),
        (["a\n", "\n", "\n", "b"], ["\n\n\n"], ["a", "", ""], "\n\n\n"),
        (["a\n", "\n", "b"], ["\n\n\n"], ["a", "", "\n\nb", ""], None),
        (["aaab"], ["aab"], ["a"], "aab"),
        (["a", "a", "a", "b"], ["aab"], ["", "", "a", ""], "aab"),
        (["xabcd"], ["bc", "abcd"], ["xa"], "bc"),
        (["xabcd"], ["c", "abc", "bc"], ["x"], "abc"),
        (["xab", "e"], ["abcd", "b"], ["xa"], "b"),
        (["xa", "be"], ["abcd", "be"], ["x", "a"], "be"),
        (["über", "🚀", "東", "京x"], ["東京"], ["über", "🚀", "", ""], "東京"),
        (["", "a", ""], ["ab"], ["", "", "", "a"], None),
    ],
)
def test_a_text_ends_before_its_first_complete_stop(
    pieces: list[str], stops: list[str], shown: list[str], found: str | None
) -> None:
    assert run(pieces, stops) == (shown, found)


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "found"),
    [
        (["one END two"], ["END"], ["one END"], "END"),
        (["one E", "N", "D two"], ["END"], ["one ", "", "END"], "END"),
        (["aaab"], ["aab"], ["aaab"], "aab"),
        (["one EN"], ["END"], ["one ", "EN"], None),
    ],
)
def test_a_stop_that_is_kept_ends_the_shown_text(
    pieces: list[str], stops: list[str], shown: list[str], found: str | None
) -> None:
    assert run(pieces, stops, keep=True) == (shown, found)


@pytest.mark.parametrize(
    ("pieces", "shown", "found"),
    [
        (["END", "x", "END"], ["END", "x", ""], "END"),
        (["E", "ND", "x"], ["", "END", "x", ""], None),
        (["x", "E", "ND"], ["x", "", ""], "END"),
    ],
)
def test_a_stop_counts_when_its_last_piece_may_stop(pieces: list[str], shown: list[str], found: str | None) -> None:
    assert run(pieces, ["END"], min_pieces=2) == (shown, found)


def test_a_stop_that_was_passed_over_can_begin_a_longer_one() -> None:
    assert run(["xab", "c"], ["ab", "abc"], min_pieces=1) == (["x", ""], "abc")
    assert run(["xab", "d"], ["ab", "abc"], min_pieces=1) == (["x", "abd", ""], None)
    assert run(["aa", "a"], ["aa"], min_pieces=1) == (["a", ""], "aa")


def test_the_last_text_is_searched_too() -> None:
    matcher = StopMatcher(["END"], keep=False)
    assert matcher.push("one E") == ("one ", None)
    assert matcher.finish("ND two") == ("", "END")
    matcher = StopMatcher(["END"], keep=False)
    assert matcher.push("one E") == ("one ", None)
    assert matcher.finish("ND two", may_stop=False) == ("END two", None)


def test_after_its_end_a_text_takes_no_more() -> None:
    found, finished = StopMatcher(["b"], keep=False), StopMatcher(["b"], keep=False)
    found.push("ab")
    finished.finish("a")
    for matcher in (found, finished):
        with pytest.raises(AssertionError, match="ended"):
            matcher.push("a")


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.tuples(st.text("abc", max_size=4), st.booleans()), max_size=12)


@given(PIECES, STOPS, st.booleans(), st.booleans())
@example([("ab", False), ("a", True), ("b", True)], ["abab", "ba"], False, True)
@settings(max_examples=1000)
def test_what_is_shown_held_and_found_is_what_the_definition_says(
    pieces: list[Piece], stops: list[str], keep: bool, finish_with_text: bool
) -> None:
    end, stop = expected_end(pieces, stops)
    matcher = StopMatcher(stops, keep)
    seen = shown = ""
    for place, (piece, may_stop) in enumerate(pieces):
        last = finish_with_text and place == len(pieces) - 1
        text, found = (matcher.finish if last else matcher.push)(piece, may_stop)
        seen, shown = seen + piece, shown + text
        if found is not None:
            break
        assert shown == seen[: len(seen) - (0 if last else expected_held(seen, stops))]
    else:
        if not (finish_with_text and pieces):
            text, found = matcher.finish()
            shown += text
    assert found == stop
    whole = "".join(piece for piece, _ in pieces)
    assert shown == whole[: end if keep or stop is None else end - len(stop)]


@given(st.lists(st.tuples(st.text("abc", max_size=4), st.booleans(), st.booleans()), max_size=12), STOPS, st.booleans())
@example([("a", True, False), ("b", True, True), ("c", True, False)], ["ab", "bd"], True)
@example([("xa", True, False), ("b", True, True), ("c", True, False)], ["abd"], False)
@settings(max_examples=1000)
def test_hidden_pieces_are_searched_and_not_shown(
    pieces: list[tuple[str, bool, bool]], stops: list[str], keep: bool
) -> None:
    end, stop = expected_end([(piece, may_stop) for piece, may_stop, _ in pieces], stops)
    whole = [(character, hidden) for piece, _, hidden in pieces for character in piece]
    matcher = StopMatcher(stops, keep)
    seen = shown = ""
    for piece, may_stop, hidden in pieces:
        text, found = matcher.push(piece, may_stop, hidden)
        seen, shown = seen + piece, shown + text
        if found is not None:
            break
        assert shown == visible(whole[: len(seen) - expected_held(seen, stops)])
    else:
        text, found = matcher.finish()
        shown += text
    assert found == stop
    before = whole[: end - len(stop or "")]
    assert shown == visible(before) + (stop if keep and stop else "")


def visible(characters: Sequence[tuple[str, bool]]) -> str:
    """Return the characters that are not hidden."""
    return "".join(character for character, hidden in characters if not hidden)


def test_a_piece_costs_the_same_late_as_early() -> None:
    matcher = StopMatcher(["aaaaaaab", "\n\n"], keep=False)
    pieces = 10_000

    def push() -> None:
        for place in range(pieces):
            matcher.push("aaaa", hidden=place % 2 == 0)

    assert kept_bytes(stops, push) < pieces, "what a piece costs depends on it, and on what is kept of others"
