"""Open sessions in other processes, to restart or kill them. The script itself ends while it reads a store."""

import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Unpack
from unittest import mock

import jax
import numpy as np

import rekindle
from rekindle.core.concurrency import threads
from rekindle.core.device.programs.functions import ALLOW, ENTER, GATHER, SCATTER, Key
from rekindle.core.device.programs.lowering import Program
from rekindle.core.device.programs.store import ProgramStore
from rekindle.core.store.snapshot_store import SnapshotStore
from rekindle.settings.engine import SettingsOptions
from tests.compilations import COMPILED, listen
from tests.waiting import PATIENCE

PAGE = 16
PAGES = 4
CACHED = PAGES * PAGE
"""The number of a prompt's tokens that lie in whole pages."""
NEW = 8
"""The number of tokens of an answer: too few for another whole page."""
PROGRAMS = 7
SETTINGS: SettingsOptions = {
    "page_size": PAGE,
    "num_pages": 65,
    "max_context": 256,
    "max_running": 2,
    "max_prefill_tokens": 64,
    "prefill_buckets": (64,),
    "decode_buckets": (2,),
}
"""Settings with one prefill and one decode bucket. With four other programs, these are `PROGRAMS`."""


def asked(number: int, **options: Any) -> dict[str, Any]:
    """Make a request whose prompt begins like no other number's. Even numbers are greedy, odd ones have a seed."""
    prompt = np.random.default_rng(number).integers(3, 512, CACHED + 5).tolist()
    drawn = {"temperature": 0.9, "top_p": 0.95, "seed": number} if number % 2 else {}
    return {"token_ids": prompt, "max_tokens": NEW, "ignore_eos": True, **drawn, **options}


def open_session(model: Path, **settings: Unpack[SettingsOptions]) -> rekindle.Session:
    """Open a session with `SETTINGS`, but for the settings that are given."""
    return rekindle.open_sync(model, progress=False, **(SETTINGS | settings))


def start(work: Callable[..., None], *arguments: object) -> tuple[BaseProcess, Connection]:
    """Run a function of this file in a fresh process, which reports what it does until it ends."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["rekindle.session.session", "orbax.checkpoint"])
    ours, theirs = Pipe(duplex=False)
    process = context.Process(target=work, args=(*arguments, theirs))
    process.start()
    theirs.close()
    return process, ours


def told(connection: Connection) -> Iterator[Any]:
    """Yield what a process reports until it ends."""
    while True:
        try:
            yield connection.recv()
        except EOFError:
            return


def serve(cache: Path, model: Path, numbers: list[int], tell: Connection) -> None:
    """Open, answer, and wait until everything is stored; report once."""
    _use(cache)
    compilations = listen()
    with warnings.catch_warnings(record=True, action="always") as warned, open_session(model) as session:
        answers = [session.generate_sync(**asked(number)) for number in numbers]
        session.precompiled_sync(progress=False)
        session.save_sync()
        report = {
            "tokens": [list(answer.token_ids) for answer in answers],
            "cached": [answer.cached_tokens for answer in answers],
            "jax_compiled": compilations.count(COMPILED),
            "loads": session.stats.loads,
            "compilations": session.stats.compilations,
            "disk_hit_tokens": session.stats.scheduler.disk_hit_tokens,
            "disk_pages": session.stats.scheduler.disk_pages,
            "restored": asdict(session.restored),
            "shown": session.restored._repr_mimebundle_(),
        }
    tell.send(json.dumps(report | {"warnings": [str(each.message) for each in warned]}))


def serve_until_killed(cache: Path, model: Path, first: int, tell: Connection) -> None:
    """Open, answer and save, then go on with the next number; report every step when it is done."""
    _use(cache)
    warnings.simplefilter("error")
    tell.send("began")
    with open_session(model) as session:
        tell.send("opened")
        for number in range(first, first + 10_000):
            session.generate_sync(**asked(number))
            tell.send("answered")
            session.save_sync()
            tell.send(number)


def _use(cache: Path) -> None:
    os.environ["REKINDLE_CACHE"] = str(cache)
    jax.config.update("jax_numpy_dtype_promotion", "strict")  # as in conftest.py; it is part of the key


def end_while_reading(model: Path) -> None:
    """End without closing while programs and pages are about to be read, in the background and for a request.

    The interpreter first ends executors, and then waits for threads.
    """
    ending, reading = threading.Event(), threading.Event()
    load, read = ProgramStore.load, SnapshotStore.read

    def load_late(store: ProgramStore, key: Key) -> Program | None:
        assert key not in (GATHER, SCATTER, ENTER, ALLOW) or ending.wait(PATIENCE)
        return load(store, key)

    def read_late(store: SnapshotStore, records: Sequence[int]) -> list[Any]:
        reading.set()
        assert ending.wait(PATIENCE)
        return read(store, records)

    mock.patch.object(ProgramStore, "load", load_late).start()
    mock.patch.object(SnapshotStore, "read", read_late).start()
    threads.EXIT_SECONDS = threads.NOTICE_SECONDS = 100.0  # however slow the disk is
    session = open_session(model)
    session.submit(**asked(0))
    assert reading.wait(PATIENCE)
    sys.setswitchinterval(2)  # so no other thread runs before this one waits for it
    ending.set()


if __name__ == "__main__":
    _use(Path(sys.argv[1]))
    end_while_reading(Path(sys.argv[2]))
