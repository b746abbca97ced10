"""The index of the site's search: guides first, and of notebooks the prose alone."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

GUIDES: Final = "tutorials/guides"
BOOST: Final = 2
"""The factor of the score of guides."""


def searchable(index: dict[str, Any], pages: Path) -> dict[str, Any]:
    """Return the index of the search with guides first, and without the cells of code and the outputs of notebooks.

    Args:
        index: the index: `docs` has each section with its location, title and text.
        pages: the folder of the sources of the pages.
    """
    sections: dict[Path, dict[str, str]] = {}
    docs = []
    for each in index["docs"]:
        page = each["location"].partition("#")[0].rstrip("/")
        notebook = pages / f"{page}.ipynb"
        if page.startswith(GUIDES):
            each = {**each, "boost": BOOST}
        elif page and notebook.exists():
            if notebook not in sections:
                sections[notebook] = dict(_sections(json.loads(notebook.read_text())))
            title = html.unescape(re.sub(r"<[^>]*>", "", each["title"]))
            each = {**each, "text": html.escape(sections[notebook].get(title, ""), quote=False)}
        docs.append(each)
    return {**index, "docs": docs}


def _sections(notebook: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the title and the prose of each section of a notebook."""
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", "\n\n".join(cells))
    for part in re.split(r"^#+ +", re.sub(r"[`*]", "", prose), flags=re.M)[1:]:
        title, _, text = part.partition("\n")
        yield title.strip(), " ".join(text.split())
