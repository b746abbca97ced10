"""An explanation shows each token with its layers, page and tick, without scripts, ids or a kernel."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from rekindle import CachedTokens, Explanation, Generation, Timings, Usage
from rekindle.views.explanation import MOST_LAYERS, MOST_TOKENS, ExplainedToken, shown_layers, ticks_of
from tests.unit.cards import ALLOWED, HOSTILE, SPELLED, Page

PROMPT = 6


def token(position: int, text: str, **facts: Any) -> ExplainedToken:
    layers = ((5, text, 0.75), (3, text, 0.5), (1, "other", 0.25))
    likeliest = ((text, 0.75), ("other", 0.25))
    tick = None if position < 4 else position
    base = ExplainedToken(position, text, position >= PROMPT, position < 4, tick, 0.01 * position, layers, likeliest)
    return replace(base, **facts)


def explanation(*texts: str) -> Explanation:
    usage, timings = Usage(PROMPT, len(texts) - PROMPT), Timings(0.01, 0.1, 0.2)
    generation = Generation(
        "", (1,) * (len(texts) - PROMPT), "stop", None, None, None, (1,) * PROMPT, None, usage, timings, CachedTokens(4)
    )
    tokens = tuple(token(position, text) for position, text in enumerate(texts))
    return Explanation(generation, (replace(tokens[0], layers=(), likeliest=()), *tokens[1:]), 4, len(texts))


TEXTS = ("The", " capital", " of", " France", " is", "\n", " Paris", ".")


def test_each_token_is_a_choice_with_its_layers_page_and_tick() -> None:
    bundle = explanation(*TEXTS)._repr_mimebundle_()
    html = bundle["text/html"]
    assert html.count('<input type="radio"') == len(TEXTS)
    assert html.count(" checked>") == 1
    page = Page(_closed(html))
    assert page.tags <= ALLOWED | {"style", "input", "label"}
    for words in ("predicted from layer 3 on", "page 2 of 2, place 3 of 4", "tick 6 drew it", "tick 5 computed it"):
        assert words in page.text
    assert "found in the prefix cache; whole, so it is cached for later prompts" in page.text
    assert "computed for this answer; not whole, so it is not cached" in page.text
    assert "the first token of a prompt is not predicted" in page.text
    assert {name for name, _ in page.attributes} & {"id", "onclick", "onchange", "href", "src"} == set()


def _closed(html: str) -> str:
    """Return HTML whose buttons are closed as in XML, as `Page` reads it."""
    return re.sub(r"(<input[^>]*?)( checked)?>", r"\1/>", html)


def test_its_text_is_a_table_of_the_same_facts() -> None:
    head, columns, *rows = repr(explanation(*TEXTS)).splitlines()
    assert head == "<rekindle.Explanation of prompt of 6 tokens, answer of 2>"
    assert columns.split("  ")[-1].strip() == "tick"
    assert rows[6].split() == ["6", "new", "'", "Paris'", "75.0%", "3", "2", "6"]
    assert rows[1].split()[-1] == "cached"


def test_hostile_tokens_stay_text_and_two_cards_have_buttons_of_their_own() -> None:
    html = explanation(*TEXTS[:-1], HOSTILE)._repr_mimebundle_()["text/html"]
    html.encode()
    assert "<script" not in html
    assert "<img" not in html
    assert SPELLED.replace("\n", "↵") in Page(_closed(html)).text
    names = [
        set(re.findall(r'name="([^"]+)"', each))
        for each in (html, explanation(*TEXTS)._repr_mimebundle_()["text/html"])
    ]
    assert len(names[0]) == len(names[1]) == 1
    assert names[0] != names[1]


def test_a_token_that_the_last_layer_does_not_predict_is_not_settled() -> None:
    odd = token(6, "odd", layers=((5, "even", 0.9), (3, "odd", 0.9)), likeliest=(("even", 0.9),))
    assert (odd.settled_at, odd.probability) == (None, None)
    assert (token(6, "a").settled_at, token(6, "a").probability) == (3, 0.75)


def test_the_card_is_bounded() -> None:
    texts = tuple(f"tok{number}" for number in range(MOST_TOKENS))
    wide = tuple((layer, "x" * 40, 0.5) for layer in range(MOST_LAYERS))
    whole = explanation(*texts)
    big = Explanation(whole.generation, tuple(replace(each, layers=wide) for each in whole.tokens), 4, 5000)
    assert len(big._repr_mimebundle_()["text/html"]) < 400_000
    assert "without the first 4,904" in repr(big)


@pytest.mark.parametrize("count", [1, MOST_LAYERS, MOST_LAYERS + 1, 30, 80])
def test_layers_have_one_distance_and_the_last_one_is_among_them(count: int) -> None:
    layers = list(shown_layers(count))
    assert layers[-1] == count - 1
    assert len({after - before for before, after in pairwise(layers)}) <= 1
    assert layers == sorted(layers)
    assert len(layers) <= MOST_LAYERS


def test_a_token_of_the_prompt_has_the_tick_that_computed_it_and_a_new_one_the_tick_that_drew_it() -> None:
    cells = [(3, 2, 2, 0), (4, 4, 2, 1), (5, None, 1, 1), (6, None, 3, 2), (7, None, 1, 0)]
    assert ticks_of(cells, 6) == {2: 3, 3: 3, 4: 4, 5: 4, 6: 4, 7: 5, 8: 6, 9: 6}
