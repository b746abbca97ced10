"""What is published refers to itself by one address and one version, and works outside the repository."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = PROJECT["urls"]["Source"]
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))


def absolute_links(*texts: str) -> list[str]:
    """Return texts as they are published; in a process of its own, as setuptools replaces modules of this one."""
    code = "import json, sys; from rekindle_backend import absolute_links as links; "
    code += "print(json.dumps([links(text, *sys.argv[1:]) for text in json.load(sys.stdin)]))"
    command = [sys.executable, "-c", code, SOURCE, "v1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "kernels")}
    done = subprocess.run(
        command, input=json.dumps(texts), env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    results: list[str] = json.loads(done.stdout)
    return results


def test_links_of_a_description_are_absolute_and_lead_to_files() -> None:
    raw = SOURCE.replace("github.com", "raw.githubusercontent.com")
    as_they_are = "[site](https://x.org) [part](#part) [m](mailto:a@b.c)"
    readme, *others = absolute_links(
        (ROOT / "README.md").read_text(encoding="utf-8"), "[guide](a/b.md#c)", "![picture](a.png)", as_they_are
    )
    assert others == [f"[guide]({SOURCE}/blob/v1/a/b.md#c)", f"![picture]({raw}/v1/a.png)", as_they_are]
    paths = re.findall(rf"\]\((?:{SOURCE}/blob|{raw})/v1/([^)#]+)", readme)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert not re.search(r"\]\((?!https?://|#)", readme)


def test_pip_show_has_what_it_shows() -> None:
    """Check the fields of `pip show`; its home page is the address with this name."""
    assert PROJECT["urls"]["Homepage"] == SOURCE
    assert PROJECT["authors"][0]["name"]
    assert PROJECT["license"] == "Apache-2.0"


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
