"""A stored program comes back as it was, or not at all, and no damage to the store makes its users fail."""

import errno
import json
import os
import pickle
import random
import shutil
import signal
import stat
import tempfile
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.serialize_executable import serialize

from rekindle.assembly.weights.load import load_decoder
from rekindle.core.buckets import Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.programs.functions import Key
from rekindle.core.device.programs.key import ProgramKey
from rekindle.core.device.programs.store import ProgramCatalog, ProgramStore, Serialized
from rekindle.core.device.state import empty_pages, empty_slots
from rekindle.core.device.step import step
from rekindle.core.errors import StorageError
from rekindle.core.store import entries as store_entries
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.unit.bad_disks import EVERY_CALL, EVERY_PROBLEM, failing, filling_up
from tests.unit.flushes import watched
from tests.unit.stored_programs import (
    in_other_processes,
    model_key,
    multiplies,
    nth,
    open_programs,
    run_stored_step,
    save_as,
    save_until_killed,
    serialized,
    share,
    small_program,
    some_key,
    use_each_of_two_devices,
)

HERE = jax.devices()[:1]


@pytest.fixture(scope="module")
def program() -> Serialized:
    return serialized()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "programs"


@pytest.fixture
def entry(directory: Path, program: Serialized) -> Path:
    """Save a program as `some_key(0)`; return its entry."""
    assert open_programs(directory).save(nth(0), program)
    return directory / some_key(0).digest


def loads(directory: Path, number: int) -> bool:
    """Return True if a fresh store has a program, and check the program by a call."""
    loaded = open_programs(directory).load(nth(number))
    assert loaded is None or multiplies(loaded)
    return loaded is not None


def stored(directory: Path) -> set[str]:
    return {entry.digest for entry in ProgramCatalog(directory).entries()}


def digests(*numbers: int) -> set[str]:
    return {some_key(number).digest for number in numbers}


def test_a_program_comes_back(directory: Path, program: Serialized) -> None:
    store, before = open_programs(directory), time.time()
    assert store.load(nth(0)) is None
    assert store.save(nth(0), program)
    assert store.save(nth(0), program), "it is stored already"
    assert loads(directory, 0)
    assert not loads(directory, 1)
    (record,) = ProgramCatalog(directory).entries()
    assert (record.digest, record.parts) == (some_key(0).digest, some_key(0).parts())
    assert before <= record.created <= record.used <= time.time()
    assert record.bytes == sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    assert ProgramCatalog(directory).verify() == {}


def test_a_store_knows_how_long_the_programs_took_that_it_has(directory: Path) -> None:
    store, compiled = open_programs(directory), small_program()
    timed, untimed = store.serialize(compiled, 2.5), store.serialize(compiled)
    assert timed is not None
    assert untimed is not None
    assert all((store.save(nth(0), timed), store.save(nth(1), untimed)))
    assert open_programs(directory).compile_seconds([nth(2), nth(1), nth(0)]) == {nth(1): None, nth(0): 2.5}


