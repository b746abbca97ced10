"""The call of `open` in a cell. The next run of the cell finds its session by it."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import CodeType
from typing import Any

from rekindle import markup
from rekindle.notebook import marimo_cell


@dataclass(frozen=True, slots=True)
class Origin:
    """A call of `open` in a cell.

    Two runs of one cell have equal origins, unless files have changed.

    Attributes:
        code: the code of the cell; equal for equal texts.
        instruction: the place of the call in the code.
        arguments: the arguments of the call.
        files: path, size and time of change of each file of a local model, its tower and its adapters.
        run: the number of the run.
    """

    code: CodeType
    instruction: int
    arguments: Mapping[str, Any]
    files: tuple[tuple[str, int, int], ...]
    run: int | str | None = field(compare=False)

    @classmethod
    def of(
        cls, model: str | PathLike[str], arguments: Mapping[str, Any], others: Iterable[str | PathLike[str] | None] = ()
    ) -> "Origin | None":
        """Return the origin of the running call; None if it is outside of a notebook, or in a function.

        Args:
            others: paths of further files of the call, such as those of adapters.
        """
        frame = sys._getframe()
        while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "rekindle":
            frame = frame.f_back
        names = variables()
        if names is None or frame.f_locals is not names:  # a function has variables of its own
            return None
        files = tuple(each for path in (model, *others) if path is not None for each in _files(Path(path)))
        run = markup.cell() if (of_marimo := marimo_cell.run_id()) is None else of_marimo
        return cls(frame.f_code, frame.f_lasti, {"model": model, **arguments}, files, run)


def variables() -> dict[str, Any] | None:
    """Return the variables of the cells; None outside of IPython and marimo."""
    if (cell := marimo_cell.context()) is not None:
        names: dict[str, Any] = cell.globals
        return names
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return None if shell is None else shell.user_ns


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    for file in [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []:
        if file.is_file():
            facts = file.stat()
            yield str(file), facts.st_size, facts.st_mtime_ns
