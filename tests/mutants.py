"""Tries the tests: changes one thing at a time in the product, and reports the changes without a failing test.

`python -m tests.mutants [--sample N] [--seed S] [--against REV] [--wide] [FILE...]` is a tool for authors, no gate. A
survivor asks for a test, or shows two spellings of the same behaviour. The changes are made in a copy.
"""

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import cache_from_source
from itertools import pairwise
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import ModuleType
from typing import Final, NoReturn

import pytest

ROOT: Final = Path(__file__).parents[1]
UNIT: Final = "tests/unit"
TESTS: Final = {
    "core/scheduler/cache": "prefix_* scheduler_cache tier_room writeback cached_tokens host_tier disk_tier",
    "core/scheduler": "scheduler scheduler_* budget tier_room writeback cached_tokens late_masks hidden_states",
    "core/store": "storage snapshot_store snapshot_key program_key program_store disk_tier cli_cache snapshot_crashes",
    "core/device/sampling": "distribution scores processing masks sampling noise",
    "core/device/programs": "program_* executables",
    "core/text": "text_* grammar constraints masks",
    "formats/checkpoints": "checkpoint_* gguf_*",
    "formats": "system_messages efforts response* chat_forms call_* stop_strings*",
    "server": "server_reading server_connections server_responses server server_*",
    "core/concurrency": "waits feed collector threads interrupts actor",
    "core/engine": "actor engine conductor* loop tokenizing host_tier disk_tier",
    "assembly": "loop tokenizing hosts* budget choosing settings",
    "core/request": "request* constraints values_property",
    "views": "tick_log trace* pages watching",
    "notebook": "board* progress show* explorer map*",
    "results": "answers markdown generation_data logprobs judgements",
    "cli/models": "cli_models targets",
    "cli": "cli*",
}
"""The tests of the files below a folder of the product, nearest first; all of tests/unit are for the others."""
SWAPS: Final[dict[type[ast.AST], tuple[str, str]]] = {
    **{ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")},
    **{ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: (r"is\s+not", "is")},
    **{ast.In: ("in", "not in"), ast.NotIn: (r"not\s+in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and")},
    **{ast.Add: (r"\+", "-"), ast.Sub: ("-", "+")},
}
"""The pattern of an operator, and the text in its place."""
LOGS: Final = frozenset({"debug", "info", "warning", "exception"})
SKIPPED: Final = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
"""Nodes without an effect of their own: messages, assertions and imports."""
LIBRARIES: Final = ("jax.numpy", "flax.nnx", "hypothesis", "tokenizers", "uvicorn")
"""Libraries with a long import."""
EXTRA_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of one place in a file: `text` in the place of the bytes from `start` to `end`."""

    start: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """Return the changed file, with as many lines as before."""
        lines = source[self.start : self.end].count(b"\n") - self.text.count("\n")
        return source[: self.start] + self.text.encode() + b"\n" * lines + source[self.end :]

    def describe(self, source: bytes) -> str:
        """Return the number of the changed line, and the line before and after."""
        number = source.count(b"\n", 0, self.start)
        old, new = (text.split(b"\n")[number].decode().strip() for text in (source, self.applied(source)))
        return f"{number + 1}\n  - {old}\n  + {new}"


class Mutations:
    """The mutations of a file.

    Args:
        source: of the file.
    """

    def __init__(self, source: bytes):
        self._source = source
        self._lines = [0, *(place.end() for place in re.finditer(b"\n", source))]

    def __iter__(self) -> Iterator[Mutation]:
        return self._below(ast.parse(self._source))

    def _below(self, node: ast.AST) -> Iterator[Mutation]:
        """Yield the mutations of a node and of all nodes in it."""
        if isinstance(node, SKIPPED) or _is_words(node):
            return
        yield from self._own(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._below(child)

    def _own(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.Compare(first, ops, comparators):
                for before, operator, after in zip([first, *comparators], ops, comparators, strict=False):
                    yield from self._swapped(before, operator, after)
            case ast.BoolOp(operator, values):
                for before, after in pairwise(values):
                    yield from self._swapped(before, operator, after)
            case ast.BinOp(before, operator, after) | ast.AugAssign(before, operator, after):
                yield from self._swapped(before, operator, after)
                if isinstance(node, ast.AugAssign):
                    yield self._instead(node, "pass")
            case ast.UnaryOp(ast.Not()):
                yield Mutation(self._start(node), self._start(node) + len("not "), "")
            case ast.Constant(bool(value)):
                yield self._instead(node, str(not value))
            case ast.Constant(int(value)):
                yield from (self._instead(node, str(value + by)) for by in ((1, -1) if value in (0, 1) else (1,)))
            case ast.Call(ast.Name("min" | "max" as name) as function):
                yield self._instead(function, {"min": "max", "max": "min"}[name])
            case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                yield self._instead(value, "None")
            case ast.Break() | ast.Continue():
                yield self._instead(node, "continue" if isinstance(node, ast.Break) else "break")
            case ast.Expr(ast.Call() | ast.Await()) | ast.Delete() | ast.Assign([ast.Attribute() | ast.Subscript()]):
                yield self._instead(node, "pass")

    def _swapped(self, before: ast.expr, operator: ast.AST, after: ast.expr) -> Iterator[Mutation]:
        """Yield another operator in place of the one between two operands, if there is one for it."""
        if type(operator) in SWAPS:
            pattern, text = SWAPS[type(operator)]
            start, end = self._end(before), self._start(after)
            between = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self._source[start:end])
            match = re.search(pattern.encode(), between)
            assert match is not None, "there is an operator between operands"
            yield Mutation(start + match.start(), start + match.end(), text)

    def _instead(self, node: ast.expr | ast.stmt, text: str) -> Mutation:
        return Mutation(self._start(node), self._end(node), text)

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


def _is_words(node: ast.AST) -> bool:
    """Return True for a node of messages or logs, and for a tuned constant."""
    match node:
        case ast.FunctionDef(name):
            return name == "__repr__"
        case ast.Expr(ast.Call(ast.Attribute(attr=name))):
            return name in LOGS
        case ast.keyword(name):
            return name in ("repr", "stacklevel")
        case ast.Assign([ast.Name(name)], ast.Constant()) | ast.AnnAssign(ast.Name(name), value=ast.Constant()):
            return name.isupper()
    return False


def holders_of(path: Path) -> list[list[str]]:
    """Return the files of tests for a file of the product, in the order of their runs."""
    folders = [folder for folder in TESTS if path.is_relative_to(Path("toolkit/rekindle", folder))]
    patterns = TESTS[max(folders, key=len)].split() if folders else []
    groups = [
        sorted(str(each.relative_to(ROOT)) for each in ROOT.glob(f"{UNIT}/*/test_{name}.py")) for name in patterns
    ]
    return [files for files in groups if files] or [[UNIT]]


def changed(against: str) -> list[Path]:
    """Return the files of the product that differ from the merge base with a revision."""
    command = ["git", "diff", "--name-only", "--diff-filter=d", "--merge-base", against, "--", "toolkit/*.py"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(line) for line in names.splitlines()]


class Trial:
    """A copy of the checkout, to run its tests with one file changed at a time.

    Args:
        place: an empty directory.
    """

    def __init__(self, place: Path):
        self._place = place / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")
        shutil.copytree(ROOT, self._place, ignore=ignored)
        for library in LIBRARIES:
            import_module(library)
        self._seconds: dict[tuple[str, ...], float] = {}

    def outcome(self, path: Path, mutation: Mutation, holders: Sequence[list[str]]) -> str:
        """Return the outcome of a mutation: the test that killed it, its survival, or a timeout."""
        file, result = self._place / path, "survived"
        source = file.read_bytes()
        for tests in holders:
            limit = self._limit(tests)
            self._write(file, mutation.applied(source))
            try:
                result = self._run(tests, limit)
            finally:
                self._write(file, source)
            if result != "survived":
                break
        return result

    def _limit(self, tests: list[str]) -> float:
        """Return the limit of tests in seconds, from an unchanged run, which must pass."""
        if (key := tuple(tests)) not in self._seconds:
            start = time.monotonic()
            result = self._run(tests, inf)
            assert result == "survived", f"the tests fail with nothing changed: {result}"
            self._seconds[key] = time.monotonic() - start
        return EXTRA_SECONDS + 4 * self._seconds[key]

    def _run(self, tests: list[str], limit: float) -> str:
        """Run tests in a forked process, with the libraries imported already."""
        with TemporaryFile("w+") as output:
            if not (child := os.fork()):
                self._test(tests, output.fileno())
            start, ended = time.monotonic(), 0
            while not ended:
                if time.monotonic() > start + limit:
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    return "timed out"
                time.sleep(0.05)
                ended, status = os.waitpid(child, os.WNOHANG)
            output.seek(0)
            text = output.read()
        if failed := re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE):
            return f"killed by {failed[1]}"
        # A run that fails though no test did was failed by the watchdog of slow steps: that is the machine's fault.
        ended_well = re.search(r"^\d+ passed", text, re.MULTILINE)
        return "survived" if ended_well else f"killed by the end of its process, {status}"

    def _test(self, tests: list[str], output: int) -> NoReturn:
        """Run tests in this process, and end it."""
        os.setpgid(0, 0)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.chdir(self._place)
        paths = [str(self._place / folder) for folder in ("toolkit", "kernels", "")]
        sys.path[:0] = paths
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        sys.modules["__main__"] = ModuleType("__main__")  # or what the tests start would import this file
        imported = "ignore::pytest.PytestAssertRewriteWarning"  # plugins, by the libraries
        status = pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-W", imported, *tests])
        sys.stdout.flush()
        os._exit(status)

    def _write(self, file: Path, source: bytes) -> None:
        file.write_bytes(source)
        # It is taken for new by its second and its size, which may be those of the one before.
        Path(cache_from_source(str(file))).unlink(missing_ok=True)


def run(files: Sequence[Path], sample: int | None, seed: int, wide: bool) -> None:
    """Try mutations of files, and print the outcome of each."""
    sources = {path: (ROOT / path).read_bytes() for path in files}
    mutations = [(path, mutation) for path, source in sources.items() for mutation in Mutations(source)]
    if sample is not None and sample < len(mutations):
        mutations = random.Random(seed).sample(mutations, sample)
    outcomes = []
    with TemporaryDirectory(prefix="rekindle-mutants-") as place:
        trial = Trial(Path(place))
        for path, mutation in mutations:
            result = trial.outcome(path, mutation, holders_of(path) + ([[UNIT]] if wide else []))
            outcomes.append(result.split()[0])
            sys.stdout.write(f"{result}: {path}:{mutation.describe(sources[path])}\n")
            sys.stdout.flush()
    killed, survived, late = (outcomes.count(outcome) for outcome in ("killed", "survived", "timed"))
    sys.stdout.write(f"{killed} killed, {survived} survived, {late} timed out\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="files of the product; else those changed")
    parser.add_argument("--sample", type=int, metavar="N", help="mutations that are tried; else all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--against", default="HEAD~1", metavar="REV", help="changed since it and HEAD were one")
    parser.add_argument("--wide", action="store_true", help="try survivors with all of tests/unit, which takes minutes")
    options = parser.parse_args()
    run(options.files or changed(options.against), options.sample, options.seed, options.wide)