@pytest.mark.wide
def test_a_step_from_the_store_is_the_compiled_one_in_a_process_that_compiles_nothing(
    families: Path, directory: Path, tmp_path: Path
) -> None:
    """Compare bit by bit, with the same donations, and from several threads at once."""
    checkpoint, bucket, dtype = open_checkpoint(families / "llama-tied"), Bucket(16, 2), jnp.dtype("float32")
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, dtype)
    graph, state = nnx.split(decoder)
    weights, treedef = jax.tree.flatten(state)
    pages = empty_pages(checkpoint.config, 9, 16, dtype, "xla")
    slots = empty_slots(2, 4, checkpoint.config.vocab_size)
    packed = InputLayout.of(bucket, slots).padding()
    inputs = InputLayout.of(bucket, slots).unpack(packed)
    inputs.tokens[:], inputs.block_slot[:], inputs.block_page[:] = np.arange(7, 23), 0, 1
    inputs.block_count[:] = 16
    inputs.sample_index[:], inputs.sample_slot[:], inputs.sample_length[:], inputs.chunk_slot[:] = 15, 0, 16, 0
    inputs.chunk_table[:, 0] = 1

    def run(weights: Any, pages: Any, slots: Any, packed: Any) -> Any:
        decoder = nnx.merge(graph, jax.tree.unflatten(treedef, weights))
        return step(decoder, pages, slots, packed, bucket, 2)

    arguments = (weights, pages, slots, packed)
    np.savez(tmp_path / "inputs.npz", *map(np.array, jax.tree.leaves(arguments)))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    compiled = jax.jit(run, donate_argnames=("pages", "slots")).lower(*shapes).compile()
    save_as(directory, model_key(checkpoint.config, shapes), serialized(compiled))

    outputs = tmp_path / "outputs.npz"
    ended = in_other_processes(
        1, run_stored_step, directory, checkpoint.config, shapes, tmp_path / "inputs.npz", outputs
    )
    assert ended == [0]
    expected = jax.tree.leaves(compiled(weights, pages, slots, packed))
    assert any(np.asarray(leaf).any() for leaf in expected)
    with np.load(outputs) as came:
        for place, leaf in enumerate(expected):
            np.testing.assert_array_equal(came[f"arr_{place}"], np.asarray(leaf))
    report = json.loads(outputs.with_suffix(".json").read_text())
    assert report["compilations"] == []
    assert report["same_in_threads"]
    assert report["donated"] == [leaf.is_deleted() for leaf in jax.tree.leaves((weights, pages, slots))]
    assert report["donated"].count(True) == len(jax.tree.leaves((pages, slots)))


def test_a_program_for_one_of_several_devices_comes_back_for_that_one(directory: Path) -> None:
    assert in_other_processes(1, use_each_of_two_devices, directory) == [0]


def damage(entry: Path, chance: random.Random) -> None:
    """Change one file of an entry, in one of the usual ways of damage."""
    files = sorted(path for path in entry.rglob("*") if path.is_file())
    path = chance.choice(files)
    content = bytearray(path.read_bytes())
    match chance.randrange(6):
        case 0:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        case 1:
            del content[chance.randrange(len(content)) :]
        case 2:
            content += chance.randbytes(chance.randint(1, 99))
        case 3:
            content = bytearray(chance.randbytes(len(content)))
        case 4:
            path.unlink()
            path = path.with_name("foreign")
        case 5:
            other = chance.choice([file for file in files if file.read_bytes() != content])
            content = bytearray(other.read_bytes())
    path.write_bytes(content)


