"""Read the cards of cells, and compare each with its file in goldens/cards.

`REKINDLE_WRITE_CARDS=1 python -m pytest -n 0 tests/unit/notebook/test_cards.py` rewrites the files; review the
difference.
"""

import os
import re
from collections.abc import Mapping
from difflib import unified_diff
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from rekindle.views.drawing import Drawing

CARDS = Path(__file__).parents[1] / "goldens" / "cards"
HOSTILE = (
    "</pre></span></svg><script>alert('x')</script><img src=x onerror=\"go()\">&amp;\x00\x1b[31m\ud800\u202e\uffff"
)
SPELLED = HOSTILE.replace("\x00", r"\x00").replace("\x1b", r"\x1b")
SPELLED = SPELLED.replace("\ud800", r"\ud800").replace("\u202e", r"\u202e").replace("\uffff", r"\uffff")
ALLOWED = {"div", "span", "b", "pre", "table", "tr", "td", "th", "ul", "li", "details", "summary"}
DRAWN = {"svg", "g", "title", "rect", "text", "path"}
_LINES = {"div", "pre", "table", "tr", "ul", "li", "details", "summary"}
_MEASURED = re.compile(r"\b\d[\d.,]* m?s\b")
"""A measured time, different in each run."""


class Page(HTMLParser):
    """The tags, attributes and text of a piece of HTML whose tags are all closed in order.

    Attributes:
        lines: the same as a reader sees it, with the titles of elements in braces.
        joints: the words of two elements with nothing between them, which stick together when they are copied.
    """

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = self.lines = ""
        self.joints: list[str] = []
        self._was_closed = False
        self.feed(html)
        self.close()
        assert not self.open, f"{self.open} are left open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        values = {name: value or "" for name, value in attrs}
        self.attributes += values.items()
        self.lines += "\n" if tag in _LINES else " | " if tag in {"td", "th"} else ""
        self.lines += "  " if "inline-block" in values.get("style", "") else ""
        self.lines += f"{{{values['title']}}}" if "title" in values else ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._was_closed = True
        self.lines += "\n" if tag in _LINES else ""

    def handle_data(self, data: str) -> None:
        if self._was_closed and self.lines[-1:].isalnum() and data[:1].isalnum():
            self.joints.append(f"{self.text.split()[-1]}|{data.split()[0]}")
        self._was_closed = False
        self.text += data
        self.lines += data

    @property
    def titles(self) -> list[str]:
        return [value for name, value in self.attributes if name == "title"]


def read(html: str, tags: set[str] = ALLOWED) -> Page:
    """Parse the HTML of a cell, and check the rules for all HTML."""
    html.encode()  # a lone surrogate would fail here, and in the file of a notebook
    page = Page(html)
    assert page.tags <= tags
    names = {name for name, _ in page.attributes}
    assert not any(name.startswith("on") or name in {"id", "class", "href", "src"} for name in names)
    assert not any("url(" in value for name, value in page.attributes if name == "style")
    assert not re.search(r"(?<!-)color:(?!inherit)", html), "text keeps the page's colour"
    return page


def page_of(thing: object) -> Page:
    bundle = thing._repr_mimebundle_()  # type: ignore[attr-defined]
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"]
    return read(bundle["text/html"])


def picture(svg: str) -> ElementTree.Element:
    """Parse a picture, and check the rules for all HTML."""
    read(svg, DRAWN)
    return ElementTree.fromstring(svg)


def as_read(page: Page) -> str:
    """Return the nonempty lines of a page; require spaces between its words."""
    assert not page.joints, "words stick together where they are copied"
    return "\n".join(line.strip() for line in page.lines.splitlines() if line.strip())


def readable(thing: object, *, measured: bool = False) -> str:
    """Return a thing as its repr, as text, and as its HTML or its picture is read.

    Args:
        thing: the value of a cell; text is taken as it is.
        measured: whether its times are measured; the text leaves measured times out.
    """
    if isinstance(thing, str):
        text = thing
    else:
        plain = thing._repr_mimebundle_()["text/plain"]  # type: ignore[attr-defined]
        text = plain if plain == repr(thing) else f"{thing!r}\n\n---- text\n\n{plain}"
        if isinstance(thing, Drawing):
            text += "\n\n---- picture\n\n" + "\n".join(filter(None, picture(thing.svg).itertext()))
        else:
            text += f"\n\n---- HTML\n\n{as_read(page_of(thing))}"
    text = _MEASURED.sub("…", text) if measured else text
    return "\n".join(line.rstrip() for line in text.splitlines())


def assert_card(name: str, states: Mapping[str, str]) -> None:
    """Compare the text of a card, by names for its states, with the file of its name; fail with the difference."""
    text = "".join(f"==== {state}\n\n{shows}\n\n" for state, shows in states.items())
    path = CARDS / f"{name}.txt"
    if os.environ.get("REKINDLE_WRITE_CARDS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    before, now = (text.splitlines() for text in (path.read_text(encoding="utf-8"), text))
    difference = unified_diff(before, now, str(path), "what is shown now", lineterm="")
    assert before == now, "\n".join(["the card has changed (REKINDLE_WRITE_CARDS=1 rewrites it):", *difference])
