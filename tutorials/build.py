"""Run the tutorials: `python tutorials/build.py [NAMES] [--write | --marimo FOLDER]`.

A tutorial is a pair: `NN_name.py`, or `colab.py`, is its source, in jupytext's percent format, and `NN_name.ipynb` has
the same cells with their outputs, for readers. Each runs in a kernel and with a cache directory of its own, so its
outputs do not depend on what this machine has seen before. Where a cell tells the reader to restart the kernel and to
run the cells above it again, this is done here too, and the outputs are those of the second time.

With `--marimo`, the tutorials are written into a folder as notebooks of marimo and run there, each beside its HTML.
"""

import argparse
import copy
import importlib.util
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import as_marimo
import jupytext
import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, DeadKernelError
from nbformat import NotebookNode

from rekindle.core.store.directory import cache_dir
from rekindle.formats.checkpoints.embedded import embedded_path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LIMIT = 300
"""The most seconds that one tutorial may take. It takes under 60 on two quiet cores, but CI's cores may be busy."""
ELSEWHERE = {"18_train_with_tunix": ("tunix", "make test-tunix")}
"""Tutorials that need a library with an environment of its own: its import, and the command that runs them there."""
ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
"""The model of the hub in tutorials."""
RESTART = "restart"
"""The tag of the cell that tells the reader to restart the kernel and to run the cells above it again."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALL = f"""\
import importlib.util

if importlib.util.find_spec("rekindle") is None:  # on Colab, for example
    %pip install -q "{PROJECT["name"]}[server]"
"""
KERNEL = (sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}")


class Unfit(Exception):
    """A tutorial does not run, or makes another notebook than the committed one; the message says how."""


def main() -> None:
    """Run the tutorials that the command line names, or all of them; exit with 1 if one is unfit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="such as 01 or 01_first_words (default: all)")
    parser.add_argument("--write", action="store_true", help="write the notebooks, do not compare them")
    parser.add_argument("--marimo", type=Path, metavar="FOLDER", help="write and run notebooks of marimo there")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one tutorial (default: %(default)s)")
    options = parser.parse_args()
    unfit = 0
    for source in chosen(options.names):
        wall, processor = time.monotonic(), children_seconds()
        try:
            if options.marimo is not None:
                result = run_in_marimo(source, options.marimo, options.limit)
            else:
                result = finish(source, options.write, options.limit)
        except Unfit as error:
            unfit += 1
            result = f"UNFIT\n{error}"
        wall, processor = time.monotonic() - wall, children_seconds() - processor
        print(f"{source.stem}: {result} ({wall:.0f} s, {processor:.0f} s of processor time)", flush=True)
    sys.exit(unfit > 0)


def chosen(names: Sequence[str]) -> list[Path]:
    """Return the tutorials whose names begin so, or all of them if none is named."""
    sources = [*sorted(HERE.glob("[0-9]*_*.py")), HERE / "colab.py"]
    known = {name: [source for source in sources if source.stem.startswith(Path(name).stem)] for name in names}
    for name, found in known.items():
        if not found:
            sys.exit(f"there is no tutorial {name!r}; there are {', '.join(source.stem for source in sources)}")
    if names:
        return [source for source in sources if any(source in found for found in known.values())]
    return [source for source in sources if _is_for_here(source)]


def _is_for_here(source: Path) -> bool:
    """Return whether the libraries of a tutorial are installed; print the command that runs it otherwise."""
    module, command = ELSEWHERE.get(source.stem, ("", ""))
    if not module or importlib.util.find_spec(module) is not None:
        return True
    print(f"{source.stem}: left to {command}", flush=True)
    return False


