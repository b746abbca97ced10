"""Results are drawn in the page, and can be read on JupyterLab's light theme and on its dark one."""

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.conftest import SCREENSHOTS, Opens
from tests.browser.contrasts import assert_contrasts
from tests.browser.driver import Notebook

LETTER_HEIGHT = "svg => 12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width"
"""A script that returns how many pixels of the page the letters of a picture are high, which are 12 of its own."""


def test_likelihoods_of_tokens_shade_them(opens: Opens) -> None:
    with opens("await session.generate(token_ids=PROMPT, max_tokens=12, ignore_eos=True, logprobs=2)") as notebook:
        output = notebook.run(1)
        tokens = output.locator("span[title*=rank]")
        expect(tokens).to_have_count(12)
        expect(tokens.first).to_be_visible()
        assert re.search(
            r"rank \d+, token \d+, place 0\n.*1\. .*%\n.*2\. .*%", tokens.first.get_attribute("title") or ""
        )
        assert_readable(notebook, 1)


def test_the_cache_is_a_tree(opens: Opens) -> None:
    asks = [f"await session.generate(token_ids=PROMPT + [{last}], max_tokens=200, ignore_eos=True)" for last in (7, 8)]
    with opens("\n".join([*asks, "session.cache.draw()"])) as notebook:
        output = notebook.run(1)
        picture = output.locator(".jp-OutputArea-output svg[role=img]")
        expect(picture).to_be_visible()
        expect(picture.locator("text").filter(has_text="pages")).not_to_have_count(0)
        expect(picture.locator("title").filter(has_text="hits")).not_to_have_count(0)
        assert_readable(notebook, 1)


def test_a_trace_is_a_timeline(opens: Opens) -> None:
    with opens("with session.trace() as t: await session.generate(**EXPECTED)\nt.timeline()") as notebook:
        picture = notebook.run(1).locator(".jp-OutputArea-output svg[role=img]")
        expect(picture).to_be_visible()
        expect(picture.locator("text").filter(has_text="20 + 24")).to_have_count(1)
        expect(picture.locator("title").filter(has_text="tick")).not_to_have_count(0)
        assert_readable(notebook, 1)


def test_pictures_on_a_narrow_page_are_legible_and_scroll(opens: Opens) -> None:
    with opens("with session.trace() as t: await session.generate(**EXPECTED)\nt.timeline()") as notebook:
        picture = notebook.run(1).locator(".jp-OutputArea-output svg[role=img]")
        notebook.page.set_viewport_size({"width": 500, "height": 900})
        notebook.page.screenshot(path=SCREENSHOTS / "narrow.png")
        assert picture.evaluate(LETTER_HEIGHT) >= 10
        assert picture.evaluate("svg => svg.parentElement.scrollWidth > svg.parentElement.clientWidth")
        assert picture.evaluate("svg => svg.parentElement.getBoundingClientRect().right <= innerWidth")


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


def test_a_batch_is_a_table_whose_answers_unfold(opens: Opens) -> None:
    ask = "token_ids=[PROMPT, PROMPT[:3]], n=2, seed=1, max_tokens=12, ignore_eos=True, logprobs=1"
    with opens(f"await session.generate({ask})") as notebook:
        output = notebook.run(1)
        expect(output.get_by_role("row")).to_have_count(1 + 4)
        row = output.get_by_role("row").filter(has_text="[1][0]")
        tokens = row.locator("span[title*=rank]")
        expect(tokens.first).not_to_be_visible()
        row.locator("summary").last.click()
        expect(tokens).to_have_count(12)
        expect(tokens.first).to_be_visible()
        assert_readable(notebook, 1)


def test_words_are_not_broken(opens: Opens) -> None:
    with opens("await session.generate(**EXPECTED)") as notebook:
        expect(notebook.run(1).locator("pre[dir=auto]")).to_have_css("word-break", "normal")


def assert_readable(notebook: Notebook, place: int) -> None:
    """Check that each text of the cell's output has enough contrast to its background, on both themes."""
    for dark in (False, True):
        notebook.use_theme(dark=dark)
        notebook.picture(SCREENSHOTS / f"{Path(notebook.name).stem}_{'dark' if dark else 'light'}.png")
        assert_contrasts(notebook.output(place))
