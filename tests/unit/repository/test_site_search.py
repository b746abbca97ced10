"""The site's search finds guides before tutorials, and of tutorials the prose, without code and outputs."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT

TUTORIALS = sorted((ROOT / "tutorials").glob("*.ipynb"))


@pytest.fixture(scope="module")
def search() -> Any:
    """Return the module of the site, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("search", ROOT / "tutorials" / "site" / "search.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def section(location: str, title: str, text: str) -> dict[str, Any]:
    return {"location": location, "title": title, "text": text}


def test_sections_of_notebooks_have_their_prose_and_guides_their_boost(search: Any, tmp_path: Path) -> None:
    cells = [
        ("markdown", "# 01 · Words & more\n\nA *first* [guide](guides/a.md)."),
        ("code", "answer = await session.generate('x', temperature=0.8)"),
        ("markdown", "Between two cells.\n\n## The `map` call\n\n```python\nsession.map\n```\n\nRows <b>."),
    ]
    notebook = {"cells": [{"cell_type": kind, "source": text.splitlines(keepends=True)} for kind, text in cells]}
    (tmp_path / "tutorials").mkdir()
    (tmp_path / "tutorials" / "01_words.ipynb").write_text(json.dumps(notebook))
    noise = "In [1]: Copied! <pre>answer = ...</pre>"
    index = {
        "config": {"lang": ["en"]},
        "docs": [
            section("", "Rekindle", "About."),
            section("tutorials/01_words/", "01 words", noise),
            section("tutorials/01_words/#words", "01 · Words &amp; more", noise),
            section("tutorials/01_words/#the-map-call", "The <code>map</code> call", noise),
            section("tutorials/guides/a/#b", "B", "Text of a guide."),
        ],
    }
    result = search.searchable(index, tmp_path)
    assert result["config"] == index["config"]
    assert result["docs"] == [
        section("", "Rekindle", "About."),
        section("tutorials/01_words/", "01 words", ""),
        section("tutorials/01_words/#words", "01 · Words &amp; more", "A first guide. Between two cells."),
        section("tutorials/01_words/#the-map-call", "The <code>map</code> call", "python session.map Rows &lt;b&gt;."),
        {**section("tutorials/guides/a/#b", "B", "Text of a guide."), "boost": search.BOOST},
    ]


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_has_prose_to_find(search: Any, tutorial: Path) -> None:
    sections = dict(search._sections(json.loads(tutorial.read_text())))
    assert len(sections) > 1
    assert all(title and "`" not in title + text for title, text in sections.items())
    assert sum(map(len, sections.values())) > 500


def test_the_guide_on_sampling_has_the_words_people_look_for_in_its_headings() -> None:
    guide = (ROOT / "tutorials" / "guides" / "sampling_and_seeds.md").read_text().casefold()
    headings = [line for line in guide.splitlines() if line.startswith("#")]
    assert [word for word in ("sampling", "seed", "temperature", "top-p") if word not in " ".join(headings)] == []
