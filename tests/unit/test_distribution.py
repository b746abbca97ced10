"""What is published refers to itself by one address and one version, and works outside the repository."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from rekindle_backend import absolute_links

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = PROJECT["urls"]["Source"]
NOTEBOOKS = sorted((ROOT / "tutorials").glob("[0-9]*.ipynb"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[guide](a/b.md#c)", "[guide](https://github.com/o/r/blob/v1/a/b.md#c)"),
        ("![picture](a.png)", "![picture](https://raw.githubusercontent.com/o/r/v1/a.png)"),
        (
            "[site](https://x.org) [part](#part) [m](mailto:a@b.c)",
            "[site](https://x.org) [part](#part) [m](mailto:a@b.c)",
        ),
    ],
)
def test_links_of_a_description_are_absolute(text: str, expected: str) -> None:
    assert absolute_links(text, "https://github.com/o/r", "v1") == expected


def test_the_paths_in_the_description_exist() -> None:
    text = absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), SOURCE, "v1")
    raw = SOURCE.replace("github.com", "raw.githubusercontent.com")
    paths = re.findall(rf"\]\((?:{SOURCE}/blob|{raw})/v1/([^)#]+)", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert not re.search(r"\]\((?!https?://|#)", text)


def test_all_texts_name_the_repository_of_the_metadata() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'repository-code: "{SOURCE}"' in citation
    assert f"\nversion: {PROJECT['version']}\n" in citation
    assert f"({SOURCE}/security/advisories/new)" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_opens_in_colab_and_installs_what_is_missing(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    repository = SOURCE.removeprefix("https://github.com/")
    address = f"https://colab.research.google.com/github/{repository}/blob/main/tutorials/{path.name}"
    assert f"({address})" in "".join(cells[0]["source"])
    assert cells[1]["cell_type"] == "code"
    assert f'%pip install -q "{PROJECT["name"]}[' in "".join(cells[1]["source"])
    assert cells[1]["outputs"] == []


def test_the_workflow_publishes_what_the_checks_have_seen() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "make release-check" in workflow
    assert f"https://pypi.org/p/{PROJECT['name']}" in workflow
    assert {"wheels", "sources"} <= set(re.findall(r"needs: \[([^\]]*)\]", workflow)[0].split(", "))
