"""Markdown that a model wrote is drawn, and what is hostile in it does nothing: no script runs, no request leaves."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from playwright.sync_api import BrowserContext, Locator, Page, expect

from rekindle.results.markdown import Markdown
from tests.browser.conftest import SCREENSHOTS, Opens
from tests.browser.test_exported import CDN
from tests.browser.test_pictures import assert_readable

HOSTILE = r"""
# A title

<script>window.hacked = 1; alert(1)</script>
<img src="http://evil.example/1.png" onerror="window.hacked = 1"> <svg onload="window.hacked = 1"></svg>

<iframe src="http://evil.example/frame"></iframe>

![a picture](http://evil.example/2.png) and [![linked](http://evil.example/3.png)](http://evil.example/)

[script](javascript:window.hacked=1), [entity](java&#115;cript:window.hacked=1), [data](data:text/html,x), [reference]
and [attribute](http://evil.example/"onmouseover="window.hacked=1)

[reference]: javascript:window.hacked=1

Formulas: $\href{javascript:window.hacked=1}{x}$, $$\require{html}\style{background:url(http://evil.example/4)}{x}$$

\begin{align} \href{javascript:window.hacked=1}{x} \end{align}

| **bold** | `code` |
|---|--:|
| <b onclick="window.hacked=1"> | $x$ |

```html
<script>window.hacked = 1</script>
```
"""
SHOW = f"""
from IPython.display import HTML
from rekindle.results.markdown import Markdown
display(HTML("<p id='formula'>$x$</p>"), Markdown({HOSTILE!r}))
"""


@contextmanager
def watched(page: Page, *homes: str) -> Iterator[None]:
    """Check that a page asks for nothing outside of these places, and opens no dialog, while the block runs."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: asked.append(f"a dialog: {dialog.message}"))
    yield
    assert [url for url in asked if not url.startswith((*homes, "data:", "blob:"))] == []


def assert_drawn_and_inert(page: Page, shown: Locator) -> None:
    expect(shown.get_by_role("heading", level=1)).to_have_text("A title")
    expect(shown.locator("td code, th code")).to_have_text("code")
    expect(shown.locator("pre")).to_have_text("<script>window.hacked = 1</script>\n")
    expect(shown.locator("i", has_text="[image: a picture]")).to_be_visible()
    expect(shown.locator("script, img, svg, iframe, b, mjx-container, .MathJax")).to_have_count(0)
    expect(shown.locator("a")).to_have_text(["[image: linked]", "attribute"])
    shown.get_by_text("script, entity, data").click()
    assert page.evaluate("window.hacked") is None


def test_hostile_markdown_in_a_notebook_does_nothing(opens: Opens) -> None:
    with opens(SHOW) as notebook, watched(notebook.page, "/".join(notebook.page.url.split("/")[:3])):
        output = notebook.run(1)
        expect(output.locator("#formula mjx-container")).to_have_count(1)  # formulas in HTML are typeset here
        shown = output.locator(".jp-RenderedHTMLCommon").filter(
            has=notebook.page.get_by_role("heading", name="A title")
        )
        assert_drawn_and_inert(notebook.page, shown)
        assert_readable(notebook, 1)


def test_hostile_markdown_in_an_exported_notebook_does_nothing(context: BrowserContext, tmp_path: Path) -> None:
    shown = {"output_type": "display_data", "metadata": {}, "data": Markdown(HOSTILE)._repr_mimebundle_()}
    cell = {"cell_type": "code", "id": "0", "metadata": {}, "source": "", "outputs": [shown], "execution_count": 1}
    notebook, page = tmp_path / "hostile.ipynb", context.new_page()
    notebook.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}))
    subprocess.run([sys.executable, "-m", "nbconvert", "--log-level=ERROR", "--to", "html", str(notebook)], check=True)
    address = notebook.with_suffix(".html").as_uri()
    with closing(page), watched(page, address, CDN):
        page.route(f"{CDN}**", lambda route: route.fulfill(content_type="text/javascript", body=""))
        page.goto(address)
        assert_drawn_and_inert(
            page, page.locator(".jp-RenderedHTMLCommon").filter(has=page.get_by_role("heading", name="A title"))
        )
        page.screenshot(path=SCREENSHOTS / "exported_markdown.png", full_page=True)
