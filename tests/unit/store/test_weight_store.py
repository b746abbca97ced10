"""Converted weights come back bit for bit, for the same model and layout, or not at all."""

import multiprocessing
import random
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from rekindle.core.store import entries as disk
from rekindle.core.store import weight_store
from rekindle.core.store.snapshot_key import SnapshotKey
from rekindle.core.store.weight_store import DATA, KeptWeights, Stopped, WeightCatalog, WeightStore, form_of
from tests.unit.bad_disks import EVERY_CALL, EVERY_PROBLEM, failing

KEY = SnapshotKey((("weights", "one"),))
NUMBERS = np.random.default_rng(0)
ARRAYS: list[disk.Array] = [
    NUMBERS.normal(size=(40, 8)).astype(np.float32),
    NUMBERS.normal(size=(3, 5, 7)).astype(ml_dtypes.bfloat16),
    NUMBERS.integers(0, 256, 70_001, np.uint8),
    NUMBERS.integers(-8, 8, (6, 4)).astype(ml_dtypes.int4),
    np.zeros((0, 4), np.float16),
    np.array(2.5, np.float32),
]
SIZE = sum(array.nbytes for array in ARRAYS)
SHARD = "decoder 0 of 1"


def store(directory: Path, key: SnapshotKey = KEY, capacity: int = 1 << 20) -> WeightStore:
    return WeightStore(directory / "weights", key, "a model", capacity)


def forms(arrays: Sequence[disk.Array]) -> list[weight_store.Form]:
    return list(map(form_of, arrays))


def content(arrays: Sequence[disk.Array], index: int) -> disk.Array:
    return arrays[index].reshape(-1).view(np.uint8)


def write(into: WeightStore, shard: str = SHARD, arrays: Sequence[disk.Array] = ARRAYS) -> bool:
    return into.write(shard, forms(arrays), lambda index: content(arrays, index), 3, lambda _: False)


def read(
    source: WeightStore, shard: str = SHARD, arrays: Sequence[disk.Array] = ARRAYS
) -> tuple[list[disk.Array], int] | None:
    def load(kept: KeptWeights) -> tuple[list[disk.Array], int]:
        into = [np.zeros(array.shape, array.dtype) for array in arrays]
        for index, array in enumerate(into):
            kept.read_into(index, array)
        return into, kept.infinite

    return source.read(shard, forms(arrays), load)


def check(source: WeightStore) -> None:
    found = read(source)
    assert found is not None
    assert found[1] == 3
    for array, expected in zip(found[0], ARRAYS, strict=True):
        assert form_of(array) == form_of(expected)
        assert array.tobytes() == expected.tobytes()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "weights").iterdir())


def test_weights_are_found_by_their_key_and_their_shard(tmp_path: Path) -> None:
    assert read(store(tmp_path)) is None
    assert write(store(tmp_path))
    check(store(tmp_path))
    assert read(store(tmp_path), "decoder 1 of 2") is None
    assert read(store(tmp_path, SnapshotKey((("weights", "two"),)))) is None
    (entry,) = WeightCatalog(tmp_path / "weights").entries()
    assert (entry.model, entry.parts, entry.bytes > SIZE) == ("a model", KEY.parts(), True)
    assert not WeightCatalog(tmp_path / "weights").verify()


def test_pieces_of_a_size_of_several_steps_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_store, "STEP_BYTES", 1000)
    assert write(store(tmp_path))
    check(store(tmp_path))
    assert not WeightCatalog(tmp_path / "weights").verify()


