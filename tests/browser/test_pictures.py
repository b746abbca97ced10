"""Results are drawn in the page, and can be read on JupyterLab's light theme and on its dark one."""

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.conftest import SCREENSHOTS, Opens
from tests.browser.driver import Notebook

READABLE = 4.5
"""The least contrast of text to what is behind it, as the web's guidelines for accessibility have it."""

CONTRASTS = """element => {
    const rgba = color => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number).concat(1).slice(0, 4)
    const over = ([r, g, b, a], under) => [r, g, b].map((part, at) => a * part + (1 - a) * under[at])
    const white = [255, 255, 255]
    const behind = at => at ? over(rgba(getComputedStyle(at).backgroundColor), behind(at.parentElement)) : white
    const opacity = at => at ? getComputedStyle(at).opacity * opacity(at.parentElement) : 1
    const light = color => {
        const [r, g, b] = color.map(part => part / 255).map(
            part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b
    }
    const contrasts = []
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT)
    while (texts.nextNode()) {
        const at = texts.currentNode.parentElement
        if (!texts.currentNode.data.trim() || !at.checkVisibility() || at.closest("title, style")) continue
        if (!at.closest(".jp-OutputArea-output")) continue
        const style = getComputedStyle(at), under = behind(at)
        const [r, g, b, a] = rgba(at.closest("svg") ? style.fill : style.color)
        const [darker, lighter] = [over([r, g, b, a * opacity(at)], under), under].map(light).sort((x, y) => x - y)
        contrasts.push([(lighter + 0.05) / (darker + 0.05), texts.currentNode.data])
    }
    return contrasts
}"""
"""Of each text that is to be seen in a cell's outputs: its contrast, and what it says."""


def test_likelihoods_of_tokens_shade_them(opens: Opens) -> None:
    with opens("await session.generate(token_ids=PROMPT, max_tokens=12, ignore_eos=True, logprobs=2)") as notebook:
        output = notebook.run(1)
        tokens = output.locator("span[title*=rank]")
        expect(tokens).to_have_count(12)
        expect(tokens.first).to_be_visible()
        assert re.search(r"rank \d+, token \d+\n.*1\. .*%\n.*2\. .*%", tokens.first.get_attribute("title") or "")
        assert_readable(notebook, 1)


def test_the_cache_is_a_tree(opens: Opens) -> None:
    asks = [f"await session.generate(token_ids=PROMPT + [{last}], max_tokens=200, ignore_eos=True)" for last in (7, 8)]
    with opens("\n".join([*asks, "session.cache.draw()"])) as notebook:
        output = notebook.run(1)
        picture = output.locator(".jp-OutputArea-output svg")
        expect(picture).to_be_visible()
        expect(picture.locator("text").filter(has_text="pages")).not_to_have_count(0)
        expect(picture.locator("title").filter(has_text="hits")).not_to_have_count(0)
        assert_readable(notebook, 1)


def test_a_trace_is_a_timeline(opens: Opens) -> None:
    with opens("with session.trace() as t: await session.generate(**EXPECTED)\nt.timeline()") as notebook:
        picture = notebook.run(1).locator(".jp-OutputArea-output svg")
        expect(picture).to_be_visible()
        expect(picture.locator("text").filter(has_text="20 + 24")).to_have_count(1)
        expect(picture.locator("title").filter(has_text="tick")).not_to_have_count(0)
        assert_readable(notebook, 1)


def test_objects_show_themselves(opens: Opens) -> None:
    shown = [
        "session",
        "session.stats",
        "session.cache",
        "session.restored",
        "session.submit(token_ids=PROMPT, **LONG)",
    ]
    with opens(f"display({', '.join(shown)})") as notebook:
        output = notebook.run(1)
        cards = output.locator(".jp-RenderedHTMLCommon[data-mime-type='text/html']")
        expect(cards).to_have_count(len(shown))
        assert_readable(notebook, 1)


def test_words_are_not_broken(opens: Opens) -> None:
    with opens("await session.generate(**EXPECTED)") as notebook:
        expect(notebook.run(1).locator("pre[dir=auto]")).to_have_css("word-break", "normal")


def assert_readable(notebook: Notebook, place: int) -> None:
    """On neither theme, a text of the cell's output is too near in colour to what is behind it."""
    for dark in (False, True):
        notebook.use_theme(dark=dark)
        notebook.picture(SCREENSHOTS / f"{Path(notebook.name).stem}_{'dark' if dark else 'light'}.png")
        contrasts = notebook.output(place).evaluate(CONTRASTS)
        assert contrasts
        assert [(contrast, text) for contrast, text in contrasts if contrast < READABLE] == []
