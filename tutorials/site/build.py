"""Builds the site: `python tutorials/site/build.py` collects its pages in build/site/pages, and renders them.

The pages are README, the guides, the tutorials, CONTRIBUTING and CHANGELOG as they are, and one for each public name.
A broken link, a page that no menu names, or a public name without a page ends the build with an error.
"""

import html
import json
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import griffe
import yaml
from search import searchable

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
SITE: Final = ROOT / "build" / "site"
PAGES: Final = SITE / "pages"
HTML: Final = SITE / "html"
INDEX: Final = HTML / "search" / "search_index.json"
IDS: Final = re.compile(r'\bid="([^"]*)"')
HREF: Final = re.compile(r'<a\s[^>]*?href="([^"]*)"')
REPOSITORY_LINK: Final = re.compile(r"\[([^\]]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
"""A link of a page to a file of the repository."""
COPIED: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tutorials/*.md", "tutorials/guides/*.md")
NOTEBOOKS: Final = "tutorials/*.ipynb"
PICTURES: Final = ("tutorials/*.gif", "tutorials/*.png")


def main() -> None:
    """Build the site, and exit with an error if anything is missing of it."""
    shutil.rmtree(SITE, ignore_errors=True)
    PAGES.mkdir(parents=True)
    sources = [path for pattern in (*COPIED, NOTEBOOKS, *PICTURES) for path in sorted(ROOT.glob(pattern))]
    for source in sources:
        _copy(source, {path.relative_to(ROOT) for path in sources})
    package = griffe.load("rekindle", search_paths=[ROOT / "toolkit"], resolve_aliases=True)
    public = sorted(package.exports or ())
    for name in public:
        _write(PAGES / "api" / f"{name}.md", f"::: rekindle.{name}\n")
    _write(PAGES / "api" / "index.md", _index(package, public))
    config = SITE / "mkdocs.yml"
    _write(config, _config(public))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config]
    # The converter of notebooks has a cache where it runs. --quiet would hide warnings from --strict, too.
    built = subprocess.run(command, cwd=SITE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if built.returncode:
        print(*(line for line in built.stdout.splitlines() if not line.startswith("INFO")), sep="\n", file=sys.stderr)
    missing = [name for name in public if not _documented(name)]
    if missing:
        print(f"public names without a page: {', '.join(missing)}", file=sys.stderr)
    if not built.returncode:
        _write(INDEX, json.dumps(searchable(json.loads(INDEX.read_text()), PAGES)))
    dead = [] if built.returncode else list(_dead_links())
    if dead:
        print("broken links:", *dead, sep="\n", file=sys.stderr)
    if built.returncode or missing or dead:
        raise SystemExit(1)
    print(f"{sum(1 for _ in HTML.rglob('*.html'))} pages in {HTML.relative_to(ROOT)}")


def _copy(source: Path, pages: set[Path]) -> None:
    """Copy a file to the pages; links to files that are no pages become plain text.

    MkDocs resolves the links of Markdown, and the converter of notebooks leaves theirs as they are: they get the
    addresses of the pages here.
    """
    place = PAGES / source.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".ipynb":
        notebook = json.loads(source.read_text())
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                text = REPOSITORY_LINK.sub(partial(_notebook_link, source, pages), "".join(cell["source"]))
                cell["source"] = text.splitlines(keepends=True)
        _write(place, json.dumps(notebook))
        return
    if source.suffix != ".md":
        shutil.copyfile(source, place)
        return

    def link(match: re.Match[str]) -> str:
        target = (source.parent / match[2]).resolve()
        if not target.exists():
            return match[0]  # which the strict build complains of
        return match[0] if target.relative_to(ROOT) in pages else match[1]

    _write(place, REPOSITORY_LINK.sub(link, source.read_text()))


def _notebook_link(source: Path, pages: set[Path], match: re.Match[str]) -> str:
    """Return a link of a notebook with the address of its page, or its text alone if there is no page."""
    target = (source.parent / match[2]).resolve()
    if not target.exists():
        return match[0]  # which the check of the built pages complains of
    path = target.relative_to(ROOT)
    if path not in pages:
        return match[1]
    if path.suffix not in (".md", ".ipynb"):  # a picture, one folder above the page
        return f"[{match[1]}](../{match[2]})"
    address = path.parent if path.stem == "README" else path.with_suffix("")
    relative = posixpath.relpath(address.as_posix(), source.relative_to(ROOT).with_suffix("").as_posix())
    return f"[{match[1]}]({relative}/{match[3] or ''})"


def _dead_links() -> Iterator[str]:
    """Yield the links of the built pages that lead to no file or to no place in one, each behind its page."""
    ids: dict[Path, set[str]] = {}
    for page in sorted(HTML.rglob("*.html")):
        for link in HREF.findall(page.read_text()):
            address, _, fragment = html.unescape(link).partition("#")
            if page.name == "404.html" or re.match(r"[a-z]+:|//", address):
                continue
            target = (page.parent / unquote(address.partition("?")[0])).resolve() if address else page
            target = target / "index.html" if target.is_dir() else target
            if target not in ids:
                ids[target] = (
                    set(IDS.findall(target.read_text())) if target.suffix == ".html" and target.exists() else set()
                )
            if not target.exists() or (fragment and target.suffix == ".html" and unquote(fragment) not in ids[target]):
                yield f"{page.relative_to(HTML)}: {link}"


def _index(package: griffe.Object | griffe.Alias, public: list[str]) -> str:
    """Return the page that lists the public names, each with the first sentence of its docstring."""
    rows = [f"| [`{name}`]({name}.md) | {_summary(package[name])} |" for name in public]
    return "\n".join(["# Reference", "", "All public names of `rekindle`.", "", "| Name | |", "|---|---|", *rows, ""])


def _summary(member: griffe.Object | griffe.Alias) -> str:
    text = member.docstring.value if member.docstring else ""
    return text.strip().split("\n\n")[0].replace("\n", " ").replace("|", r"\|")


def _config(public: list[str]) -> str:
    """Return the configuration of MkDocs with its menu, at a place beside the pages."""
    config = (HERE / "mkdocs.yml").read_text()
    for name, path in (("docs_dir", PAGES), ("site_dir", HTML)):
        config = re.sub(rf"(?m)^{name}: .*", f"{name}: {path}", config)
    menu = [
        {"Rekindle": "README.md"},
        {"Guides": list(_pages("tutorials/guides/*.md"))},
        {"Tutorials": ["tutorials/README.md", *_pages(NOTEBOOKS)]},
        {"Reference": ["api/index.md", *(f"api/{name}.md" for name in public)]},
        {"Project": ["CONTRIBUTING.md", "CHANGELOG.md"]},
    ]
    return config + yaml.safe_dump({"nav": [each for each in menu if all(each.values())]}, sort_keys=False)


def _pages(pattern: str) -> Iterator[str]:
    found = sorted(PAGES.glob(pattern), key=lambda path: (path.name != "README.md", path.name))
    yield from (path.relative_to(PAGES).as_posix() for path in found)


def _documented(name: str) -> bool:
    """Return whether the page of a name has its documentation."""
    page = HTML / "api" / name / "index.html"
    return page.exists() and f'id="rekindle.{name}"' in page.read_text()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main()
