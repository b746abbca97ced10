"""A tutorial that nbconvert made into a page shows what its notebook shows, without a kernel or a script of ours."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from rekindle.views.drawing import Drawing
from tests.browser.conftest import SCREENSHOTS
from tests.browser.contrasts import assert_contrasts
from tests.browser.driver import BROKEN, complaints_of

TUTORIAL = Path(__file__).parents[2] / "tutorials" / "01_first_words.ipynb"
CDN = "https://cdnjs.cloudflare.com/"
"""The address of nbconvert's own scripts; the page needs none of them."""
SHADES = "tokens => tokens.map(token => getComputedStyle(token).backgroundColor)"


def exported(theme: str, folder: Path, notebook: Path = TUTORIAL) -> Path:
    """Make a notebook into a page as a user does; nbconvert comes with JupyterLab."""
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--theme", theme, "--output-dir", str(folder)]
    said = subprocess.run(
        [*command, str(notebook)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"JUPYTER_NO_CONFIG": "1"},
    )
    assert said.returncode == 0, said.stderr
    return folder / f"{notebook.stem}.html"


@contextmanager
def opened(context: BrowserContext, path: Path) -> Iterator[Page]:
    """Open the page without a network. Check that nothing complains or asks for more than nbconvert's scripts."""
    page = context.new_page()
    with closing(page):
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        # A request that fails would be a complaint.
        page.route(f"{CDN}**", lambda route: route.fulfill(content_type="text/javascript", body=""))
        complaints = complaints_of(page)
        page.goto(path.as_uri())
        yield page
        assert complaints == []
        assert [url for url in asked if not url.startswith((CDN, path.as_uri()))] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_outputs_of_an_exported_tutorial_can_be_seen_and_read(
    theme: str, context: BrowserContext, tmp_path: Path
) -> None:
    with opened(context, exported(theme, tmp_path)) as page:
        page.screenshot(path=SCREENSHOTS / f"exported_{theme}.png", full_page=True)
        expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "true" if theme == "light" else "false")
        outputs = page.locator(".jp-OutputArea-output")

        card = outputs.filter(has=page.locator("b", has_text="Generation")).filter(has_text="ended: length, 20 tokens")
        expect(card).to_have_count(1)
        expect(card).to_contain_text("the city of Nova Haven")
        assert_has_room(card)

        # How many tokens a draw has depends on the processor that ran the tutorial: logits differ in their last bits.
        tokens = outputs.locator("span[title*=rank]")
        shaded = outputs.filter(has=page.locator("span[title*=rank]"))
        ended = re.search(r"(?:done|ended: .*?), (\d+) tokens", shaded.inner_text())
        assert ended is not None
        expect(tokens).to_have_count(int(ended[1]))
        for token in tokens.all():
            assert_has_room(token, least=3)
        assert len(set(tokens.evaluate_all(SHADES))) > 3

        tree = outputs.filter(has_text="pages of 64 tokens").locator("svg[role=img]")
        expect(tree).to_have_count(1)
        expect(tree.locator("title").filter(has_text="hits")).not_to_have_count(0)
        assert_has_room(tree)

        assert_contrasts(page.locator("main"))
        expect(page.get_by_text(BROKEN)).to_have_count(0)
        expect(outputs.locator("script")).to_have_count(0)


def test_a_wide_picture_is_printed_as_wide_as_the_page(context: BrowserContext, tmp_path: Path) -> None:
    drawing = Drawing("Pool", "pages", 60, '<rect width="860" height="60" fill="orange"/>', "all pages")
    page_of_it = tmp_path / "picture.html"
    page_of_it.write_text(drawing._repr_mimebundle_()["text/html"], encoding="utf-8")
    with opened(context, page_of_it) as page:
        page.set_viewport_size({"width": 600, "height": 400})
        picture = page.get_by_role("group", name="Pool")
        scrolled = "group => group.scrollWidth - group.clientWidth"
        assert picture.evaluate(scrolled) > 0
        page.emulate_media(media="print")
        assert picture.evaluate(scrolled) == 0, "paper has no scroll bar"


def assert_has_room(shown: Locator, least: int = 40) -> None:
    """Check that something can be seen, and is at least so many pixels wide and high."""
    expect(shown).to_be_visible()
    box = shown.bounding_box()
    assert box is not None
    assert min(box["width"], box["height"]) >= least
