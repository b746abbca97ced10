"""Tutorials as notebooks of marimo, with their dependencies in the file; `marimo export html` runs them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import jupytext
import nbformat

MARIMO = (sys.executable, "-m", "marimo")
HEAD = """\
# /// script
# requires-python = ">=3.11"
# dependencies = {dependencies}
# ///

"""
"""The first lines of a notebook: `marimo edit --sandbox` installs these dependencies."""


def write(source: Path, target: Path, package: str) -> None:
    """Write a tutorial as a notebook of marimo.

    Args:
        source: the tutorial's source.
        target: the notebook.
        package: the requirement of Rekindle.
    """
    read = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    for cell in read.cells:
        cell.metadata.pop("tags", None)
    middle = target.with_suffix(".ipynb")
    middle.write_text(nbformat.writes(read), encoding="utf-8")
    command = [*MARIMO, "-q", "-y", "convert", str(middle), "-o", str(target)]
    subprocess.run(command, check=True, env={**os.environ, "NO_COLOR": "1"})
    middle.unlink()
    head = HEAD.format(dependencies=json.dumps(["marimo", package]))
    target.write_text(head + target.read_text(encoding="utf-8"), encoding="utf-8")


def run(notebook: Path, variables: Mapping[str, str], limit: float) -> str:
    """Run a notebook of marimo, and write its outputs to an HTML file beside it.

    Args:
        notebook: the notebook.
        variables: the environment variables of its process.
        limit: the maximum number of seconds.

    Returns:
        The errors of its cells; "" if all cells have run.
    """
    command = [*MARIMO, "-q", "-y", "export", "html", str(notebook), "-o", str(notebook.with_suffix(".html")), "-f"]
    try:
        done = subprocess.run(command, env=dict(variables), capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"it has not ended after {limit:.0f} s"
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}"
