"""Whatever kills a process or damages files, a stored page comes back bit by bit, or not at all."""

import random
import shutil
import signal
import warnings
from pathlib import Path

import pytest

from rekindle.core.page import NewPage
from rekindle.core.store.snapshot_store import SnapshotStore
from rekindle.core.store.snapshots import SnapshotCatalog
from tests.unit.stored_programs import in_other_processes
from tests.unit.stored_snapshots import (
    digests,
    open_store,
    path,
    readable,
    share,
    snapshot_key,
    stored_bytes,
    write,
    write_until_killed,
)

UNBOUNDED = 1 << 40


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


def written_down(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()]


@pytest.mark.parametrize("stores", [2, pytest.param(30, marks=pytest.mark.deep)])
def test_a_write_that_is_killed_leaves_every_page_that_was_written_before(stores: int, tmp_path: Path) -> None:
    """Kill ten writers of each store."""
    chance, saved = random.Random(0), 0
    for number in range(stores):
        directory, log, first = tmp_path / f"{number}", tmp_path / f"{number}.log", 0
        log.touch()
        for kill in range(10):
            moment = kill % 3, chance.uniform(0.001, 0.2)
            ended = in_other_processes(1, write_until_killed, directory, log, first, *moment, UNBOUNDED)
            assert ended == [-signal.SIGALRM]
            with warnings.catch_warnings(action="error"):
                index = open_store(directory).index()
                assert {page.digest for page in index} >= digests(*written_down(log))
            first = max(written_down(log), default=0) + 1
        with warnings.catch_warnings(action="error"):
            assert readable(open_store(directory)) == {page.digest for page in index}, "all of a segment, or nothing"
        assert SnapshotCatalog(directory).verify() == {}
        saved += len(written_down(log))
    assert saved > 5 * stores, "most were killed before they had written anything"


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.deep)])
def test_a_write_that_is_killed_while_it_evicts_leaves_the_latest_pages(
    kills: int, directory: Path, tmp_path: Path
) -> None:
    write(open_store(tmp_path / "one"), path(0))
    size = SnapshotCatalog(tmp_path / "one").entries()[0].bytes
    chance, log, first = random.Random(1), tmp_path / "log", 0
    log.touch()
    for kill in range(kills):
        moment = kill % 3, chance.uniform(0.001, 0.2)
        assert in_other_processes(1, write_until_killed, directory, log, first, *moment, 4 * size) == [-signal.SIGALRM]
        saved = written_down(log)
        with warnings.catch_warnings(action="error"):
            store = open_store(directory)
            assert readable(store) >= digests(*saved[-2:])
            assert stored_bytes(directory) <= 5.5 * size, "one more than the bound, since a killed one could not evict"
        first = max(saved, default=0) + 1


def damage(directory: Path, chance: random.Random) -> str:
    """Damage a store of several segments in a random way; return the way."""
    segments = sorted(child for child in (directory / snapshot_key().digest).iterdir())
    files = sorted(file for segment in segments for file in segment.rglob("*") if file.is_file())
    # Every other time the largest is taken, because large files are few.
    file = chance.choice(files) if chance.random() < 0.5 else max(files, key=lambda each: each.stat().st_size)
    content = bytearray(file.read_bytes())
    start = chance.randrange(len(content))
    match chance.randrange(10):
        case 0:
            what = f"flipped a bit of byte {start}"
            content[start] ^= 1 << chance.randrange(8)
        case 1:
            what = f"truncated to {start}"
            del content[start:]
        case 2:
            what = "grew"
            content += chance.randbytes(chance.randint(1, 99))
        case 3:
            what = "garbage"
            content = bytearray(chance.randbytes(len(content)))
        case 4:
            what = f"zeros from {start}"
            end = min(len(content), start + chance.randint(1, 40_000))
            content[start:end] = bytes(end - start)
        case 5:
            what = "emptied"
            content.clear()
        case 6:
            file.unlink()
            return f"{file}: deleted"
        case 7:
            other = chance.choice([each for each in files if each != file])
            content = bytearray(other.read_bytes())
            other.write_bytes(file.read_bytes())
            what = f"swapped with {other}"
        case 8:
            one, two = chance.sample(segments, 2)
            one.rename(directory / "third")
            two.rename(one)
            (directory / "third").rename(two)
            return f"{one} swapped with {two}"
        case _:
            segment = chance.choice(segments)
            shutil.rmtree(segment)
            match chance.randrange(3):
                case 0:
                    segment.symlink_to(next(each for each in segments if each != segment))
                case 1:
                    segment.write_bytes(b"no directory")
                case _:
                    segment.mkdir()
            return f"{segment}: foreign"
    file.write_bytes(content)
    return f"{file}: {what}"


@pytest.mark.parametrize("times", [60, pytest.param(2000, marks=pytest.mark.deep)])
def test_damage_of_any_kind_costs_pages_and_a_warning_and_never_gives_a_wrong_byte(
    times: int, directory: Path, tmp_path: Path
) -> None:
    pages = path(1, length=8) + path(2, length=8)
    write(open_store(tmp_path / "whole"), pages[:8])
    write(open_store(tmp_path / "whole"), pages[8:])
    pages = path(1, length=12) + pages[8:]
    write(open_store(tmp_path / "whole"), pages)
    everything = {page.digest for page in pages}
    chance, harmless = random.Random(0), 0
    for _ in range(times):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", directory)
        store = open_store(directory)
        if chance.random() < 0.5:  # so that some stores have read the headers before the damage
            store.index()
        what = damage(directory, chance)
        wrong = SnapshotCatalog(directory).verify()
        with warnings.catch_warnings(record=True, action="always") as warned:
            survivors = readable(store)
        # A swap may harm two segments, and the third may lie below one of them.
        assert len(survivors) >= 4 or "swapped" in what, f"{what}: segments that nobody touched were lost"
        assert len(warned) <= 2, f"{what}: {[str(each.message) for each in warned]}"
        assert survivors == everything or wrong or warned, f"{what}: pages went without a word"
        with warnings.catch_warnings(action="error"):
            assert {page.digest for page in open_store(directory).index()} <= survivors, f"{what}: it was not dropped"
        if chance.random() < 0.1:
            heals(store, pages, what)
        harmless += survivors == everything
    assert harmless < times / 2, "most damage was none"


def heals(store: SnapshotStore, pages: list[NewPage], what: str) -> None:
    """Write all pages again and check their presence; pages below a damaged one may only then show damage."""
    with warnings.catch_warnings(action="ignore"):
        for _ in range(2):
            assert None not in write(store, pages).records, what
            result = readable(store)
    assert result == {page.digest for page in pages}, what


@pytest.mark.parametrize("rounds", [30, pytest.param(1000, marks=pytest.mark.deep)])
def test_two_processes_that_write_read_and_evict_at_once_only_see_right_pages(
    rounds: int, directory: Path, tmp_path: Path
) -> None:
    write(open_store(tmp_path / "one"), path(0, length=5))
    size = SnapshotCatalog(tmp_path / "one").entries()[0].bytes
    assert in_other_processes(2, share, directory, rounds, 3 * size) == [0, 0]
    assert SnapshotCatalog(directory).verify() == {}
    readable(open_store(directory))
