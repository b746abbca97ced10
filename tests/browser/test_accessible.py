"""Every card can be read by a screen reader, on a light and a dark page, and fits a narrow one."""

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page

from rekindle import (
    Activations,
    Bench,
    CachedTokens,
    Generation,
    LocalModel,
    LocalModels,
    LogitLens,
    SamplingParams,
    Settings,
    Timings,
    Usage,
    markup,
)
from rekindle.chats.widget import history_bundle
from rekindle.core.concurrency.progress import Progress
from rekindle.core.request.tokens import TokenLogprob
from rekindle.formats.images.sources import image_source
from rekindle.formats.images.writing import thumbnails
from rekindle.notebook.board.board import Board
from rekindle.notebook.board.board_html import board_bundle
from rekindle.notebook.board.rates import Rate
from rekindle.notebook.progress.bars import bar_bundle
from rekindle.results.answers import Answers
from rekindle.results.comparison import Comparison
from rekindle.results.facts.restored import RestoreReport
from rekindle.results.inspection.attention import ImageAttention, LookedImage, over_images
from rekindle.testing import fake_session
from tests.browser.conftest import SCREENSHOTS
from tests.browser.contrasts import assert_contrasts
from tests.browser.test_exported import exported, opened
from tests.unit.board_facts import FACTS
from tests.unit.notebook.test_explanation import TEXTS, explanation

OUTPUTS = ".jp-OutputArea-output"
NARROW, WIDE = 500, 1000
"""Widths of the page in pixels."""
CUT = """outputs => outputs.flatMap(output => [output, ...output.querySelectorAll("div, pre, table, td")])
    .filter(element => element.scrollWidth > element.clientWidth + 1 && element.clientWidth)
    .filter(element => !element.closest("[role=group][tabindex]"))
    .map(element => element.innerText)"""
"""A script that returns the texts of the elements of outputs wider than their place, without regions that scroll."""
FORMATTED = """## Two ways

- with **care**
- with `haste`, see [there](https://e.example)

```python
@cache
def way(number: int = 2) -> str:
    return f"way {number}"  # the second
```

| way | length |
|---|--:|
| first | 22,700 |
"""
STORY = "The keeper of the lighthouse wrote every day in a blue book, and never of the sea. "


def generation(text: str, **facts: Any) -> Generation:
    usage, timings = Usage(37, 8, 0), Timings(0.012, 0.345, 1.234)
    cached = CachedTokens(device=16, disk=16)
    made = Generation(text, (5,) * 8, "stop", 2, None, None, (1,) * 37, None, usage, timings, cached, end_token="</s>")
    return replace(made, **facts)


def inside() -> tuple[Activations, LogitLens, ImageAttention]:
    """Return what `look`, `logit_lens` and `over_images` return for a short prompt."""
    tokens, layers = ("The", " capital", " of", " France", " is"), (0, 1, 2)
    count, chance = len(tokens), np.random.default_rng(0)
    states = chance.normal(size=(3, count, 8)).astype(np.float32)
    pattern = np.tril(np.ones((1, count, count), np.float32)) / np.arange(1, count + 1, dtype=np.float32)[:, None]
    seen = Activations((1,) * count, tokens, layers, states[0], states, None, states, ((1, 0),), pattern)
    texts = tuple(tuple((" Paris", " the") for _ in tokens) for _ in layers)
    logprobs = np.log(np.linspace(0.99, 0.01, 3 * count * 2, dtype=np.float32)).reshape(3, count, 2)
    lens = LogitLens(tokens, layers, np.ones((3, count, 2), np.int32), texts, logprobs)
    pixels = chance.integers(0, 255, (40, 60, 3), dtype=np.uint8)
    ((url, words),) = thumbnails([image_source(pixels)])
    image = LookedImage(np.arange(4, dtype=np.int32), (np.arange(4, dtype=np.int32).reshape(2, 2),), url, words)
    return seen, lens, over_images(pattern, ((1, 0),), tokens, count - 1, (image,))


def local_models() -> LocalModels:
    """Return models of two places: one that fits, one too large, and one that does not open."""
    models = [
        LocalModel("ollama:qwen3:4b", Path("/x"), "Ollama", 2_497_280_480, "GGUF Q4_K_M", "qwen3", 4_900_000_000, True),
        LocalModel("ollama:big:70b", Path("/x"), "Ollama", 42 * 10**9, "GGUF Q4_K_M", "llama", 48 * 10**9, False),
        LocalModel("./bert", Path("/x"), "/home/me", 10**8, "safetensors", "bert", None, None, "it is not supported"),
    ]
    return LocalModels(models, "this CPU: 16.8 GB of memory", 8192, ["/root was skipped: Permission denied"])