def flip(entry: Path) -> None:
    data = bytearray((entry / DATA).read_bytes())
    data[len(data) // 2] ^= 1
    (entry / DATA).write_bytes(data)


def cut(entry: Path) -> None:
    (entry / DATA).write_bytes((entry / DATA).read_bytes()[:-1])


def lengthen(entry: Path) -> None:
    (entry / DATA).write_bytes((entry / DATA).read_bytes() + b"\0")


def without_seal(entry: Path) -> None:
    (entry / "seal.json").unlink()


def damage_seal(entry: Path) -> None:
    (entry / "seal.json").write_bytes((entry / "seal.json").read_bytes()[:-1])


def foreign(entry: Path) -> None:
    """Put the entry of another model under this name."""
    other = store(entry.parents[1], SnapshotKey((("weights", "two"),)))
    assert write(other)
    shutil.rmtree(entry)
    other.path_of(SHARD).rename(entry)


@pytest.mark.parametrize("damage", [flip, cut, lengthen, without_seal, damage_seal, foreign])
def test_what_is_not_as_it_was_written_is_dropped_with_a_line_and_written_again(damage: object, tmp_path: Path) -> None:
    assert callable(damage)
    write(store(tmp_path))
    damage(store(tmp_path).path_of(SHARD))
    with pytest.warns(RuntimeWarning, match="the converted weights in .* cannot be used") as warned:
        assert read(store(tmp_path)) is None
    assert len(warned) == 1
    assert not names(tmp_path)
    assert write(store(tmp_path))
    check(store(tmp_path))


def test_a_file_cut_while_it_is_read_is_dropped(tmp_path: Path) -> None:
    write(store(tmp_path))
    entry = store(tmp_path).path_of(SHARD)

    def load(kept: KeptWeights) -> None:
        cut(entry)
        for index, array in enumerate(ARRAYS):
            kept.read_into(index, np.zeros(array.shape, array.dtype))

    with pytest.warns(RuntimeWarning, match=f"{DATA} was cut while it was read"):
        assert store(tmp_path).read(SHARD, forms(ARRAYS), load) is None


def test_arrays_of_other_forms_are_another_layout(tmp_path: Path) -> None:
    write(store(tmp_path))
    with pytest.warns(RuntimeWarning, match="its arrays have other forms"):
        assert read(store(tmp_path), arrays=[ARRAYS[0].T, *ARRAYS[1:]]) is None


def test_the_least_recently_used_leave_and_large_ones_stay_out(tmp_path: Path) -> None:
    write(store(tmp_path))
    (entry,) = WeightCatalog(tmp_path / "weights").entries()
    small = store(tmp_path, capacity=2 * entry.bytes + entry.bytes // 2)
    shards = [f"decoder {rank} of 4" for rank in range(4)]
    for shard in shards[:2]:
        assert write(small, shard)
    assert read(small, shards[0]) is not None  # and so the latest
    assert write(small, shards[2])
    assert [shard for shard in shards if read(small, shard) is not None] == [shards[0], shards[2]]
    assert not write(store(tmp_path, capacity=SIZE - 1), shards[3])
    assert len(names(tmp_path)) == 2


def test_weights_of_former_sources_leave_and_no_others(tmp_path: Path) -> None:
    def key(weights: str, code: str) -> SnapshotKey:
        return SnapshotKey((("weights", weights), ("code", code)))

    for old in (key("one", "old"), key("two", "old")):
        assert write(store(tmp_path, old))
        assert write(store(tmp_path, old), "decoder 0 of 2")
    assert write(store(tmp_path, key("one", "new")))
    found = {
        (each, shard): read(store(tmp_path, each), shard) is not None
        for each in (key("one", "old"), key("two", "old"), key("one", "new"))
        for shard in (SHARD, "decoder 0 of 2")
    }
    assert [name for name, is_found in found.items() if not is_found] == [
        (key("one", "old"), SHARD),
        (key("one", "new"), "decoder 0 of 2"),
    ]


@pytest.mark.parametrize(("free", "is_kept"), [(2 * SIZE - 1, False), (2 * SIZE, True)])
def test_half_of_what_is_free_on_the_disk_stays_free(
    free: int, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_store, "disk_usage", lambda _: SimpleNamespace(free=free))
    with warnings.catch_warnings(action="error"):
        assert write(store(tmp_path)) == is_kept
    assert len(names(tmp_path)) == is_kept


@EVERY_PROBLEM
@EVERY_CALL
def test_a_disk_that_refuses_costs_a_line_and_leaves_nothing(call: str, problem: int, tmp_path: Path) -> None:
    several = store(tmp_path)
    (tmp_path / "weights").mkdir(mode=0o700)
    with failing(call, problem), pytest.warns(RuntimeWarning, match="cannot be saved") as warned:
        assert [write(several), write(several)] == [False, False]
    assert len(warned) == 1
    assert not names(tmp_path)
    assert write(several)
    check(several)


def test_a_full_disk_ends_well(small_disk: Path) -> None:
    large = [np.zeros(3 << 20, np.uint8)]
    with warnings.catch_warnings(action="error"):
        assert not write(store(small_disk, capacity=1 << 30), arrays=large)
    assert not names(small_disk)


def test_stopped_writing_leaves_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="error"):
        assert not store(tmp_path).write(SHARD, forms(ARRAYS), lambda i: content(ARRAYS, i), 0, lambda _: True)

        def gone(index: int) -> disk.Array:
            if index:
                raise Stopped
            return content(ARRAYS, index)

        assert not store(tmp_path).write(SHARD, forms(ARRAYS), gone, 0, lambda _: False)
    assert not names(tmp_path)


def test_two_writers_of_the_same_weights_end_well(tmp_path: Path) -> None:
    both, written = threading.Barrier(2), list[bool]()

    def pause(_: float) -> bool:
        if both.n_waiting < 2 and not both.broken:
            both.wait(10)
            both.abort()  # once is enough
        return False

    def work() -> None:
        def once(seconds: float) -> bool:
            try:
                return pause(seconds)
            except threading.BrokenBarrierError:
                return False

        written.append(store(tmp_path).write(SHARD, forms(ARRAYS), lambda i: content(ARRAYS, i), 3, once))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written == [True, True]
    assert len(names(tmp_path)) == 1
    check(store(tmp_path))


def write_for_ever(directory: Path) -> None:
    """Write the same weights again and again, in small steps."""
    weight_store.STEP_BYTES = 4096  # type: ignore[misc]
    while True:
        write(store(directory))
        (directory / "started").touch()
        store(directory)._catalog.clear()


@pytest.mark.wide
@pytest.mark.parametrize(("seed", "kills"), [(0, 3), pytest.param(1, 30, marks=pytest.mark.deep)])
def test_whatever_a_kill_interrupts_the_next_start_is_right(seed: int, kills: int, tmp_path: Path) -> None:
    chance, spawn = random.Random(seed), multiprocessing.get_context("spawn")
    for _ in range(kills):
        (tmp_path / "started").unlink(missing_ok=True)
        process = spawn.Process(target=write_for_ever, args=[tmp_path])
        process.start()
        while not (tmp_path / "started").exists():
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        with warnings.catch_warnings(action="error"):
            if read(store(tmp_path)) is None:
                assert write(store(tmp_path))
            check(store(tmp_path))
            WeightCatalog(tmp_path / "weights").prune(1 << 20)
        rest = {*names(tmp_path)} - {store(tmp_path).path_of(SHARD).name}
        assert all(name.startswith(disk.MAKING) and not [*(tmp_path / "weights" / name).iterdir()] for name in rest)
