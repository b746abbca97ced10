"""An operation is written once, and offered twice: to be awaited, and to block. In `make test`."""

import ast
import inspect
from keyword import iskeyword
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.chats.chat import Chat
from rekindle.client.concurrency.twins import awaitable, blocking
from rekindle.core.concurrency.waits import Waits, Way, way
from rekindle.server.listening.running import Server

TWINS = [
    (owner, name)
    for owner in (rekindle, rekindle.Session, rekindle.Prefix, Chat, Server)
    for name in vars(owner)
    if name.endswith("_sync")
]


class Caller:
    @awaitable("await caller.wait(...)")
    def wait(self, first: int, *, second: str = "") -> Waits[Way]:
        """Wait."""
        return way()

    wait_sync = blocking(wait)


def test_no_blocking_twin_is_written_by_hand() -> None:
    assert len(TWINS) > 20
    for path in Path(rekindle.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "_sync(" in text else ():
            # A protocol declares twins, and writes none.
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.endswith("_sync"):
                assert ast.unparse(node.body[-1]) == "...", f"{path.name}:{node.lineno} writes a method twice"


@pytest.mark.parametrize(("owner", "name"), TWINS, ids=lambda each: getattr(each, "__name__", each))
def test_twins_take_the_same_arguments_and_have_names_and_words(owner: Any, name: str) -> None:
    single = name.removesuffix("_sync")
    twin, method = getattr(owner, name), getattr(owner, f"{single}_" if iskeyword(single) else single)
    assert inspect.signature(twin).parameters == inspect.signature(method).parameters
    assert twin.__doc__
    if twin is not method:
        assert twin.__qualname__ == f"{method.__qualname__.rstrip('_')}_sync"
        assert twin.__doc__.startswith(f"Run `{method.__name__}`, and block")


@pytest.mark.anyio
async def test_an_operation_knows_how_its_caller_waits() -> None:
    caller = Caller()
    assert await caller.wait(1) == "awaits"
    assert caller.wait_sync(1, second="") == "blocks"
    assert str(inspect.signature(Caller.wait)) == str(inspect.signature(Caller.wait_sync))
    assert inspect.signature(Caller.wait).return_annotation == Way


@pytest.mark.anyio
async def test_a_coroutine_that_was_not_awaited_says_how() -> None:
    coroutine = Caller().wait(1)
    assert "Caller.wait, to be awaited: `await caller.wait(...)`" in repr(coroutine)
    coroutine.close()
