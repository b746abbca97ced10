"""A session finds the valid pages and programs of earlier sessions with the same model, or none."""

import errno
import gc
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Unpack

import anyio
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import rekindle
from rekindle.assembly.programs.restore_report import part_label
from rekindle.core.buckets import Bucket
from rekindle.core.device.programs.functions import ALLOW, EMPTY, ENTER, GATHER, SCATTER, Key, program_name
from rekindle.core.device.programs.lowering import Program
from rekindle.core.device.programs.store import ProgramCatalog, ProgramStore
from rekindle.core.errors import UnsafeStorage
from rekindle.core.messages import SaveCache
from rekindle.core.store import entries as store_entries
from rekindle.core.store.catalog import Entry
from rekindle.core.store.snapshots import SnapshotCatalog
from rekindle.session.operations import engine as operations
from rekindle.settings.engine import SettingsOptions
from tests.engine.restart_child import (
    CACHED,
    PAGE,
    PAGES,
    PROGRAMS,
    SETTINGS,
    asked,
    open_session,
    serve,
    serve_until_killed,
    start,
    told,
)
from tests.waiting import PATIENCE, until

MOMENTS = [(1, 0.6), (2, 0.1), (3, 0.02), (3, 0.1), (4, 0.1), (5, 0.1), (6, 0.1)]
"""Moments to kill a process: (finished steps of `serve_until_killed`, the longest wait after the last one)."""
NUMBERS = [0, 1]
FAMILIES = pytest.mark.parametrize(
    "model",
    ["llama-tied", *(pytest.param(name, marks=pytest.mark.wide) for name in ("gpt2", "llama4", "gemma4-e"))],
    indirect=True,
)
"""Models with ropes, with learned positions, with attention in chunks, and with several kinds of pages."""
Answers = dict[int, tuple[int, ...]]


def all_told(*runs: tuple[BaseProcess, Connection]) -> list[dict[str, Any]]:
    """Return the reports of processes, and check their exits."""
    reports = []
    for process, connection in runs:
        (report,) = told(connection)
        process.join()
        assert process.exitcode == 0
        reports.append(json.loads(report))
    return reports


@pytest.fixture(scope="module", params=["llama-tied"])
def model(families: Path, request: pytest.FixtureRequest) -> Path:
    """Return the directory of a tiny model; tests with `FAMILIES` choose it by its name."""
    name: str = request.param
    return families / name


@pytest.fixture(scope="module")
def first_runs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Start two processes at once with an empty cache directory; return the directory and their reports."""
    cache = tmp_path_factory.mktemp("first") / "cache"
    return cache, all_told(*(start(serve, cache, model, NUMBERS) for _ in range(2)))


@pytest.fixture
def cache(first_runs: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a cache directory of the test's own, with all programs and no prefixes."""
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    shutil.copytree(first_runs[0] / "programs", directory / "programs")
    monkeypatch.setenv("REKINDLE_CACHE", str(directory))
    return directory


@pytest.fixture(scope="module")
def cold(model: Path, first_runs: tuple[Path, Any]) -> Answers:
    """Return the answers of a session that looks for no prefixes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REKINDLE_CACHE", str(first_runs[0]))
        return answers(model, range(8), prefix_cache=False)


def answers(model: Path, numbers: Iterable[int], **settings: Unpack[SettingsOptions]) -> Answers:
    """Return a new session's tokens for some requests."""
    with open_session(model, **settings) as session:
        return {number: session.generate_sync(**asked(number)).token_ids for number in numbers}


def ask(session: rekindle.Session, number: int, **options: Any) -> tuple[tuple[int, ...], int]:
    """Return the tokens of the answer and the number of cached tokens."""
    answer = session.generate_sync(**asked(number, **options))
    return answer.token_ids, answer.cached_tokens


def save_some(model: Path, numbers: Sequence[int] = NUMBERS, **settings: Unpack[SettingsOptions]) -> None:
    """Store the prefixes of some requests, in a session of its own, and let its work end."""
    with open_session(model, **settings) as session:
        for number in numbers:
            session.generate_sync(**asked(number))
        session.save_sync()
        session.precompiled_sync(progress=False)  # a program that is being loaded is marked as used after a close too


@contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """Record every warning of every thread."""
    with warnings.catch_warnings(record=True, action="always") as warned:
        yield warned


