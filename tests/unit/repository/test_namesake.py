"""PyPI's `rekindle` is another project: no text recommends it, and an import beside it names the remedy."""

import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

from rekindle.namesake import warn_of_namesake

ROOT = Path(__file__).parents[3]
NAMESAKE = re.compile(
    r"\brekindle(\\?\[[a-z{]|==|>=)|(pip|pipx|uv|uvx) (install|add|run|tool install)( -\S+)* '?rekindle\b(?!-llm)"
)
"""The distribution `rekindle` with an extra or a version, or as the target of an install command."""


def test_no_text_recommends_the_other_project() -> None:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    texts = {
        name: (ROOT / name).read_text(encoding="utf-8", errors="ignore")
        for name in filter(None, listing.split("\0"))
        if Path(name).suffix in {".py", ".md", ".toml", ".cfg", ".ipynb", ".json", ".yaml", ""}
        and name != "tests/unit/repository/test_namesake.py"
        if (ROOT / name).is_file()
    }
    assert {name: match.group() for name, text in texts.items() if (match := NAMESAKE.search(text))} == {}


@pytest.mark.parametrize("text", ["rekindle[server]", r"rekindle\[tpu\]", "pip install -U rekindle", "uv add rekindle"])
def test_the_search_finds_the_other_project(text: str) -> None:
    assert NAMESAKE.search(text)
    assert not NAMESAKE.search(text.replace("rekindle", "rekindle-llm"))


def test_extras_refer_to_this_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "rekindle-llm"
    own = [each for extra in project["optional-dependencies"].values() for each in extra if each.startswith("rekindle")]
    assert own
    assert all(each.startswith("rekindle-llm[") for each in own)


@pytest.mark.parametrize("metadata", ["rekindle-0.1.1.dist-info", "rekindle-0.1.1-py3.11.egg-info"])
def test_an_import_beside_the_other_project_says_how_to_keep_one(metadata: str, tmp_path: Path) -> None:
    (tmp_path / "rekindle_llm-0.1.0.dist-info").mkdir()
    with warnings.catch_warnings(action="error"):
        warn_of_namesake(tmp_path / "rekindle")
    (tmp_path / metadata).mkdir()
    with pytest.warns(UserWarning, match=r"also has rekindle-0\.1\.1.*pip uninstall -y rekindle rekindle-llm && pip "):
        warn_of_namesake(tmp_path / "rekindle")


@pytest.mark.wide
def test_the_warning_comes_with_the_import(tmp_path: Path) -> None:
    (tmp_path / "rekindle-0.1.1.dist-info").mkdir()
    (tmp_path / "rekindle").symlink_to(ROOT / "toolkit" / "rekindle")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import rekindle"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "another project with the import name rekindle" in child.stderr