@pytest.mark.parametrize("times", [200, pytest.param(2000, marks=pytest.mark.deep)])
def test_a_damaged_entry_is_dropped_with_one_warning_before_anything_is_made_of_it(
    times: int, entry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, store = random.Random(0), open_programs(entry.parent)
    whole = entry.rename(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(store_entries, "arrays_of", lambda *_: pytest.fail("a damaged entry was read"))
        for _ in range(times):
            shutil.copytree(whole, entry)
            damage(entry, chance)
            assert ProgramCatalog(entry.parent).verify().keys() == {entry}
            with pytest.warns(RuntimeWarning, match="cannot be used") as warned:
                assert store.load(nth(0)) is None
            assert len(warned) == 1
            assert list(entry.parent.iterdir()) == []
    shutil.copytree(whole, entry)
    assert loads(entry.parent, 0)


def test_a_description_that_still_reads_well_but_is_not_as_it_was_written_is_dropped(entry: Path) -> None:
    seal = (entry / "seal.json").read_text()
    (entry / "seal.json").write_text(seal.replace('"created": 1', '"created": 2'))
    assert ProgramCatalog(entry.parent).entries() == []
    with pytest.warns(RuntimeWarning, match=r"seal\.json is not as it was written"):
        assert not loads(entry.parent, 0)


@pytest.mark.parametrize("kind", ["file", "link", "empty directory", "another program"])
def test_something_else_under_the_name_of_an_entry_is_dropped(
    kind: str, entry: Path, tmp_path: Path, program: Serialized
) -> None:
    other = entry.with_name(some_key(1).digest)
    match kind:
        case "file":
            other.write_text("not a directory")
        case "link":
            other.symlink_to(shutil.copytree(entry, tmp_path / "elsewhere"))
        case "empty directory":
            other.mkdir()
        case "another program":
            shutil.copytree(entry, other)
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert not loads(entry.parent, 1)
    assert not os.path.lexists(other)
    assert kind != "link" or (tmp_path / "elsewhere").is_dir(), "what a link leads to is left alone"
    assert open_programs(entry.parent).save(nth(1), program)
    assert loads(entry.parent, 1)


def without_code(directory: Path) -> Serialized:
    """Serialize a loaded program: XLA then leaves its code away, as with programs from JAX's own cache."""
    assert open_programs(directory).save(nth(0), serialized())
    loaded = cast(jax.stages.Compiled, open_programs(directory).load(nth(0)))
    payload, in_tree, out_tree = serialize(loaded)
    trees = pickle.dumps((in_tree, out_tree))
    return Serialized({"program": np.frombuffer(payload, np.uint8), "trees": np.frombuffer(trees, np.uint8)}, None)


def test_a_program_without_its_code_is_found_dropped_with_one_warning_and_made_anew(directory: Path) -> None:
    """Version 0.1.0 stored programs like this one: the load succeeds, and every call fails."""
    bad = without_code(directory)
    path = directory / some_key(0).digest
    store_entries.remove(path)
    save_as(directory, some_key(0), bad)
    assert "its kernels have no code" in ProgramCatalog(directory).verify()[path]
    with pytest.warns(RuntimeWarning, match="its kernels have no code") as warned:
        assert not loads(directory, 0)
    assert len(warned) == 1
    assert open_programs(directory).save(nth(0), serialized())
    assert loads(directory, 0)


def test_a_program_that_was_loaded_cannot_be_stored_again(directory: Path) -> None:
    assert open_programs(directory).save(nth(0), serialized())
    loaded = open_programs(directory).load(nth(0))
    assert loaded is not None
    with pytest.warns(RuntimeWarning, match=r"cannot be saved .*its kernels have no code"):
        assert open_programs(directory).serialize(loaded) is None


def test_a_program_that_the_runtime_refuses_is_dropped(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir(mode=0o700)
    nonsense = {"program": np.zeros(9, np.uint8), "trees": np.zeros(9, np.uint8)}
    with store_entries.new_entry(directory, {"parts": some_key(0).parts()}, nonsense) as temporary:
        store_entries.publish(temporary, directory / some_key(0).digest)
    assert ProgramCatalog(directory).verify() == {}
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert not loads(directory, 0)
    assert stored(directory) == set()


def test_an_entry_that_another_process_removes_under_our_hands_is_a_miss(
    entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(entry: Path, _: object) -> store_entries.Arrays:
        store_entries.remove(entry)
        raise ValueError("nothing was found")

    monkeypatch.setattr(store_entries, "arrays_of", vanish)
    assert not loads(entry.parent, 0)


def test_foreign_files_in_the_directory_are_left_alone(entry: Path, program: Serialized) -> None:
    foreign = entry.with_name("notes.txt")
    foreign.write_text("mine")
    catalog = ProgramCatalog(entry.parent)
    assert [each.digest for each in catalog.entries()] == [entry.name]
    assert catalog.verify() == {}
    catalog.prune(0)
    assert list(entry.parent.iterdir()) == [foreign]
    catalog.clear()
    assert list(entry.parent.iterdir()) == [foreign]


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o1777])
def test_a_directory_that_others_can_write_to_is_refused(mode: int, entry: Path, program: Serialized) -> None:
    entry.parent.chmod(mode)
    store = open_programs(entry.parent)
    with pytest.raises(StorageError, match=r"writable by others.*chmod"):
        store.load(nth(0))
    with pytest.raises(StorageError, match=r"writable by others.*chmod"):
        store.save(nth(1), program)


@pytest.mark.parametrize("inside", [".", "seal.json", "arrays", "arrays/_METADATA"])
def test_an_entry_that_others_can_write_to_is_refused_unread(
    inside: str, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_entries, "arrays_of", lambda *_: pytest.fail("it was read"))
    path, store = entry / inside, open_programs(entry.parent)
    path.chmod(path.stat().st_mode | stat.S_IWGRP)
    with pytest.raises(StorageError, match=r"writable by others.*chmod"):
        store.load(nth(0))
    with pytest.raises(StorageError):
        ProgramCatalog(entry.parent).entries()
    assert "writable by others" in ProgramCatalog(entry.parent).verify()[entry]


def test_a_directory_of_another_user_is_refused(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(StorageError, match=f"belongs to user {owner}.*delete it"):
        open_programs(entry.parent).load(nth(0))


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a file away")
def test_an_entry_with_a_file_of_another_user_is_refused(entry: Path) -> None:
    os.chown(entry / "arrays" / "_METADATA", 12345, -1)
    with pytest.raises(StorageError, match="_METADATA belongs to user 12345"):
        open_programs(entry.parent).load(nth(0))


def test_programs_are_private_whatever_the_umask_is(directory: Path, program: Serialized) -> None:
    before = os.umask(0)
    try:
        assert open_programs(directory).save(nth(0), program)
    finally:
        os.umask(before)
    for path in (directory, *directory.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert loads(directory, 0)


def test_a_link_to_the_directory_is_followed(entry: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(entry.parent)
    assert loads(tmp_path / "link", 0)


def fill(directory: Path, program: Serialized, numbers: range) -> int:
    """Save programs, the first ones least recently used; return the size of one."""
    for number in numbers:
        assert open_programs(directory).save(nth(number), program)
        age = time.time_ns() - (1000 - number) * 10**9
        os.utime(directory / some_key(number).digest / "seal.json", ns=(age, age))
    return max(entry.bytes for entry in ProgramCatalog(directory).entries())


def test_the_least_recently_used_programs_leave_first(directory: Path, program: Serialized) -> None:
    size = fill(directory, program, range(4))
    assert loads(directory, 0)
    store = open_programs(directory, capacity_bytes=3 * size + size // 2)
    assert store.save(nth(4), program)
    assert stored(directory) == digests(0, 3, 4)
    assert [entry.digest for entry in ProgramCatalog(directory).entries()] == [
        some_key(number).digest for number in (4, 0, 3)
    ]


def test_a_program_that_this_process_uses_is_never_evicted(directory: Path, program: Serialized) -> None:
    size = fill(directory, program, range(3))
    store = open_programs(directory, capacity_bytes=2 * size + size // 2)
    assert store.load(nth(0)) is not None
    os.utime(directory / some_key(0).digest / "seal.json", (0, 0))
    assert store.save(nth(3), program)
    assert stored(directory) == digests(0, 3)
    with pytest.warns(RuntimeWarning, match="leave no room"):
        assert not store.save(nth(4), program)
    assert not store.save(nth(5), program), "without a second warning"
    assert stored(directory) == digests(0, 3)
    assert list(directory.glob(".*")) == []


@pytest.mark.parametrize(("capacity", "saved"), [(200, [True, True, False]), (199, [True, False, False])])
def test_programs_in_use_may_fill_the_whole_bound(
    capacity: int, saved: list[bool], directory: Path, program: Serialized, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: 1)  # which writes faster than Orbax
    monkeypatch.setattr(store_entries, "size_of", lambda _: 100)
    store = open_programs(directory, capacity)
    with pytest.warns(RuntimeWarning, match=f"leave no room for another within the limit of {capacity} bytes"):
        assert [store.save(nth(number), program) for number in range(3)] == saved
    assert [store.entry(nth(number)).exists() for number in range(3)] == saved


def test_a_program_outlasts_a_power_cut(directory: Path, program: Serialized) -> None:
    store = open_programs(directory)
    with watched(directory) as flushes:
        assert store.save(nth(0), program)
    assert flushes.targets == [store.entry(nth(0))]
    assert (flushes.unflushed, flushes.dirty) == ([], False)


def test_pruning_makes_room_and_removes_what_killed_processes_left(directory: Path, program: Serialized) -> None:
    size = fill(directory, program, range(3))
    abandoned, young, old = (directory / name for name in (".writing-left", ".making-young", ".making-old"))
    for path in (abandoned, young, old):
        path.mkdir()
        (path / "file").write_text("half")
    os.utime(old, (0, 0))
    catalog = ProgramCatalog(directory)
    catalog.prune(size + size // 2)
    assert stored(directory) == digests(2)
    assert (abandoned.exists(), old.exists(), young.exists()) == (False, False, True), (
        "somebody may be about to lock it"
    )
    catalog.clear()
    assert list(directory.iterdir()) == []


def test_what_is_being_written_is_left_alone_and_counted_however_long_it_takes(
    directory: Path, program: Serialized
) -> None:
    size = fill(directory, program, range(3))
    catalog = ProgramCatalog(directory)
    with store_entries.new_entry(directory, {}, program.arrays) as temporary:
        os.utime(temporary, (0, 0))
        catalog.prune(3 * size + size // 2)
        assert temporary.is_dir()
        assert stored(directory) == digests(1, 2), "the one that is being written takes the room of the oldest"


def test_a_store_that_is_not_there_is_empty(directory: Path) -> None:
    catalog = ProgramCatalog(directory)
    assert (catalog.entries(), catalog.verify(), open_programs(directory).explain(nth(0))) == ([], {}, None)
    catalog.prune(0)
    catalog.clear()
    assert not directory.exists()


def test_a_program_is_explained_by_the_most_similar_one(directory: Path, program: Serialized) -> None:
    store, key = open_programs(directory), some_key(0)
    for other in (replace(key, statics="1", arguments="2"), replace(key, statics="3"), some_key(1)):
        save_as(directory, other, program)
    assert store.explain(nth(0)) == {"statics": ("{}", "3")}
    assert store.missing([nth(0), nth(1)]) == [nth(0)]
    assert store.save(nth(0), program)
    assert store.explain(nth(0)) == {}
    assert store.explain(nth(2)) is None


def test_the_key_of_a_program_is_made_once(directory: Path, program: Serialized) -> None:
    calls: list[Key] = []

    def key_of(key: Key) -> ProgramKey:
        calls.append(key)
        return some_key(0)

    store = ProgramStore(directory, key_of, HERE)
    assert store.load(nth(0)) is None
    assert store.explain(nth(0)) is None
    assert store.save(nth(0), program)
    assert store.load(nth(0)) is not None
    assert calls == [nth(0)]


def saving_fails_with_one_warning(directory: Path, program: Serialized, reason: str) -> None:
    store = open_programs(directory)
    with pytest.warns(RuntimeWarning, match=reason) as warned:
        assert not store.save(nth(7), program)
    assert len(warned) == 1
    assert not store.save(nth(8), program)
    assert store.load(nth(7)) is None


@EVERY_PROBLEM
@EVERY_CALL
def test_a_directory_that_cannot_be_written_to_costs_one_warning(
    call: str, problem: int, entry: Path, program: Serialized
) -> None:
    with failing(call, problem):
        saving_fails_with_one_warning(entry.parent, program, os.strerror(problem))
    assert list(entry.parent.iterdir()) == [entry], "nothing half-written stays"
    assert loads(entry.parent, 0)


def test_programs_are_loaded_from_a_directory_that_cannot_be_written_to(entry: Path) -> None:
    with failing("os.utime", errno.EROFS):
        assert loads(entry.parent, 0)


def test_a_file_in_the_place_of_the_directory_costs_one_warning(tmp_path: Path, program: Serialized) -> None:
    (tmp_path / "file").write_text("")
    saving_fails_with_one_warning(tmp_path / "file", program, "FileExistsError")
    saving_fails_with_one_warning(tmp_path / "file" / "below", program, "NotADirectoryError")


def test_a_full_disk_costs_one_warning(small_disk: Path, program: Serialized) -> None:
    assert open_programs(small_disk).save(nth(0), program)
    (small_disk / "filler").write_bytes(b"x" * (1536 << 10))
    saving_fails_with_one_warning(small_disk, program, "No space left")
    assert len(list(small_disk.iterdir())) == 2
    assert loads(small_disk, 0)


def test_a_disk_that_fills_up_while_orbax_writes_costs_one_warning(entry: Path, program: Serialized) -> None:
    with filling_up():
        saving_fails_with_one_warning(entry.parent, program, "No space left")
    assert list(entry.parent.iterdir()) == [entry]


def test_a_program_that_cannot_be_serialized_costs_one_warning(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise ValueError("Compilation does not support serialization")

    monkeypatch.setattr("rekindle.core.device.programs.store.serialize", refuse)
    store = open_programs(directory)
    with pytest.warns(RuntimeWarning, match="does not support serialization"):
        assert store.serialize(small_program()) is None
    assert store.serialize(small_program()) is None


def test_a_program_with_a_sort_is_stored_though_it_runs_before_it_is_saved(directory: Path) -> None:
    numbers, store = jax.device_put(np.arange(8)[::-1]), open_programs(directory)
    program = jax.jit(jnp.sort).lower(numbers).compile()
    content = serialized(program)
    expected = np.asarray(program(numbers))
    assert store.save(nth(0), content)
    loaded = store.load(nth(0))
    assert loaded is not None
    np.testing.assert_array_equal(loaded(numbers), expected)


def test_nothing_is_stored_any_more_when_the_process_ends(
    directory: Path, program: Serialized, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = threading.Event()
    ending.set()
    monkeypatch.setattr("rekindle.core.concurrency.threads._closing", ending)
    assert not open_programs(directory).save(nth(0), program)
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("kills", [8, pytest.param(300, marks=pytest.mark.deep)])
def test_a_save_that_is_killed_leaves_what_was_saved_before(kills: int, directory: Path, tmp_path: Path) -> None:
    chance, log, count = random.Random(0), tmp_path / "log", 0
    log.touch()
    for kill in range(kills):
        moment = kill % 3, chance.uniform(0.001, 0.15)
        ended = in_other_processes(1, save_until_killed, directory, log, count, *moment)
        assert ended == [-signal.SIGALRM]
        saved = [int(line) for line in log.read_text().split()]
        with warnings.catch_warnings(action="error"):
            assert all(loads(directory, number) for number in saved[-2:])
            count = max(saved, default=0)
            while loads(directory, count):  # the program that was being saved is there whole or not at all
                count += 1
        assert ProgramCatalog(directory).verify() == {}
        assert digests(*saved) <= stored(directory)
    assert count > kills, "most were killed before they had saved anything"


@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.deep)])
def test_two_processes_that_save_load_and_evict_at_once_only_see_right_programs(
    rounds: int, directory: Path, tmp_path: Path
) -> None:
    size = fill(tmp_path / "one", serialized(), range(1))
    assert in_other_processes(2, share, directory, rounds, 3 * size) == [0, 0]
    assert ProgramCatalog(directory).verify() == {}
    ProgramCatalog(directory).prune(3 * size)
    assert sum(entry.bytes for entry in ProgramCatalog(directory).entries()) <= 3 * size


def test_temporary_names_are_made_in_the_store_itself(
    directory: Path, program: Serialized, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this because a rename is atomic only inside of one file system."""
    directories: list[Path] = []
    make = tempfile.mkdtemp

    def remember(dir: Path, prefix: str) -> str:  # noqa: A002
        directories.append(dir)
        return make(dir=dir, prefix=prefix)

    monkeypatch.setattr(tempfile, "mkdtemp", remember)
    assert open_programs(directory).save(nth(0), program)
    assert directories == [directory]


def test_a_process_that_follows_stores_its_part_of_a_program_by_itself(
    directory: Path, program: Serialized, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orbax writes arrays in the first process alone, and waits there for all others."""
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    store = open_programs(directory)
    assert store.save(nth(0), program)
    entry = store.entry(nth(0))
    assert not [path for path in entry.iterdir() if path.is_dir()], "nothing of Orbax's"
    assert store_entries.verify(entry)["parts"] == some_key(0).parts()
    arrays = store_entries.arrays_of(entry, ["program", "trees"])
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: array.tobytes() for name, array in program.arrays.items()
    }
    assert list(store_entries.arrays_of(entry, ["trees"])) == ["trees"]
    assert loads(directory, 0)
    assert ProgramCatalog(directory).verify() == {}