def finish(source: Path, write: bool, limit: float) -> str:
    """Execute one tutorial; write its notebook, or compare it with the one that is there.

    Returns:
        What was done, in a word.

    Raises:
        Unfit: it does not run, or the committed notebook differs.
    """
    notebook = executed(cells(source), limit)
    target = source.with_suffix(".ipynb")
    if write:
        nbformat.validate(notebook)
        target.write_text(nbformat.writes(notebook, indent=1) + "\n", encoding="utf-8")
        return "written"
    if not target.is_file():
        raise Unfit(f"{target.name} is missing: make tutorials-write makes it")
    difference = first_difference(notebook, nbformat.read(target, as_version=4))
    if difference:
        raise Unfit(f"{target.name}: {difference}; make tutorials-write brings it up to date")
    return "good"


def run_in_marimo(source: Path, folder: Path, limit: float) -> str:
    """Write a tutorial into a folder as a notebook of marimo, and run it.

    Returns:
        The result in a word.

    Raises:
        Unfit: a cell fails, or the limit is exceeded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder.resolve() / source.name
    as_marimo.write(source, target, f"{PROJECT['name']}[server]")
    with tempfile.TemporaryDirectory(prefix="rekindle-tutorial-") as name:
        errors = as_marimo.run(target, environment(Path(name).resolve()), limit)
    if errors:
        raise Unfit(errors)
    return "good"


def cells(source: Path) -> NotebookNode:
    """Make a notebook without outputs of a tutorial's source; it depends on the source alone."""
    read = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    for place, cell in enumerate(read.cells):
        cell.id = f"cell-{place:02d}"
    title, _, text = read.cells[0].source.partition("\n")
    read.cells[0].source = f"{title}\n\n{colab_link(source.stem)}\n{text}"
    read.cells.insert(1, nbformat.v4.new_code_cell(INSTALL.strip(), id="install"))
    notebook: NotebookNode = nbformat.from_dict(
        {"cells": read.cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    )
    return notebook


def colab_link(name: str) -> str:
    """Return a Markdown link to the published notebook of a tutorial in Colab; a picture would ask another host."""
    repository = PROJECT["urls"]["Source"].removeprefix("https://github.com/")
    address = f"https://colab.research.google.com/github/{repository}/blob/main/tutorials/{name}.ipynb"
    return f"[Open in Colab]({address})"


def executed(notebook: NotebookNode, limit: float) -> NotebookNode:
    """Execute a notebook, and return it with what its cells print and show.

    Cells above one with the tag `RESTART` are executed in a kernel before, whose outputs are dropped.

    Raises:
        Unfit: a cell fails, writes to stderr, or takes the notebook over `limit` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="rekindle-tutorial-") as name:
        directory = Path(name).resolve()
        variables = environment(directory)
        if any(ENCODER in cell.source for cell in code_cells(notebook)):
            variables = {**variables, "HF_HUB_CACHE": hub_cache(directory / "hub")}
        end = time.monotonic() + limit
        for part in (*above_restart(notebook), notebook):
            _execute(part, directory, variables, end)
        for cell in code_cells(notebook):
            cell.metadata = nbformat.from_dict({key: value for key, value in cell.metadata.items() if key == "tags"})
            cell.outputs = [nbformat.from_dict(_without_places(output, directory)) for output in shown(cell.outputs)]
            for output in cell.outputs:
                if output.get("name") == "stderr":
                    raise Unfit(f"a cell wrote to stderr:\n{cell.source}\n----\n{output.text}")
    # What nbclient leaves there names the version of Python.
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    return notebook


def above_restart(notebook: NotebookNode) -> list[NotebookNode]:
    """Return a notebook of the cells above the one with the tag `RESTART`, or nothing if there is none."""
    for place, cell in enumerate(notebook.cells):
        if RESTART in cell.metadata.get("tags", ()):
            above = copy.deepcopy(notebook)
            above.cells = above.cells[:place]
            return [above]
    return []


def _execute(notebook: NotebookNode, directory: Path, variables: Mapping[str, str], end: float) -> None:
    """Execute a notebook in a kernel of its own, until a time on the clock of `time.monotonic`."""
    manager = KernelManager()
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv = list(KERNEL)
    client = NotebookClient(
        notebook,
        km=manager,
        timeout_func=lambda cell: max(1, int(end - time.monotonic())),
        record_timing=False,
        store_widget_state=False,
    )
    log = directory / "kernel.log"
    with log.open("wb") as file:
        try:
            client.execute(cleanup_kc=True, cwd=str(directory), env=variables, stdout=file, stderr=file)
        except CellControlSignal as error:
            raise Unfit(str(error)) from None
        except DeadKernelError as error:
            raise Unfit(f"{error}; its log says\n{log.read_text(errors='replace')}") from None


def environment(directory: Path) -> Mapping[str, str]:
    """Return the environment variables of a kernel. Its cache directory is its own and has only this machine's models.

    Args:
        directory: an empty directory. It holds IPython's profile too, so that the user's startup files do not run.
    """
    embedded_path()  # downloads the model, so that the kernel need not
    cache = directory / "cache"
    cache.mkdir(mode=0o700)
    (cache / "models").symlink_to(cache_dir("models"))
    # Jupyter starts a notebook in its own folder, where it finds the modules beside it.
    paths = [str(HERE), str(ROOT / "toolkit"), str(ROOT / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "REKINDLE_CACHE": str(cache),
        "IPYTHONDIR": str(directory / "ipython"),
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",  # readers see the outputs of a CPU
    }


def hub_cache(directory: Path) -> str:
    """Make a cache of the hub that has the encoder, as a wheel has it; return its path."""
    command = [sys.executable, "-m", "tests.real.minilm"]
    model = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    repository, commit = directory / f"models--{ENCODER.replace('/', '--')}", "0" * 40
    for folder in ("refs", "snapshots"):
        (repository / folder).mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit, encoding="utf-8")
    (repository / "snapshots" / commit).symlink_to(model)
    return str(directory)


def shown(outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """Return outputs that can be shown without their kernel: no widgets, and printed text joined to one piece."""
    kept: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and kept and kept[-1].get("name") == output.name:
            kept[-1].text += output.text
        elif not _is_gone(output):
            kept.append(output)
    return kept


def _is_gone(output: NotebookNode) -> bool:
    """Return whether nothing is left of an output without its kernel: it is a widget, or it was cleared."""
    data = output.get("data", {"text": "printed"})
    return not any(data.values()) or "application/vnd.jupyter.widget-view+json" in data


ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


def _without_places(value: Any, directory: Path) -> Any:
    """Replace in all texts what tells where and for whom the tutorial ran."""
    if isinstance(value, str):
        for place, instead in ((directory, "~"), (ROOT, "rekindle"), (Path.home(), "~")):
            value = re.sub(re.escape(str(place)) + r"(?=[^\w.-]|$)", instead, value)
        return ADDRESS.sub("0x...", value)
    if isinstance(value, Mapping):
        return {key: _without_places(item, directory) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_places(item, directory) for item in value]
    return value


def first_difference(made: NotebookNode, committed: NotebookNode) -> str:
    """Return the first difference between two notebooks, or "". Outputs are compared only by their kinds."""
    if len(made.cells) != len(committed.cells):
        return f"it has {len(committed.cells)} cells, its source {len(made.cells)}"
    for place, (ours, theirs) in enumerate(zip(made.cells, committed.cells, strict=True)):
        if (ours.id, ours.cell_type, ours.source) != (theirs.id, theirs.cell_type, theirs.source):
            return f"cell {place} is not its source's:\n{theirs.source}\n---- and in the source\n{ours.source}\n----"
        if ours.cell_type == "code" and _kinds(ours) != _kinds(theirs):
            return f"cell {place} shows {_kinds(theirs)}, and when it is run {_kinds(ours)}:\n{ours.source}\n----"
    return ""


def _kinds(cell: NotebookNode) -> list[str]:
    """Return the media types of all outputs of a cell, with "text" for what it prints."""
    return sorted({kind for output in cell.outputs for kind in output.get("data", {"text": ""})})


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the cells that are run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def children_seconds() -> float:
    """Return the processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
