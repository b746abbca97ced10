"""The pictures of activations and of the logit lens have the same direction, even layers and legible numbers."""

import re
from itertools import pairwise

import numpy as np
import pytest

from rekindle import Activations, LogitLens
from rekindle.results.inspection.grids import figure, log_shades
from rekindle.results.inspection.lens import SHOWN_LAYERS, SHOWN_TOKENS
from tests.unit.cards import ALLOWED, DRAWN, Page, read

TOKENS = ("The", " capital", " of")


def lens_of(layers: int, tokens: int = 3) -> LogitLens:
    shape = (layers, tokens, 2)
    texts = tuple(tuple((f"{layer}", "b") for _ in range(tokens)) for layer in range(layers))
    names = tuple(f"t{token}" for token in range(tokens))
    return LogitLens(names, tuple(range(layers)), np.ones(shape, np.int32), texts, np.full(shape, -1, np.float32))


def shown_layers(lens: LogitLens) -> list[int]:
    html = lens._repr_mimebundle_()["text/html"]
    return [int(number) for number in re.findall(r'<th scope="row"[^>]*>(\d+)</th>', html)]


@pytest.mark.parametrize("layers", [1, 2, SHOWN_LAYERS, SHOWN_LAYERS + 1, 30, 2 * SHOWN_LAYERS, 80])
def test_a_lens_shows_the_last_layer_on_top_and_others_at_one_distance(layers: int) -> None:
    lens = lens_of(layers)
    layers_shown = shown_layers(lens)
    assert layers_shown[0] == layers - 1
    assert len({before - after for before, after in pairwise(layers_shown)}) <= 1
    assert min(layers, SHOWN_LAYERS // 2) <= len(layers_shown) <= SHOWN_LAYERS
    text = Page(lens._repr_mimebundle_()["text/html"]).text
    omitted = [layer for layer in range(layers) if layer not in layers_shown]
    assert (f"is shown: without {', '.join(map(str, omitted))}" in text) == bool(omitted)


def test_a_lens_counts_the_tokens_that_it_leaves_out() -> None:
    assert "without the first" not in Page(lens_of(2, SHOWN_TOKENS)._repr_mimebundle_()["text/html"]).text
    assert "without the first 2 tokens" in Page(lens_of(2, SHOWN_TOKENS + 2)._repr_mimebundle_()["text/html"]).text


def activations(residual: list[list[float]]) -> Activations:
    states = np.asarray(residual, np.float32)[:, :, None]
    pattern = np.tril(np.full((1, 3, 3), 0.5, np.float32))
    layers = tuple(range(len(residual)))
    return Activations((1, 2, 3), TOKENS, layers, states[0], states, None, None, ((1, 0),), pattern)


def test_activations_have_the_last_layer_on_top_too_and_their_numbers_at_hand() -> None:
    html = activations([[1, 2, 3], [10, 20, 22700]])._repr_mimebundle_()["text/html"]
    page = read(html, ALLOWED | DRAWN)
    titles = [title for title in page.text.splitlines() if "·" in title]
    assert "from 1 to 22,700, with logarithmic shades" in page.text
    assert "e+04" not in html
    lines = [line for line in page.lines.splitlines() if re.match(r"\d: ", line)]
    assert lines == ["1: The 10, ␣capital 20, ␣of 22,700", "0: The 1, ␣capital 2, ␣of 3"]
    assert "1 · ␣of: 22,700" in page.text, titles


def test_shades_are_logarithmic_and_no_number_vanishes() -> None:
    shades = log_shades(np.asarray([[0, 1, 10, 100]], np.float32))
    assert shades[0].tolist() == pytest.approx([0, 0.1, 0.55, 1])
    assert log_shades(np.asarray([[5, 5]], np.float32))[0].tolist() == pytest.approx([1, 1])
    assert log_shades(np.zeros((1, 2), np.float32)).tolist() == [[0, 0]]
    assert np.isfinite(log_shades(np.asarray([[1e-30, 1e30]], np.float32))).all()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01234, "0.0123"),
        (1.234, "1.23"),
        (99.96, "100"),
        (123.4, "123"),
        (22749, "22,700"),
        (1e6, "1,000,000"),
        (0, "0"),
    ],
)
def test_figures_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert figure(value) == text
    assert not value or figure(-value) == f"-{text}"
