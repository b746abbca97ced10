"""Stop strings end a text where a reader, character by character, would end it, however the text comes in pieces."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rekindle.core.text import stops as stops_module
from rekindle.core.text.stops import StopMatcher
from tests.unit.kept_memory import kept_bytes
from tests.unit.stop_definition import first_stop

Piece = tuple[str, bool, bool]
"""A piece of text, whether it may stop, and whether it is hidden."""


def held_of(text: str, stops: Sequence[str]) -> int:
    """Return, by definition, the length of the text's longest end at the beginning of a longer stop."""
    return max(
        (length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])),
        default=0,
    )


def visible(characters: Sequence[tuple[str, bool]]) -> str:
    """Return the visible characters."""
    return "".join(character for character, hidden in characters if not hidden)


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.tuples(st.text("abc", max_size=4), st.booleans(), st.booleans()), max_size=12)


@given(PIECES, STOPS, st.booleans(), st.booleans())
@example([("ab", False, False), ("a", True, False), ("b", True, False)], ["abab", "ba"], False, True)
@example([("xab", False, False), ("c", True, False)], ["ab", "abc"], False, False)  # one that was passed over goes on
@example([("a", True, False), ("b", True, True), ("c", True, False)], ["ab", "bd"], True, False)
@example([("xa", True, False), ("b", True, True), ("c", True, False)], ["abd"], False, False)
@settings(max_examples=300)
def test_what_is_shown_held_and_found_is_what_the_definition_says(
    pieces: list[Piece], stops: list[str], keep: bool, finish_with_text: bool
) -> None:
    """Finish with the last piece or with nothing; a piece that finishes a text is never hidden."""
    if pieces and finish_with_text:
        pieces[-1] = (*pieces[-1][:2], False)
    end, stop = first_stop([(piece, may_stop) for piece, may_stop, _ in pieces], stops)
    whole = [(character, hidden) for piece, _, hidden in pieces for character in piece]
    matcher = StopMatcher(stops, keep)
    prefix = output = ""
    for place, (piece, may_stop, hidden) in enumerate(pieces):
        last = finish_with_text and place == len(pieces) - 1
        text, actual = matcher.finish(piece, may_stop) if last else matcher.push(piece, may_stop, hidden)
        prefix, output = prefix + piece, output + text
        if actual is not None:
            break
        assert output == visible(whole[: len(prefix) - (0 if last else held_of(prefix, stops))])
    else:
        if not (finish_with_text and pieces):
            text, actual = matcher.finish()
            output += text
    assert actual == stop
    assert output == visible(whole[: end - len(stop or "")]) + (stop if keep and stop else "")


BY_HAND: list[tuple[list[str], list[str], list[str], str | None]] = [
    (["one two"], [], ["one two", ""], None),
    (["one E", "N", "D"], ["END"], ["one ", "", ""], "END"),
    (["one E", "N", "d two"], ["END"], ["one ", "", "ENd two", ""], None),
    (["one EN"], ["END"], ["one ", "EN"], None),
    (["a\n", "\n", "\n", "b"], ["\n\n\n"], ["a", "", ""], "\n\n\n"),
    (["xabcd"], ["bc", "abcd"], ["xa"], "bc"),
    (["xabcd"], ["c", "abc", "bc"], ["x"], "abc"),
    (["xa", "be"], ["abcd", "be"], ["x", "a"], "be"),
    (["über", "🚀", "東", "京x"], ["東京"], ["über", "🚀", "", ""], "東京"),
]
"""Pieces and stops, the text for each piece and at the end, and the stop, without the definition."""


def test_a_text_ends_before_its_first_complete_stop() -> None:
    for pieces, stops, texts, stop in BY_HAND:
        matcher, outputs = StopMatcher(stops, keep=False), list[tuple[str, str | None]]()
        while not (outputs and outputs[-1][1]) and len(outputs) < len(pieces):
            outputs.append(matcher.push(pieces[len(outputs)]))
        outputs += [] if stop else [matcher.finish()]
        assert ([text for text, _ in outputs], outputs[-1][1]) == (texts, stop)


def test_after_its_end_a_text_takes_no_more() -> None:
    by_stop, by_finish = StopMatcher(["b"], keep=False), StopMatcher(["b"], keep=False)
    by_stop.push("ab")
    by_finish.finish("a")
    for matcher in (by_stop, by_finish):
        with pytest.raises(AssertionError, match="ended"):
            matcher.push("a")


def test_a_piece_costs_the_same_late_as_early() -> None:
    matcher = StopMatcher(["aaaaaaab", "\n\n"], keep=False)
    pieces = 10_000

    def push() -> None:
        for place in range(pieces):
            matcher.push("aaaa", hidden=place % 2 == 0)

    assert kept_bytes(stops_module, push) < pieces, "what a piece costs depends on it, and on what is kept of others"
