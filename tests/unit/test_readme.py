"""The README's map is complete: every module is in it once, and nothing else."""

import re
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_module_is_in_the_file_tree_once() -> None:
    lines = iter((ROOT / "README.md").read_text().splitlines())
    assert any(line.startswith("toolkit/rekindle/") for line in lines), "the tree begins there"
    tree = takewhile(lambda line: not line.startswith("tests/"), lines)
    firsts = (re.split(r"\s{2,}", line.strip())[0].split() for line in tree)
    named = [name for first in firsts for name in first if name.endswith((".py", "/"))]
    package = ROOT / "toolkit" / "rekindle"
    there = {path.name + "/" * path.is_dir() for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    there.discard("__pycache__/")
    times = {name: sum(fnmatch(name, pattern) for pattern in named) for name in there}
    assert {name: count for name, count in times.items() if count != 1} == {}
    assert [pattern for pattern in named if not any(fnmatch(name, pattern) for name in there)] == []
