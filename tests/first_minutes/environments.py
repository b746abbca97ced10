"""Fresh environments, as newcomers make them."""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.documents import ROOT

UV, PIP, COLAB = "uv", "pip", "colab"
NAMES: Final = ("uv-3.13", "pip-3.11", "pip-3.13", "colab-3.13")
"""The environments: each has a tool and a Python."""
COLAB_LIST: Final = ROOT / "tests" / "colab" / "colab-2026-08-19-cpu.txt"
OURS: Final = ("PYTHON", "REKINDLE", "PYTEST", "VIRTUAL_ENV", "IPYTHON", "JUPYTER", "JAX", "XLA")
"""Prefixes of variables' names, all outside of a newcomer's environment."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A fresh environment.

    Attributes:
        name: its tool and its Python.
        folder: all files of its steps: the environment, the cache, the working directory, transcripts.
    """

    name: str
    folder: Path

    @property
    def kind(self) -> str:
        """The kind: the name without its Python."""
        return self.name.partition("-")[0]

    @property
    def bin(self) -> Path:
        """The folder of its programs."""
        return self.folder / "env" / "bin"

    @property
    def work(self) -> Path:
        """The working directory of its steps."""
        return self.folder / "work"

    @property
    def cache(self) -> Path:
        """The cache directory of Rekindle."""
        return self.folder / "cache"

    def variables(self) -> dict[str, str]:
        """Return the environment variables of a step: a newcomer's, in a terminal, with a home of its own."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        places = {"IPYTHONDIR": self.folder / "ipython", "REKINDLE_CACHE": self.cache}
        path = f"{self.bin}{os.pathsep}{inherited.get('PATH', '')}"
        ours = {name: str(place) for name, place in places.items()}
        return inherited | ours | {"PATH": path, "TERM": "xterm-256color", "VIRTUAL_ENV": str(self.bin.parent)}

    def commands(self, source: Path) -> Iterator[tuple[str, list[str]]]:
        """Yield the names and the commands of the installation.

        Raises:
            LookupError: this machine lacks the Python, or uv; the message says which.
        """
        python, env, requirement = _python(self.name.partition("-")[2]), str(self.bin.parent), f"{source}{_extras()}"
        if self.kind == UV:
            yield "uv venv", [uv(), "venv", "--python", python, env]
            yield "uv pip install", [uv(), "pip", "install", "--python", str(self.bin / "python"), requirement]
            return
        yield "python -m venv", [python, "-m", "venv", env]
        if self.kind == COLAB:
            yield "Colab's packages", [str(self.bin / "pip"), "install", "--no-deps", "--requirement", str(COLAB_LIST)]
        yield "pip install", [str(self.bin / "pip"), "install", requirement]


def _extras() -> str:
    """Return README's extras for a CPU, in brackets."""
    match = re.search(r"pip install '\.(\[[\w,-]+\])' +# CPU", (ROOT / "README.md").read_text(encoding="utf-8"))
    if match is None:
        raise ValueError("README has no line `pip install '.[EXTRAS]'    # CPU`")
    return match[1]


def _python(version: str) -> str:
    """Return a Python of this version, from the path or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in [*sorted(pyenv.glob(f"{version}.*/bin/python")), shutil.which(f"python{version}")]:
        if path:
            return str(path)
    raise LookupError(f"there is no Python {version}")


def uv() -> str:
    """Return uv: on the path, or where `.ci/environment` has put it."""
    ours = ROOT / ".venv-uv" / "bin" / "uv"
    if path := shutil.which("uv") or (str(ours) if ours.is_file() else None):
        return path
    raise LookupError("there is no uv")