def files(directory: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of change of every file."""
    statuses = {str(path.relative_to(directory)): path.stat() for path in directory.rglob("*") if path.is_file()}
    return {name: (status.st_size, status.st_mtime_ns) for name, status in statuses.items()}


def programs(cache: Path, *keys: Key) -> list[Entry]:
    """Return the stored programs of some keys."""
    names = set(map(program_name, keys))
    return [entry for entry in ProgramCatalog(cache / "programs").entries() if entry.parts["program"] in names]


def lose(cache: Path, *keys: Key) -> None:
    """Take stored programs away."""
    for entry in programs(cache, *keys):
        shutil.rmtree(cache / "programs" / entry.digest)


def flip(directory: Path, chance: random.Random) -> None:
    """Change one bit of the largest file, except the seal."""
    file = max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


@pytest.mark.wide
def test_two_processes_that_begin_cold_at_once_are_right_and_leave_one_copy_of_everything(
    first_runs: tuple[Path, list[dict[str, Any]]], cold: Answers
) -> None:
    cache, reports = first_runs
    for report in reports:
        assert report["tokens"] == [list(cold[number]) for number in NUMBERS]
        assert report["loads"] + report["compilations"] == PROGRAMS
        assert report["jax_compiled"] >= report["compilations"], "the listener does not hear all"
        assert report["warnings"] == []
    assert sum(report["compilations"] for report in reports) >= PROGRAMS
    store = ProgramCatalog(cache / "programs")
    assert store.verify() == SnapshotCatalog(cache / "snapshots").verify() == {}
    assert len(store.entries()) == PROGRAMS


@FAMILIES
def test_a_later_process_compiles_nothing_and_finds_its_prefixes_on_disk(
    first_runs: tuple[Path, Any], model: Path, cold: Answers
) -> None:
    numbers = [*NUMBERS, 2]
    (report,) = all_told(start(serve, first_runs[0], model, numbers))
    assert (report["jax_compiled"], report["compilations"], report["loads"]) == (0, 0, PROGRAMS)
    assert report["tokens"] == [list(cold[number]) for number in numbers]
    assert report["cached"] == [CACHED, CACHED, 0]
    assert report["disk_hit_tokens"] == 2 * CACHED
    assert report["warnings"] == []
    restored = report["restored"]
    assert restored.pop("compile_seconds") > 0, "the store remembers what compiling took"
    spent = restored.pop("spent")
    assert list(spent) == ["files", "plan", "weights", "programs", "engine"]
    assert sum(spent.values()) == pytest.approx(restored["seconds"])
    assert restored.pop("cold_seconds") > restored.pop("seconds") > 0, "and what the cold start took"
    assert restored == {
        "stored": PROGRAMS,
        "programs": PROGRAMS,
        "compiled": 0,
        "nodes": 2 * PAGES,
        "tokens": 2 * CACHED,
        "differences": {},
        "states": 0,
        "weight_bytes": 0,
        "to_compile": 0,
    }
    assert f"{PROGRAMS} programs loaded, 0 compiled" in report["shown"]["text/plain"]
    assert f"{2 * PAGES} cached pages ({2 * CACHED} tokens) found" in report["shown"]["text/plain"]
    html = report["shown"]["text/html"]
    assert [label in html for label in ('aria-label="cold start: ', 'aria-label="this start: ')] == [True, True]


def test_a_warm_start_reads_what_is_stored_without_importing_orbax(
    first_runs: tuple[Path, Any], model: Path, cold: Answers
) -> None:
    code = """
import json, sys
from pathlib import Path
from tests.engine import restart_child
restart_child._use(Path(sys.argv[1]))
session = restart_child.open_session(Path(sys.argv[2]), disk_cache_bytes=1 << 30)
answer = session.generate_sync(**restart_child.asked(0))
imported = "orbax.checkpoint" in sys.modules
print(json.dumps([answer.token_ids, answer.cached_tokens, session.stats.compilations, imported]))
"""
    command = [sys.executable, "-c", code, str(first_runs[0]), str(model)]
    reply = json.loads(subprocess.check_output(command, text=True, timeout=PATIENCE, cwd=Path(__file__).parents[2]))
    assert reply == [list(cold[0]), CACHED, 0, False]


def test_open_tells_what_came_back_where_it_draws_progress(
    cache: Path, model: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def messages() -> list[str]:
        lines = [line for line in caplog.messages if line.startswith(f"{model}: ")]
        caplog.clear()
        return lines

    caplog.set_level(logging.INFO, "rekindle")
    with open_session(model):
        assert messages() == []
    with rekindle.open_sync(model, **SETTINGS):
        (line,) = messages()
        assert re.search(rf": {PROGRAMS} .*, 0 compiled; .*; saved .* of compiling$", line)
    with rekindle.open_sync(model, **(SETTINGS | {"restore": "off", "precompile": "lazy"})):
        (line,) = messages()
        assert ": 0 programs loaded" in line
    with rekindle.open_sync(model, progress=False, show_restored=True, **SETTINGS):
        assert f": {PROGRAMS} " in messages()[0]
    assert capsys.readouterr().err == ""


@FAMILIES
def test_goldens_come_from_a_warm_session_too(cache: Path, model: Path) -> None:
    golden = np.load(model / "golden.npz")
    prompt, new = golden["greedy_prompt"].tolist(), golden["greedy_new"].tolist()
    settings: SettingsOptions = {"restore": "require", "precompile": "all"}
    in_pages = (len(prompt) - 1) // PAGE * PAGE
    assert in_pages > 0
    for cached in (0, in_pages):
        with open_session(model, **settings) as session:
            answer = session.generate_sync(token_ids=prompt, max_tokens=len(new), ignore_eos=True)
            assert (list(answer.token_ids), answer.cached_tokens) == (new, cached)
            session.save_sync()


def test_a_closed_session_holds_no_program_and_leaves_none_to_the_collector(cache: Path, model: Path) -> None:
    """Check it, as the code of a program has mappings of memory, and too many mappings end the process."""
    client = jax.devices()[0].client
    gc.collect()
    gc.disable()
    before = len(client.live_executables())
    try:
        with open_session(model) as session:
            ask(session, 0)
            session.precompiled_sync(progress=False)
            assert len(client.live_executables()) >= before + PROGRAMS
        assert len(client.live_executables()) == before
        assert session.stats.programs == 0
    finally:
        gc.enable()


@pytest.mark.wide
def test_restore_off_neither_reads_nor_writes(cache: Path, model: Path, cold: Answers) -> None:
    save_some(model)
    before = files(cache)
    with open_session(model, restore="off", precompile="lazy") as session:
        for number in (0, 2):
            assert ask(session, number, max_tokens=1) == (cold[number][:1], 0)
        with pytest.raises(rekindle.StorageError, match='restore="auto"'):
            session.save_sync()
        restored = session.restored
        assert (restored.programs, restored.nodes, restored.tokens) == (0, 0, 0)
        assert restored.compiled > 0
    assert files(cache) == before


def test_restore_require_opens_where_everything_is_there(cache: Path, model: Path, cold: Answers) -> None:
    with open_session(model, restore="require", precompile="all") as session:
        assert (session.stats.compilations, session.stats.loads) == (0, PROGRAMS)
        assert ask(session, 0) == (cold[0], 0)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"page_size": 32}, "page_size"),
        ({"num_pages": 33}, "num_pages"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"kv_dtype": "int8"}, "int8"),
        ({"prefill_buckets": (32, 64)}, "step of 32"),
    ],
)
def test_restore_require_says_which_part_of_the_key_differs(
    settings: SettingsOptions, part: str, cache: Path, model: Path
) -> None:
    before = files(cache)
    with pytest.raises(rekindle.NotRestored, match=part):
        open_session(model, **(settings | {"restore": "require"}))
    assert files(cache) == before


def test_restore_require_does_not_open_on_an_empty_cache(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "empty"))
    with pytest.raises(rekindle.NotRestored, match=f"{PROGRAMS} of {PROGRAMS} are not there"):
        open_session(model, restore="require")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("part", "settings"),
    [("page_size", {"page_size": 32}), ("numbers", {"dtype": "bfloat16"}), ("page", {"kv_dtype": "int8"})],
)
def test_pages_of_another_kind_are_not_used_and_said_so_once(
    part: str, settings: SettingsOptions, cache: Path, model: Path
) -> None:
    save_some(model)
    lazy: SettingsOptions = settings | {"precompile": "lazy"}
    expected = answers(model, NUMBERS, **(lazy | {"prefix_cache": False}))
    with recorded() as warned, open_session(model, **lazy) as session:
        assert [ask(session, number) for number in NUMBERS] == [(expected[number], 0) for number in NUMBERS]
        assert session.restored.nodes == 0
        session.save_sync()
        assert part in session.restored.differences
    assert [part_label(part) in str(each.message).partition("differ in ")[2] for each in warned] == [True]
    with open_session(model, **lazy) as session:  # there is no warning, because it has pages of its own now
        assert [ask(session, number) for number in NUMBERS] == [(expected[number], CACHED) for number in NUMBERS]
    with open_session(model) as session:
        assert session.restored.nodes == len(NUMBERS) * PAGES, "others took its place"


@pytest.mark.wide
def test_pages_of_other_weights_are_not_used_and_said_so_once(
    cache: Path, model: Path, cold: Answers, tmp_path: Path
) -> None:
    ours = tmp_path / "model"
    shutil.copytree(model, ours)
    save_some(ours)
    chance = np.random.default_rng(5)
    tensors = load_file(model / "model.safetensors")
    for name, tensor in tensors.items():
        if "norm" not in name:
            tensors[name] = chance.permutation(tensor.ravel()).reshape(tensor.shape)
    save_file(tensors, ours / "model.safetensors")
    expected = answers(ours, NUMBERS, prefix_cache=False)
    assert all(expected[number] != cold[number] for number in NUMBERS)
    with recorded() as warned, open_session(ours) as session:
        assert [ask(session, number) for number in NUMBERS] == [(expected[number], 0) for number in NUMBERS]
        assert (session.restored.nodes, session.restored.compiled) == (0, 0)
        assert list(session.restored.differences) == ["weights"]
    assert ["differ in weights (the content of the weight files" in str(each.message) for each in warned] == [True]


def test_save_writes_what_is_new_and_says_how_much(cache: Path, model: Path) -> None:
    with open_session(model) as session:
        session.pause_sync()  # or the request might end, and an idle moment come, before it is told to save
        running = session.submit(**asked(0) | {"max_tokens": 50})
        while not running.record.pieces.items:
            session.step_sync()
        assert anyio.run(save_and_resume, session) >= PAGES, "while it runs, nothing is saved in idle moments"
        assert len(running.result().token_ids) == 50
        session.save_sync()
        counts = session.stats.scheduler
        assert counts.disk_pages == counts.cached_pages == (CACHED + 5 + 49) // PAGE
        before = files(cache)
        assert session.save_sync() == 0
        session.generate_sync(**asked(0))
        assert session.save_sync() == 0
        changes = {name for name, status in files(cache).items() if before.get(name) != status}
        assert all(name.endswith(store_entries.SEAL) for name in changes), "more than the time of the last use"
    with open_session(model) as session:
        assert session.restored.nodes == (CACHED + 5 + 49) // PAGE
        assert session.save_sync() == 0


async def save_and_resume(session: rekindle.Session) -> int:
    """Save, and resume a paused engine as soon as the message is under way."""
    saved = []

    async def save() -> None:
        saved.append(await session.save())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(save)
        await until(
            lambda: any(isinstance(each, SaveCache) for each in session.pending["scheduler"]),
            "the scheduler was to hear that it saves",
        )
        session.resume()
    return saved[0]


@pytest.mark.wide
def test_nothing_of_new_weights_is_saved(cache: Path, model: Path, cold: Answers) -> None:
    tensors = load_file(model / "model.safetensors")
    others = {name: tensor * 1.5 if "q_proj" in name else tensor for name, tensor in tensors.items()}
    with open_session(model) as session:
        assert ask(session, 0) == (cold[0], 0)
        session.save_sync()
        session.update_weights_sync(others)
        for number in (0, 1):
            assert ask(session, number)[1] == 0
        with pytest.raises(rekindle.StorageError, match="update_weights"):
            session.save_sync()
    with open_session(model) as session:
        assert session.restored.nodes == PAGES
        assert [ask(session, number) for number in (0, 1)] == [(cold[0], CACHED), (cold[1], 0)]


@pytest.mark.wide
def test_namespaces_are_kept_apart(cache: Path, model: Path, cold: Answers) -> None:
    with open_session(model) as session:
        assert ask(session, 0, cache_salt="ours") == (cold[0], 0)
        assert ask(session, 2) == (cold[2], 0)
        session.save_sync()
    with open_session(model) as session:
        assert ask(session, 0, cache_salt="theirs") == (cold[0], 0)
        assert ask(session, 0) == (cold[0], 0)
        assert ask(session, 0, cache_salt="ours") == (cold[0], CACHED)
        assert ask(session, 2, cache_salt="ours") == (cold[2], 0)
        assert ask(session, 2) == (cold[2], CACHED)


@pytest.mark.wide
def test_the_directory_stays_within_its_bound_and_the_latest_pages_stay(
    cache: Path, model: Path, cold: Answers
) -> None:
    """Give room for three prompts; a page takes 12 KiB."""
    bound = 200_000

    def stored_pages() -> int:
        (snapshot,) = SnapshotCatalog(cache / "snapshots").entries()
        assert sum(size for size, _ in files(cache / "snapshots").values()) == snapshot.bytes <= bound
        return snapshot.pages

    with open_session(model, disk_cache_bytes=bound) as session:
        for number in range(8):
            assert ask(session, number) == (cold[number], 0)
            anyio.run(save_in_time, session)
            assert session.stats.scheduler.disk_pages == stored_pages()
        assert stored_pages() == 3 * PAGES
        assert anyio.run(save_in_time, session) == 0
    with open_session(model, disk_cache_bytes=bound) as session:
        assert session.restored.nodes == 3 * PAGES
        for number, cached in ((7, CACHED), (6, CACHED), (5, CACHED), (4, 0)):
            assert ask(session, number) == (cold[number], cached)


async def save_in_time(session: rekindle.Session) -> int:
    """Save in time. It would never end if pages that leave the disk for new ones were written again."""
    with anyio.fail_after(PATIENCE):
        return await session.save()


@pytest.mark.parametrize("place", ["", "programs", "snapshots"])
def test_a_cache_that_others_can_write_to_is_refused(place: str, cache: Path, model: Path) -> None:
    save_some(model)
    (cache / place).chmod(0o777)
    with pytest.raises(UnsafeStorage, match=r"writable by others \(mode 0777\).*chmod .*go-w"):
        open_session(model)


def test_an_empty_store_that_others_can_write_to_is_refused_too(cache: Path, model: Path) -> None:
    """Check the refusal, which comes before any compilation."""
    shutil.rmtree(cache / "programs")
    (cache / "programs").mkdir()
    (cache / "programs").chmod(0o777)
    with pytest.raises(UnsafeStorage, match=r"writable by others \(mode 0777\).*chmod .*go-w"):
        anyio.run(open_in_time, model)


async def open_in_time(model: Path) -> None:
    with anyio.fail_after(PATIENCE):
        async with rekindle.open(model, progress=False, **SETTINGS):
            pass


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
def test_a_cache_that_cannot_be_written_to_costs_one_warning_for_each_store(
    error: int, cache: Path, model: Path, cold: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(cache, GATHER)

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(store_entries, "new_entry", fail)
    with recorded() as warned, open_session(model) as session:
        for number in NUMBERS:
            assert ask(session, number) == (cold[number], 0)
        session.precompiled_sync(progress=False)
        with pytest.raises(rekindle.StorageError, match="could not be"):
            session.save_sync()
        assert session.stats.scheduler.disk_pages == 0
        assert ask(session, 0) == (cold[0], CACHED)
    messages = sorted(str(each.message).partition(" to ")[0] for each in warned)
    assert messages == ["compiled programs cannot be saved", "pages cannot be saved"]
    assert all(os.strerror(error) in str(each.message) for each in warned)


def test_a_cache_directory_that_cannot_be_made_costs_one_warning(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "file" / "cache"))
    with recorded() as warned, open_session(model, precompile="lazy") as session:
        assert session.restored.nodes == 0
    assert ["nothing is restored" in str(each.message) for each in warned] == [True]


def test_damaged_files_cost_warnings_and_are_made_again(cache: Path, model: Path, cold: Answers) -> None:
    save_some(model)
    chance, damaged = random.Random(0), programs(cache, GATHER, ENTER)
    for entry in damaged:
        flip(cache / "programs" / entry.digest, chance)
    (snapshot,) = (cache / "snapshots").iterdir()
    for segment in snapshot.iterdir():
        flip(segment, chance)
    with recorded() as warned, open_session(model) as session:
        for number in NUMBERS:
            assert ask(session, number) == (cold[number], 0)
        session.precompiled_sync(progress=False)
        assert (session.stats.compilations, session.stats.loads) == (len(damaged), PROGRAMS - len(damaged))
        session.save_sync()
    messages = [str(each.message) for each in warned]
    assert all("they are dropped and will be created again" in each for each in messages)
    assert sum("the compiled programs in" in each for each in messages) == len(damaged) == 2
    assert sum("the pages in" in each for each in messages) == len(messages) - 2 > 0
    with open_session(model, restore="require", precompile="all") as session:
        assert [ask(session, number) for number in NUMBERS] == [(cold[number], CACHED) for number in NUMBERS]
        assert session.stats.compilations == 0


@pytest.mark.wide
def test_a_damaged_program_that_takes_pages_with_it_is_made_anew_and_answers_are_the_same(
    cache: Path, model: Path, cold: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    donated = {Bucket(64, 0): 3, Bucket(0, 2): 3, SCATTER: 1, ENTER: 1}  # how many of the first arguments
    banned, load, broken = {"logit_bias": {511: -100}}, ProgramStore.load, set[Key]()
    with open_session(model) as session:
        adjusted = ask(session, 2, **banned)[0]
        ask(session, 1)
        session.save_sync()
        session.precompiled_sync(progress=False)  # so that only the next session loads what breaks

    def breaking(store: ProgramStore, key: Key) -> Program | None:
        program = load(store, key)
        if program is None or key not in donated or key in broken:
            return program
        broken.add(key)

        def fail(*arguments: Any) -> Any:
            for array in jax.tree.leaves(arguments[: donated[key]][-2:]):
                array.delete()
            raise jax.errors.JaxRuntimeError("INTERNAL: Function not found")

        return fail

    monkeypatch.setattr(ProgramStore, "load", breaking)
    with recorded() as warned, open_session(model) as session:
        handles = [session.submit(**asked(number)) for number in (0, 1)]
        handles.append(session.submit(**asked(2, **banned)))
        results = [handle.result() for handle in handles]
        assert [answer.token_ids for answer in results] == [cold[0], cold[1], adjusted]
        assert session.stats.scheduler.device_losses == len(donated)
        session.precompiled_sync(progress=False)
        assert (session.stats.compilations, session.stats.unexpected_compilations) == (len(donated), 0)
    messages = [str(each.message) for each in warned]
    assert sum("Function not found" in each for each in messages) == len(messages) == len(donated)
    with open_session(model, restore="require", precompile="all") as session:
        assert session.stats.compilations == 0


@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 8), *(pytest.param(seed, 30, marks=pytest.mark.deep) for seed in range(1, 11))]
)
def test_whatever_a_kill_interrupts_the_next_session_is_right_and_has_all_that_was_saved(
    seed: int, kills: int, cache: Path, model: Path
) -> None:
    """Kill a process a moment after one of its first steps; in every fourth run it also stores programs."""
    chance, saved, first = random.Random(seed), 0, 0
    with open_session(model, prefix_cache=False, restore="require", precompile="all") as plain:
        for kill in range(kills):
            if kill % 4 == 0:
                lose(cache, EMPTY, GATHER)
            done = killed(cache, model, first, *chance.choice(MOMENTS), chance)
            saved += len(done)
            with warnings.catch_warnings(action="error"), open_session(model) as session:
                assert session.restored.nodes >= saved * PAGES
                for number in done:
                    assert ask(session, number) == (ask(plain, number)[0], CACHED)
                first += len(done)
                assert ask(session, first)[0] == ask(plain, first)[0], "what it was at"
                session.precompiled_sync(progress=False)
            first += 1
    assert kills / 4 < saved, "hardly any had saved anything"
    assert ProgramCatalog(cache / "programs").verify() == SnapshotCatalog(cache / "snapshots").verify() == {}


def killed(cache: Path, model: Path, first: int, steps: int, longest: float, chance: random.Random) -> list[int]:
    """Run a process from a number on, and kill it; return the numbers that it reported as saved."""
    process, connection = start(serve_until_killed, cache, model, first)
    reports = told(connection)
    steps_done = [next(reports) for _ in range(steps)]
    process.join(chance.uniform(0, longest))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, "it had ended by itself"
    return [step for step in (*steps_done, *reports) if isinstance(step, int)]


@pytest.mark.wide
def test_a_process_that_ends_while_it_reads_says_nothing_and_drops_nothing(cache: Path, model: Path) -> None:
    save_some(model)
    command = [sys.executable, "-m", "tests.engine.restart_child", str(cache), str(model)]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=root)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    with open_session(model, restore="require", precompile="all") as session:
        assert session.stats.compilations == 0
        assert ask(session, 0)[1] == CACHED


def test_what_was_answered_is_stored_when_the_session_is_closed_at_once(
    cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "CLOSE_SECONDS", 100.0)  # however slow the disk is
    with open_session(model) as session:
        assert ask(session, 0)[1] == 0
    with open_session(model) as session:
        assert ask(session, 0)[1] == CACHED


def test_a_store_that_becomes_unsafe_while_it_is_used_costs_the_store_alone(
    cache: Path, model: Path, cold: Answers
) -> None:
    with open_session(model) as session:
        assert ask(session, 0) == (cold[0], 0)
        session.save_sync()
        (cache / "snapshots").chmod(0o777)
        with recorded() as warned:
            assert ask(session, 1) == (cold[1], 0)
            with pytest.raises(rekindle.StorageError, match="could not be"):
                session.save_sync()
            assert ask(session, 1) == (cold[1], CACHED)
    assert ["writable by others" in str(each.message) for each in warned] == [True]


@pytest.mark.wide
def test_programs_that_become_unsafe_while_a_session_is_open_are_compiled_and_not_loaded(
    cache: Path, model: Path, cold: Answers
) -> None:
    with open_session(model, precompile="lazy") as session:
        for entry in programs(cache, ENTER, Bucket(0, 2)):
            (cache / "programs" / entry.digest).chmod(0o777)
        with recorded() as warned:
            assert ask(session, 1) == (cold[1], 0)
            assert ask(session, 2, logit_bias={7: -100})[1] == 0
        assert session.stats.compilations >= 2
    assert ["no longer loaded or saved" in str(each.message) for each in warned] == [True]
    with pytest.raises(UnsafeStorage, match=r"writable by others \(mode 0777\).*chmod .*go-w"):
        open_session(model, precompile="lazy")


def test_in_the_background_a_first_answer_waits_for_two_steps_alone(
    cache: Path, model: Path, cold: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest, gate, load = (GATHER, SCATTER, ENTER, ALLOW), threading.Event(), ProgramStore.load

    def gated(store: ProgramStore, key: Key) -> Program | None:
        assert key not in rest or gate.wait(PATIENCE)
        return load(store, key)

    monkeypatch.setattr(ProgramStore, "load", gated)
    with open_session(model) as session:
        assert ask(session, 0) == (cold[0], 0)
        assert session.stats.loads == PROGRAMS - len(rest)
        waiting = threading.Thread(target=session.precompiled_sync, kwargs={"progress": False})
        waiting.start()
        gate.set()
        waiting.join()
        assert (session.stats.loads, session.stats.compilations) == (PROGRAMS, 0)


@pytest.mark.wide
def test_a_bucket_that_is_not_ready_is_served_by_a_larger_one(
    cache: Path, model: Path, cold: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, load = threading.Event(), ProgramStore.load

    def gated(store: ProgramStore, key: Key) -> Program | None:
        assert key != Bucket(16, 0) or gate.wait(PATIENCE)
        return load(store, key)

    monkeypatch.setattr(ProgramStore, "load", gated)
    with open_session(model, prefill_buckets=(16, 64)) as session:
        assert ask(session, 0) == (cold[0], 0)
        assert session.generate_sync(token_ids=[1, 2, 3], max_tokens=1).token_ids
        assert session.stats.programs < PROGRAMS + 1
        gate.set()
        session.precompiled_sync(progress=False)
        assert ask(session, 1) == (cold[1], 0)
        assert (session.stats.programs, session.stats.unexpected_compilations) == (PROGRAMS + 1, 0)


def test_all_waits_for_all_and_lazy_for_none(cache: Path, model: Path, cold: Answers) -> None:
    with open_session(model, precompile="all") as session:
        assert session.stats.loads == PROGRAMS
    with open_session(model, precompile="lazy", disk_cache_bytes=0) as session:  # or it would copy pages when idle
        assert session.stats.loads == 1, "the program that makes the empty state"
        assert ask(session, 0) == (cold[0], 0)
        assert session.stats.loads == 3
        session.precompiled_sync(progress=False)
        assert session.stats.loads == 3
        ask(session, 0, repetition_penalty=1.1)
        assert (session.stats.loads, session.stats.compilations) == (4, 0)