def cards() -> list[markup.Bundle]:
    """Return the displays of objects of each kind: two of some, since names of landmarks must differ in a page."""
    other = TokenLogprob(8, " maybe", -0.7, 1, (), b" maybe")
    tokens = tuple(TokenLogprob(7, word, -0.9, 2, (other,), word.encode()) for word in (" It", " is", " so"))
    plain, shaded = generation(STORY * 3, prompt="Tell me a story."), generation(" It is so", logprobs=tokens)
    answers: list[Any] = [
        plain,
        generation(STORY, finish_reason="length", prompt=STORY * 3),
        ValueError("it is too long"),
    ]
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "**Hello**\n\n- there"}]
    bench = Bench("a-model", "cpu:0, float32", 128, 0.25, {1: 50.0, 8: 200.0}, 10**8, 10**10, 3, 2.0, 1)
    restored = RestoreReport(8, 8, 1, 12, 768, 2.3, 33.8, {"salt": ("a", "b")}, cold_seconds=23.4, to_compile=2)
    compared = Comparison([plain, answers[1]], [{}, {"temperature": 0.8}], ["defaults", "temperature 0.8"])
    with fake_session() as session, fake_session() as unused:
        with session.trace() as trace:
            session.generate_sync(token_ids=[*range(1, 200)], max_tokens=3)
        objects: tuple[Any, ...] = (
            session,
            session.stats,
            session.memory,
            session.cache.draw(),
            session.cache.draw(),
            unused.cache.draw(),
            trace.timeline(),
            trace.timeline(),
            session.trace().timeline(),
            session.chat(),
            Settings(),
            SamplingParams(),
            bench,
            restored,
            compared,
            *inside(),
            explanation(*TEXTS),
            local_models(),
        )
        pieces = tuple(
            TokenLogprob(7, word, -0.9, 2, (other,), word.encode()) for word in re.split(r"(?= )", FORMATTED)
        )
        formatted = generation(FORMATTED), generation(FORMATTED, logprobs=pieces)
        tables = (plain, shaded, *formatted, Answers(answers, ["a", "b" * 200, "c"]))
        bundles: list[markup.Bundle] = [each._repr_mimebundle_() for each in (*tables, *objects)]
    board = board_bundle(Board(FACTS, Rate(12.3, 10.0, 5.0, (1.0, 2.0, 12.0))))
    bar = bar_bundle(Progress("compiling programs", 3, 14, "programs"), 19)
    wide = markup.bundle("wide", markup.table([[f"in column {place}" for place in range(20)]]))
    return [*bundles, board, bar, wide, history_bundle(chat, {1: generation("**Hello**\n\n- there")})]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a notebook whose cells have shown these cards."""
    blank: dict[str, Any] = {"cell_type": "code", "metadata": {}, "execution_count": 1, "source": "shown"}
    outputs = [{"output_type": "display_data", "data": card, "metadata": {}} for card in cards()]
    cells = [{**blank, "id": f"cell-{place}", "outputs": [output]} for place, output in enumerate(outputs)]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = tmp_path_factory.mktemp("cards") / "cards.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))
    return path


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_cards_pass_axe_and_fit_a_narrow_page(
    theme: str, notebook: Path, context: BrowserContext, tmp_path: Path
) -> None:
    with opened(context, exported(theme, tmp_path, notebook)) as page:
        for width in (WIDE, NARROW):
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=SCREENSHOTS / f"cards_{theme}_{width}.png", full_page=True)
            assert page.locator(OUTPUTS).evaluate_all(CUT) == []
            assert violations(page) == []
        assert_contrasts(page.locator("main"))


def test_a_card_in_a_dark_vs_code_can_be_read_although_its_widgets_bring_variables_of_a_light_jupyterlab(
    context: BrowserContext,
) -> None:
    style = (
        ":root { --jp-layout-color1: white; --jp-border-color2: #e0e0e0; --vscode-editorWidget-background: #202020 }"
    )
    with closing(context.new_page()) as page:
        page.set_content(
            f"<style>{style} body {{ background: #1f1f1f; color: #ccc }}</style><p class=jp-OutputArea-output></p>"
        )
        page.locator("p").evaluate("(at, html) => at.innerHTML = html", markup.card("Dashboard", "running"))
        assert_contrasts(page.locator("p"))


def violations(page: Page, outputs: str = OUTPUTS, foreign: tuple[str, ...] = ()) -> list[str]:
    """Return what axe-core finds in the outputs, with everything unfolded.

    Args:
        outputs: the selector of the outputs.
        foreign: selectors of what the front end draws itself, which is left out.
    """
    page.locator("details").evaluate_all("all => all.forEach(each => each.open = true)")
    context = {"include": [[outputs]], "exclude": [[each] for each in foreign]}
    found = Axe().run(page, context=context).response["violations"]
    return [f"{rule['id']}: {rule['help']}: {[node['html'] for node in rule['nodes'][:3]]}" for rule in found]
