"""Do README's first ten minutes in fresh environments, print a table, and exit with 1 if a step failed."""

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.documents import ROOT, blocks, commands
from tests.first_minutes import kernel, lab, terminal
from tests.first_minutes.environments import COLAB, NAMES, Environment
from tests.first_minutes.step import LONGEST_SILENCE, Log, Run

FACES: Final = ("terminal", "ipython", "kernel", "jupyterlab")
TYPED: Final = {"rekindle chat": "What is the capital of France?\nAnd of Italy?\n/stats\n"}
"""The standard input of interactive commands."""
ASK: Final = "curl -sf {}/v1/models > /dev/null"
READY: Final = (
    "import asyncio\n\nwhile session.restored.to_compile:\n    await asyncio.sleep(0.2)\n\nprint(session.restored)"
)
"""The last cell: it waits for the background compilations, as a newcomer does while reading."""
NOTES: Final = "The meeting is on Monday at ten. Bring the plans of the lighthouse and a pen.\n"


def main() -> int:
    """Run the steps of some environments, as the arguments ask; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.first_minutes", description=__doc__)
    parser.add_argument("--environments", default=",".join(NAMES), help="names, separated by commas (%(default)s)")
    parser.add_argument("--faces", default=",".join(FACES), help="names, separated by commas (%(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "first_minutes", help="it is made anew")
    parser.add_argument("--keep", action="store_true", help="use the environments that are in the folder")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    if not arguments.keep:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "rekindle"
    if not source.is_dir():
        subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    logs = []
    for name in arguments.environments.split(","):
        environment = Environment(name, folder / name)
        try:
            logs.append(_spend(environment, source, arguments.faces.split(",")))
        except LookupError as missing:
            print(f"{name}: not run, because {missing}", flush=True)
    print(table(logs))
    return int(any(run.status for log in logs for runs in log.rows.values() for run, _ in runs))


def _spend(environment: Environment, source: Path, faces: list[str]) -> Log:
    """Install, and take all steps of an environment twice."""
    print(environment.name, flush=True)
    environment.work.mkdir(parents=True, exist_ok=True)
    (environment.work / "notes.txt").write_text(NOTES)
    log = Log(environment.name, environment.folder, environment.cache / "programs")
    if not environment.bin.is_dir():
        for name, command in environment.commands(source):
            log.begin()
            log.add("install", name, terminal.run(command, environment.work, environment.variables()))
    for turn in ("first", "again"):
        print(f"  {turn}", flush=True)
        for face in faces:
            log.begin()
            for name, run in _steps(environment, face, turn):
                log.add(face, name, run)
                log.begin()
    return log


def _steps(environment: Environment, face: str, turn: str) -> Iterator[tuple[str, Run]]:
    """Take the steps of one face, and yield the name and the run of each."""
    if environment.kind == COLAB and face != "kernel":  # its other faces are those of the other environments
        return
    work, variables, cells = environment.work, environment.variables(), readme_cells()
    names = [code.strip().splitlines()[-1][:60] for code in cells]
    match face:
        case "terminal":
            for line in readme_commands():
                yield line[:60], _command(line, work, variables)
        case "ipython":
            with terminal.ipython(environment.bin / "ipython", work, variables) as (shell, start):
                yield "ipython", start
                yield from zip(names, map(shell.cell, cells), strict=True)
        case "kernel":
            log = environment.folder / "kernel.log"
            with kernel.kernel(environment.bin / "python", work, variables, log) as (running, start):
                yield "start", start
                yield from zip(names, map(running.cell, cells), strict=True)
        case "jupyterlab":
            home, pictures = environment.folder / f"lab-{turn}", environment.folder / "pictures" / turn
            shutil.rmtree(home, ignore_errors=True)
            for place, run in lab.cells(environment.bin / "python", home, variables, cells, pictures):
                yield "jupyter lab" if place < 0 else names[place], run
        case other:
            raise SystemExit(f"there is no face {other!r}: {', '.join(FACES)}")


def _command(line: str, folder: Path, variables: dict[str, str]) -> Run:
    """Run a line of README's terminal."""
    if line.startswith("rekindle serve"):
        return terminal.serve(shlex.split(line), folder, variables, ASK)
    return terminal.run(["sh", "-c", line], folder, variables, TYPED.get(line))


def readme_commands() -> list[str]:
    """Return README's commands that start Rekindle, and its words on `rekindle info`."""
    lines = [line for line in commands(ROOT / "README.md") if "rekindle " in line and "pip " not in line]
    return [*lines, "rekindle info smollm2-135m-instruct"]


def readme_cells() -> list[str]:
    """Return the cells of README and a last one to wait for the programs."""
    return [*(block.text.strip("\n") for block in blocks(ROOT / "README.md", "python") if not block.reason), READY]


def table(logs: list[Log]) -> str:
    """Return the steps of all environments as a table of Markdown."""
    lines = ["| environment | face | step | first | silent | again | silent | compiled again | |", "|---" * 9 + "|"]
    for log in logs:
        for (face, name), runs in log.rows.items():
            cells = [f"{run.seconds:.1f} s | {run.silence:.1f} s" for run, _ in runs] + [" | "] * (2 - len(runs))
            compiled = str(runs[1][1]) if len(runs) > 1 else ""
            step = name.replace("|", r"\|")
            row = (log.environment, face, f"`{step}`", *cells, compiled, _words(runs))
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _words(runs: list[tuple[Run, int]]) -> str:
    """Return the words for a step: failed, silent, or not warm."""
    words = [f"FAILED ({run.status})" for run, _ in runs if run.status]
    words += ["silent"] if any(run.silence > LONGEST_SILENCE for run, _ in runs) else []
    return ", ".join([*words, *(["not warm"] if len(runs) > 1 and runs[1][1] else [])])


if __name__ == "__main__":
    sys.exit(main())
