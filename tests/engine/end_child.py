"""A script that ends without closing its session: `python -m tests.engine.end_child SITUATION MODEL`."""

import asyncio
import io
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from anyio import to_thread

import rekindle
from rekindle.core.concurrency import threads
from rekindle.core.device.programs.lowering import Program, Programs
from rekindle.core.engine.actor import Actor, answers
from rekindle.core.engine.wiring import Actors
from rekindle.core.messages import Message
from rekindle.settings.engine import SettingsOptions
from tests.engine.restart_child import SETTINGS, asked
from tests.waiting import PATIENCE, until_blocking

LATE_SECONDS = 5.0
STEPS = 200
"""The steps of the computation that runs while the process ends: about a second on two cores."""

LAZY = SettingsOptions(precompile="lazy", restore="off")


class Late:
    """An object that is deleted when the interpreter has ended, and then gives threads time to come back into it."""

    def __init__(self) -> None:
        ours = ("rekindle-", "AnyIO")
        self._threads = [thread for thread in threading.enumerate() if thread.name.startswith(ours)]

    def __del__(self) -> None:
        for thread in self._threads:
            thread.join(LATE_SECONDS)


class Slow:
    """A settler that first lets XLA compute for about a second, in a worker thread."""

    def __init__(self, settler: Actor):
        self._settler = settler
        self.begun = threading.Event()
        program = jax.jit(lambda x: jax.lax.fori_loop(0, STEPS, lambda _, x: jnp.tanh(x @ x), x))
        self._program = program.lower(jnp.ones((512, 512))).compile()

    async def handle(self, message: Message) -> Iterable[Message]:
        """See `Settler.handle`."""
        await to_thread.run_sync(self._compute, abandon_on_cancel=True)
        return await answers(self._settler, message)

    def _compute(self) -> None:
        self.begun.set()
        self._program(jnp.ones((512, 512))).block_until_ready()


class Told(io.StringIO):
    """Standard error, which notes once something is said there."""

    def __init__(self) -> None:
        super().__init__()
        self.said = threading.Event()
        self._file = sys.stderr

    def write(self, text: str) -> int:
        """Write at once."""
        self._file.write(text)
        self._file.flush()
        self.said.set()
        return len(text)


def compile_until_it_is_said() -> None:
    """Let no compilation end before the process has said that it waits; from then on it waits as long as it takes."""
    compiled, told = Programs.compile, Told()
    sys.stderr = told

    def longer(*arguments: Any) -> Program:
        program = compiled(*arguments)
        assert told.said.wait(PATIENCE)
        threads.EXIT_SECONDS = threads.NOTICE_SECONDS = 100.0
        return program

    mock.patch.object(Programs, "compile", longer).start()


def busy(model: Path) -> rekindle.Session:
    """Open a session whose engine is waiting for XLA."""
    slow: list[Slow] = []

    def compose(actors: Actors) -> Actors:
        slow.append(Slow(actors.settler))
        return replace(actors, settler=slow[0])

    session = rekindle.open_sync(model, progress=False, compose=compose, **SETTINGS)
    session.submit(**asked(0))
    slow[0].begun.wait()
    return session


def too_late(session: rekindle.Session, model: Path) -> None:
    """Try what needs the whole interpreter once that has begun to end; print how and why each attempt fails."""
    threading.main_thread().join()
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: rekindle.open_sync(model, progress=False, **SETTINGS),
        "update_weights": lambda: session.update_weights_sync(model),
        "save": lambda: session.save_sync(progress=False),
    }
    for name, call in calls.items():
        try:
            call()
        except rekindle.RekindleError as error:
            why = "the process is ending" in str(error) and type(error.__cause__).__name__
            sys.stdout.write(f"{name}: {type(error).__name__} {why}\n")
    sys.stdout.write(f"generate: {session.generate_sync(**asked(1)).finish_reason}\n")
    session.close_sync()


if __name__ == "__main__":
    situation, model = sys.argv[1], Path(sys.argv[2])
    threads.EXIT_SECONDS = threads.NOTICE_SECONDS = 0.0 if situation == "while it compiles" else 100.0
    match situation:
        case "at once":
            session = rekindle.open_sync(model, progress=False, **SETTINGS)
        case "after an answer":
            session = rekindle.open_sync(model, progress=False, **SETTINGS)
            session.generate_sync(**asked(0))
        case "while requests run":
            session = busy(model)
        case "closed while requests run":
            session = busy(model)
            session.close_sync()
        case "after its loop":

            async def main() -> rekindle.Session:
                session = await rekindle.open(model, progress=False, **SETTINGS)
                session.submit(**asked(0, max_tokens=200))
                return session

            session = asyncio.run(main())
        case "by another thread":
            session = rekindle.open_sync(model, progress=False, **SETTINGS)
            session.generate_sync(**asked(0))
            threading.Thread(target=too_late, args=(session, model)).start()
        case "while it compiles":
            session = rekindle.open_sync(model, progress=False, **(SETTINGS | LAZY))
            compile_until_it_is_said()
            session.submit(**asked(0))
            until_blocking(lambda: threads.compiling, "a thread compiled")
        case "while it opens":

            async def leave() -> None:
                opening = asyncio.ensure_future(rekindle.open(model, progress=False, **SETTINGS).__aenter__())
                await asyncio.sleep(0)
                opening.cancel()

            asyncio.run(leave())
        case "by an error":
            session = busy(model)
            late = Late()
            sys.exit(3)
    late = Late()
