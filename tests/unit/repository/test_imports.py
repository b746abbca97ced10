"""Imports have no circle anywhere, and no engine behind a trace or the client's requests."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

TOOLKIT = Path(__file__).parents[3] / "toolkit"
MODULES = {
    ".".join(path.relative_to(TOOLKIT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (TOOLKIT / "rekindle").rglob("*.py")
}
ENGINE = {"core.device", "core.engine", "core.models", "core.scheduler", "formats.checkpoints", "formats.families"}
"""Rooms outside of the imports of a trace and the client's requests, beside all of `assembly`."""


def statements(parent: ast.AST, *, at_run_time: bool) -> Iterator[ast.AST]:
    """Yield the statements of a module; at run time, only the ones executed by an import."""
    for node in ast.iter_child_nodes(parent):
        if at_run_time:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
        yield node
        yield from statements(node, at_run_time=at_run_time)


@cache
def imports(name: str, *, at_run_time: bool) -> frozenset[str]:
    """Return a module's imports within the toolkit, in annotations and functions too or at run time."""
    targets = set()
    for node in statements(ast.parse(MODULES[name].read_text(encoding="utf-8")), at_run_time=at_run_time):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
            targets |= {each if each in MODULES else node.module or "" for each in names}
        elif isinstance(node, ast.Import):
            targets |= {each.name for each in node.names}
    return frozenset(targets & set(MODULES)) - {name}


def reach(name: str) -> set[str]:
    """Return all direct and indirect imports of a module at run time, without the package's own names."""
    reached, ahead = set(), {name}
    while ahead:
        reached |= ahead
        ahead = {each for module in ahead for each in imports(module, at_run_time=True)} - reached - {"rekindle"}
    return reached


def test_no_module_imports_itself_by_way_of_others() -> None:
    order = TopologicalSorter({name: imports(name, at_run_time=False) for name in MODULES})
    assert len(list(order.static_order())) == len(MODULES)  # a CycleError names the circle


@pytest.mark.parametrize(("module", "lines"), [("rekindle.views.trace", 7_100), ("rekindle.client.requests", 18_600)])
def test_what_users_hold_brings_no_engine_with_it(module: str, lines: int) -> None:
    reached = reach(module)
    rooms = {".".join(name.split(".")[1:3]) for name in reached}
    assert rooms & ENGINE == set()
    assert not any(room.startswith("assembly") for room in rooms)
    assert sum(len(MODULES[name].read_text(encoding="utf-8").splitlines()) for name in reached) < lines
