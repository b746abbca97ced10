"""Stored pages come back as they were, under one bound, and no damage to the store makes its users fail."""

import errno
import os
import shutil
import stat
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import jax
import numpy as np
import pytest

from rekindle.core.errors import UnsafeStorage
from rekindle.core.page import NewPage, StoredPage
from rekindle.core.store import entries as store_entries
from rekindle.core.store import segments as snapshot_segments
from rekindle.core.store import snapshot_store
from rekindle.core.store.index import root_digest
from rekindle.core.store.snapshot_store import SnapshotStore
from rekindle.core.store.snapshots import SnapshotCatalog
from tests.unit.bad_disks import EVERY_CALL, EVERY_PROBLEM, failing, filling_up
from tests.unit.flushes import watched
from tests.unit.stored_snapshots import (
    DTYPES,
    Array,
    below,
    content,
    contents,
    digests,
    open_store,
    path,
    readable,
    same,
    snapshot_key,
    stored_bytes,
    write,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


@pytest.fixture
def segment(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the only segment of a store, `path(0, length=8)`, whose seal has no digest of the pages.

    They may lie in several files, each smaller than the files that seals have no digest of.
    """
    monkeypatch.setattr(store_entries, "LARGE_BYTES", content(path(0)[0].digest).nbytes)
    write(open_store(directory), path(0, length=8))
    return segments(directory)[0]


def segments(directory: Path, number: int = 0) -> list[Path]:
    """Return the segments of one key, the least recently used first."""
    return sorted((directory / snapshot_key(number).digest).glob("[0-9a-f]*"), key=store_entries.last_used)


def large_file(segment: Path) -> Path:
    return max((file for file in segment.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)


def spoil(segment: Path, pages: list[NewPage]) -> int:
    """Change a page without a digest in the segment's seal; return its place."""
    file = large_file(segment)
    stored = bytearray(file.read_bytes())
    offsets = {place: stored.find(content(page.digest).tobytes()) for place, page in enumerate(pages)}
    place = next(place for place, start in offsets.items() if start >= 0)
    stored[offsets[place] + 5] ^= 1
    file.write_bytes(stored)
    return place


def listing(directory: Path) -> dict[Path, tuple[int, int]]:
    """Return all paths in a directory, and when each last changed."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in directory.rglob("*")}


@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_come_back_bit_by_bit_in_the_shape_and_dtype_they_had(dtype: str, directory: Path) -> None:
    pages = path(0, length=5)
    arrays = [content(page.digest, dtype) for page in pages]
    records = open_store(directory).write(pages, arrays).records
    assert None not in records
    store = open_store(directory)
    by_digest = {page.digest: page.record for page in store.index()}
    order = [3, 0, 4]
    restored = store.read([by_digest[pages[place].digest] for place in order])
    for place, array in zip(order, restored, strict=True):
        assert array is not None
        assert same(array, arrays[place])


def test_arrays_of_any_layout_come_back(directory: Path) -> None:
    whole = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    arrays: list[Array] = [whole[:, ::2], np.asfortranarray(whole), np.array(7, np.int32)]
    store = open_store(directory)
    records = store.write(path(0), arrays).records
    for array, copy in zip(arrays, store.read([each for each in records if each is not None]), strict=True):
        assert copy is not None
        assert same(copy, array)


def test_pages_are_a_checkpoint_that_orbax_restores(segment: Path) -> None:
    import orbax.checkpoint as ocp

    restored = ocp.PyTreeCheckpointer().restore(segment / store_entries.ARRAYS)
    assert {name: array.tobytes() for name, array in restored.items()} == {
        str(place): content(page.digest).tobytes() for place, page in enumerate(path(0, length=8))
    }


def test_the_index_tells_where_each_page_belongs_parents_before_children(directory: Path) -> None:
    store = open_store(directory)
    trunk = path(0, length=2)
    fork = [below(trunk[1].digest, number) for number in (71, 72)]
    other = path(0, length=2, namespace="ünïcode")
    for pages in (trunk, fork, other):
        write(store, pages)
    expected = {page.digest: page for page in (*trunk, *fork, *other)}
    assert len(expected) == 6, "two namespaces share nothing"
    for index in (store.index(), open_store(directory).index()):
        assert {page.digest for page in index} == expected.keys()
        for page in index:
            new = expected[page.digest]
            assert page == StoredPage(page.record, new.digest, new.parent, new.namespace, new.key)
        assert len({page.record for page in index}) == 6
    assert readable(store) == readable(open_store(directory)) == expected.keys()
    assert [entry.pages for entry in SnapshotCatalog(directory).entries()] == [6]


def test_a_page_whose_prefix_is_not_stored_is_not_told_until_it_is(directory: Path) -> None:
    pages = path(0, length=4)
    store = open_store(directory)
    write(store, pages[2:])
    assert readable(store) == set()
    write(store, pages[:1])
    assert readable(store) == {pages[0].digest}
    write(store, pages[1:2])
    assert readable(store) == readable(open_store(directory)) == {page.digest for page in pages}


def test_writing_a_thousand_stored_pages_again_changes_nothing_on_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_store, "PAGES_PER_SEGMENT", 250)
    pages = path(0, length=1000)
    arrays = [np.full(3, number, np.float32) for number in range(1000)]
    store = open_store(directory)
    first = store.write(pages, arrays)
    before = listing(directory)
    assert len(segments(directory)) == 4
    for again in (store, open_store(directory)):
        result = again.write(pages, arrays)
        assert (result.pruned, len(set(result.records))) == ((), 1000)
    assert store.write(pages, arrays).records == first.records
    assert store.write([], []).records == ()
    assert listing(directory) == before


def test_only_new_pages_are_written_and_each_once(directory: Path) -> None:
    store, pages = open_store(directory), path(0, length=4)
    first = write(store, pages[:2]).records
    records = write(store, [pages[0], pages[2], pages[3], pages[2], pages[1]]).records
    assert (records[0], records[4]) == first
    assert records[1] == records[3] != records[2]
    headers = [snapshot_segments.open_segment(path) for path in segments(directory)]
    assert sorted(len(header.pages) for header in headers) == [2, 2]


def test_many_pages_are_written_in_segments(directory: Path) -> None:
    store, pages = open_store(directory), path(0, length=2 * snapshot_segments.PAGES_PER_SEGMENT + 1)
    write(store, pages)
    lengths = [len(snapshot_segments.open_segment(path).pages) for path in segments(directory)]
    assert sorted(lengths) == [1, snapshot_segments.PAGES_PER_SEGMENT, snapshot_segments.PAGES_PER_SEGMENT]
    assert readable(open_store(directory)) == {page.digest for page in pages}


def test_a_read_restores_the_wanted_pages_alone_and_each_segment_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(directory)
    one, two = (write(store, path(number, length=5)).records for number in (0, 1))
    calls: list[list[str]] = []
    restore = store_entries.arrays_of

    def count(entry: Path, names: list[str]) -> store_entries.Arrays:
        calls.append(names)
        arrays = restore(entry, names)
        assert arrays.keys() == set(names)
        return arrays

    monkeypatch.setattr(store_entries, "arrays_of", count)
    restored = store.read([each for each in (one[3], two[0], one[1], two[4]) if each is not None])
    assert all(array is not None for array in restored)
    assert calls == [["3", "1"], ["0", "4"]]


def test_an_unknown_record_is_none(directory: Path) -> None:
    assert open_store(directory).read([0, 7]) == [None, None]
    store = open_store(directory)
    write(store, path(0))
    assert store.read([99]) == [None]
    store.use([99])


def test_a_store_that_is_not_there_is_empty(directory: Path) -> None:
    store = open_store(directory)
    assert store.index() == []
    assert SnapshotCatalog(directory).entries() == []
    assert SnapshotCatalog(directory).verify() == {}
    assert store.explain() is None
    SnapshotCatalog(directory).prune(0)
    SnapshotCatalog(directory).clear()
    assert not directory.exists()


def test_a_page_that_the_seal_does_not_cover_is_still_checked(segment: Path, directory: Path) -> None:
    store, pages = open_store(directory), path(0, length=8)
    by_digest = {page.digest: page.record for page in store.index()}
    spoilt = spoil(segment, pages)
    assert store_entries.verify(segment), "the seal knows only the length of what was changed"
    bad, good = by_digest[pages[spoilt].digest], by_digest[pages[spoilt - 1].digest]
    (first,) = store.read([good])
    assert first is not None
    assert same(first, content(pages[spoilt - 1].digest))
    assert f"page {spoilt} is not as it was written" in next(iter(SnapshotCatalog(directory).verify().values()))
    with pytest.warns(RuntimeWarning, match=f"page {spoilt} is not as it was written.*will be created again") as warned:
        assert store.read([good, bad]) == [None, None]
    assert len(warned) == 1
    assert segments(directory) == []
    assert store.read([good]) == [None], "without another warning"
    assert sorted(write(store, pages[:1]).pruned) == sorted(by_digest.values())


def test_a_page_of_another_dtype_with_the_same_bytes_is_damaged(segment: Path, directory: Path) -> None:
    """Check this because the seal does not cover the file of the dtype."""
    store = open_store(directory)
    records = [page.record for page in store.index()]
    restore = store_entries.arrays_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            store_entries, "arrays_of", lambda *x: {name: each.view("<i4") for name, each in restore(*x).items()}
        )
        with pytest.warns(RuntimeWarning, match="not as it was written"):
            assert store.read(records[:1]) == [None]


def test_pages_of_another_key_are_not_seen(directory: Path) -> None:
    write(SnapshotStore(directory, snapshot_key(1), "a model"), path(0))
    assert open_store(directory).index() == []
    write(open_store(directory), path(1))
    assert readable(open_store(directory)) == digests(1)
    assert readable(SnapshotStore(directory, snapshot_key(1), "a model")) == digests(0)


def test_a_segment_that_was_moved_from_another_key_is_dropped(directory: Path) -> None:
    write(SnapshotStore(directory, snapshot_key(1), "a model"), path(0))
    write(open_store(directory), path(1))
    foreign = segments(directory, 1)[0]
    foreign.rename(directory / snapshot_key().digest / foreign.name)
    with pytest.warns(RuntimeWarning, match="another key"):
        assert readable(open_store(directory)) == digests(1)
    assert len(segments(directory)) == 1


def honest(directory: Path, header: store_entries.Header) -> None:
    """Write an entry with a right seal and another program's header."""
    with store_entries.new_entry(directory, header, {"0": np.zeros(3)}, singly=True) as temporary:
        store_entries.publish(temporary, directory / ("0" * 32))


GOOD = {"model": "m", "parts": snapshot_key().parts(), "created": 1.0, "pages": []}
PAGE = {"digest": "d", "parent": "d", "namespace": "", "key": "00", "content": "", "shape": [3], "dtype": "float64"}


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"parts": {}},
        GOOD | {"parts": []},
        GOOD | {"created": "x"},
        GOOD | {"pages": 7},
        GOOD | {"pages": [[]]},
        GOOD | {"pages": [{}]},
        GOOD | {"pages": [PAGE | {"key": "zz"}]},
        GOOD | {"pages": [PAGE | {"shape": 3}]},
    ],
)
def test_a_header_of_an_unknown_form_is_dropped(header: store_entries.Header, directory: Path) -> None:
    write(open_store(directory), path(0))
    honest(directory / snapshot_key().digest, header)
    assert len(SnapshotCatalog(directory).verify()) == 1
    with pytest.warns(RuntimeWarning, match="unknown form"):
        assert readable(open_store(directory)) == digests(0)
    assert len(segments(directory)) == 1


def test_pages_above_each_other_in_a_circle_do_no_harm(directory: Path) -> None:
    write(open_store(directory), path(0))
    circle = [PAGE | {"digest": "a", "parent": "b"}, PAGE | {"digest": "b", "parent": "a"}]
    honest(directory / snapshot_key().digest, GOOD | {"pages": circle})
    store = open_store(directory)
    assert readable(store) == digests(0)
    store.use(range(9))


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "empty directory", "seal is a directory"])
def test_something_else_under_the_name_of_a_segment_is_dropped(kind: str, segment: Path, tmp_path: Path) -> None:
    other = segment.with_name("f" * 32)
    match kind:
        case "file":
            other.write_text("not a directory")
        case "link":
            other.symlink_to(shutil.copytree(segment, tmp_path / "elsewhere"))
        case "dangling link":
            other.symlink_to(tmp_path / "nowhere")
        case "empty directory":
            other.mkdir()
        case _:
            (other / "seal.json").mkdir(parents=True)
    directory = segment.parent.parent
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert len(readable(open_store(directory))) == 8
    assert segments(directory) == [segment]
    assert kind != "link" or (tmp_path / "elsewhere" / "seal.json").exists(), "what a link leads to is left alone"


@pytest.mark.parametrize("early", [False, True])
def test_what_is_damaged_and_cannot_be_removed_is_told_once(
    early: bool, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    store = open_store(segment.parent.parent)
    records = [page.record for page in store.index()] if early else []
    (segment / "seal.json").write_text("?")
    monkeypatch.setattr("pathlib.Path.rename", fail)
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert [*store.read(records), *store.index()] == [None] * len(records)
    assert store.read(records) == [None] * len(records), "without another warning"
    assert store.index() == []


def test_other_files_are_left_alone(segment: Path, directory: Path) -> None:
    notes = [directory / "notes.txt", segment.parent / "notes.txt"]
    for note in notes:
        note.write_text("mine")
    assert len(readable(open_store(directory))) == 8
    assert len(SnapshotCatalog(directory).entries()) == 1
    assert SnapshotCatalog(directory).verify() == {}
    SnapshotCatalog(directory).prune(0)
    assert segments(directory) == []
    SnapshotCatalog(directory).clear()
    assert [note.read_text() for note in notes] == ["mine", "mine"]


def test_a_link_in_the_place_of_a_snapshot_is_not_followed(segment: Path, directory: Path, tmp_path: Path) -> None:
    elsewhere = segment.parent.rename(tmp_path / "elsewhere")
    segment.parent.symlink_to(elsewhere)
    store = open_store(directory)
    assert store.index() == []
    with pytest.warns(RuntimeWarning, match="cannot be saved"):
        assert write(store, path(1)).records == (None, None, None)
    SnapshotCatalog(directory).clear()
    assert (elsewhere / segment.name / "seal.json").exists()


def test_a_link_to_the_directory_is_followed(segment: Path, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(directory)
    assert len(readable(open_store(tmp_path / "link"))) == 8
    assert len(SnapshotCatalog(tmp_path / "link").entries()) == 1


def test_pages_of_other_processes_are_found_and_those_they_removed_are_told(directory: Path) -> None:
    here, there = open_store(directory), open_store(directory)
    mine = write(here, path(0)).records
    assert write(there, path(0)).records == (0, 1, 2)
    assert len(segments(directory)) == 1
    theirs = write(there, path(1)).records
    assert readable(here) == digests(0, 1)
    shutil.rmtree(segments(directory)[0])
    assert here.read([each for each in mine if each is not None]) == [None, None, None]
    assert readable(here) == digests(1)
    result = write(here, path(0))
    assert result.pruned == mine
    assert not set(result.records) & {*mine, *theirs}, "a number is never given again"
    assert write(here, path(0)).pruned == (), "they are told once"
    assert readable(open_store(directory)) == digests(0, 1)


def test_a_page_that_two_processes_stored_outlives_one_of_them(directory: Path, tmp_path: Path) -> None:
    here, there = open_store(directory), open_store(tmp_path / "other")
    write(there, path(0, length=8))
    records = write(here, path(0)).records
    moved = segments(tmp_path / "other")[0]
    moved.rename(directory / snapshot_key().digest / moved.name)
    assert len(readable(here)) == 8
    shutil.rmtree(next(path for path in segments(directory) if path.name != moved.name))
    assert len(readable(here)) == 8
    assert write(here, path(0)).records == records, "it is the same page"
    assert len(readable(here)) == 8


def size_of_one(tmp_path: Path) -> int:
    """Return the most bytes of a segment with one path; Orbax sometimes writes a few KiB more."""
    write(open_store(tmp_path / "one"), path(0))
    return store_entries.size_of(segments(tmp_path / "one")[0]) + (8 << 10)


def test_the_least_recently_used_pages_leave_first_and_are_told(directory: Path, tmp_path: Path) -> None:
    store = open_store(directory, 3 * size_of_one(tmp_path))
    records = {number: write(store, path(number)).records for number in range(3)}
    store.use([each for each in records[0][-1:] if each is not None])
    result = write(store, path(3))
    assert result.pruned == records[1]
    assert None not in result.records
    assert readable(store) == readable(open_store(directory)) == digests(0, 2, 3)


def made_up(directory: Path, number: int, size: int) -> Path:
    """Make a segment of this size from a seal alone; higher numbers were used later."""
    segment = directory / snapshot_key().digest / f"{number:032x}"
    segment.mkdir(parents=True)
    (segment / "seal.json").write_bytes(b"x" * size)
    os.utime(segment / "seal.json", ns=(number, number))
    return segment


def test_nothing_leaves_before_the_bound_is_exceeded_and_then_no_more_than_needed(directory: Path) -> None:
    first, second, third = (made_up(directory, number, size) for number, size in ((1, 10), (2, 20), (3, 30)))
    catalog = SnapshotCatalog(directory)
    assert catalog.evict(60) == []
    assert catalog.evict(59, keep=[first]) == [second]
    assert catalog.evict(40) == []
    leftover = made_up(directory, 4, 1)
    leftover.rename(leftover.with_name(".writing-left"))
    assert catalog.evict(40) == [first], "what is being written counts"
    assert catalog.evict(31) == []
    assert catalog.evict(30) == [third]


def test_snapshots_of_all_keys_share_one_bound(directory: Path, tmp_path: Path) -> None:
    size = size_of_one(tmp_path)
    for number in (1, 2):
        write(SnapshotStore(directory, snapshot_key(number), "other"), path(number))
    store = open_store(directory, 2 * size)
    assert write(store, path(0)).pruned == (), "they were not this store's"
    assert [len(segments(directory, number)) for number in range(3)] == [1, 0, 1]


def test_children_leave_before_their_parents(directory: Path, tmp_path: Path) -> None:
    """Check this with a recently used leaf and its prefix in other segments."""
    store = open_store(directory)
    pages = path(0, length=4)
    for page in pages:
        last = write(store, [page]).records[0]
    names = [snapshot_segments.open_segment(path).pages[0].digest for path in segments(directory)]
    assert names == [page.digest for page in reversed(pages)]
    assert last is not None
    for each in segments(directory):
        os.utime(each / "seal.json", ns=(1, 1))
    store.use([last])
    assert [snapshot_segments.open_segment(path).pages[0].digest for path in segments(directory)] == names
    for number in (3, 2, 1, 0):
        SnapshotCatalog(directory).prune(number * (max(map(store_entries.size_of, segments(directory))) + 100))
        assert readable(open_store(directory)) == {page.digest for page in pages[:number]}


def test_what_is_above_new_pages_never_leaves_for_them(directory: Path, tmp_path: Path) -> None:
    size = size_of_one(tmp_path)
    pages = path(0, length=9)
    store = open_store(directory, 2 * size)
    write(store, pages[:3])
    write(store, path(1))
    os.utime(segments(directory)[0] / "seal.json", ns=(1, 1))
    assert None not in write(store, pages[3:6]).records
    assert readable(store) == {page.digest for page in pages[:6]}
    with pytest.warns(RuntimeWarning, match="disk_cache_bytes, .*, has no room for some pages") as warned:
        outcome = write(store, pages[6:])
    assert (outcome.records, outcome.full) == ((None, None, None), True)
    assert len(warned) == 1
    assert write(store, pages[6:]).records == (None, None, None), "without a second warning"
    assert readable(open_store(directory)) == {page.digest for page in pages[:6]}


def test_the_bound_counts_all_bytes_on_disk(directory: Path) -> None:
    """Set a bound with room for the pages alone, but not for their segment."""
    capacity = sum(array.nbytes for array in contents(path(0)))
    store = open_store(directory, capacity)
    with pytest.warns(RuntimeWarning, match="of which the first are saved"):
        assert write(store, path(0)).full
    assert readable(store) == {page.digest for page in path(0)[:2]}
    assert 0 < stored_bytes(directory) <= capacity


def test_branches_that_do_not_fit_together_are_stored_one_after_the_other(directory: Path) -> None:
    """Write twice the pages of the bound, in batches that cut prefixes in two."""
    pages = [page for number in range(6) for page in path(number, length=6)]
    capacity = 18 * contents(pages[:1])[0].nbytes + (32 << 10)
    store = open_store(directory, capacity)
    for start in range(0, len(pages), 16):
        assert None not in write(store, pages[start : start + 16]).records[-2:]
    assert {page.digest for page in pages[-6:]} <= readable(open_store(directory))
    assert stored_bytes(directory) <= capacity


def test_a_full_store_goes_on_and_keeps_the_prefixes_that_were_used_last(directory: Path, tmp_path: Path) -> None:
    store = open_store(directory, 3 * size_of_one(tmp_path))
    for number in range(12):
        outcome = write(store, path(number))
        assert None not in outcome.records
        store.use([each for each in write(store, path(0)).records if each is not None])
    assert readable(open_store(directory)) == digests(0, 10, 11)


def test_a_failed_write_is_no_lack_of_room(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(snapshot_store, "write_segment", fail)
    with pytest.warns(RuntimeWarning, match="no space left"):
        outcome = write(open_store(directory), path(0))
    assert (outcome.records, outcome.full) == ((None, None, None), False)


def test_snapshots_are_listed_verified_pruned_and_cleared(directory: Path) -> None:
    before = time.time()
    for number, model in enumerate(("first", "second")):
        store = SnapshotStore(directory, snapshot_key(number), model)
        write(store, path(0))
        write(store, path(number + 1, length=2))
    second, first = SnapshotCatalog(directory).entries()
    assert (first.model, second.model) == ("first", "second")
    assert first.digest == snapshot_key(0).digest
    assert first.parts == snapshot_key(0).parts()
    assert (first.pages, first.tokens) == (5, 20)
    assert first.bytes == sum(map(store_entries.size_of, segments(directory)))
    assert before <= first.created <= first.used + 0.1 <= time.time() + 0.2
    assert first.used < second.used
    (segments(directory)[0] / "arrays" / "_METADATA").write_text("")
    assert list(SnapshotCatalog(directory).verify()) == [segments(directory)[0]]
    (segments(directory)[0] / "seal.json").write_text("")
    os.utime(segments(directory)[-1] / "seal.json", ns=(1, 1))
    assert {entry.model: entry.pages for entry in SnapshotCatalog(directory).entries()}["first"] < 5
    SnapshotCatalog(directory).prune(second.bytes)
    assert segments(directory) == []
    assert [entry.model for entry in SnapshotCatalog(directory).entries()] == ["second"]
    SnapshotCatalog(directory).clear()
    assert list(directory.iterdir()) == []


def test_pruning_removes_what_killed_processes_left(segment: Path, directory: Path) -> None:
    leftover = segment.with_name(".writing-left")
    for remove in (lambda: SnapshotCatalog(directory).prune(1 << 30), lambda: write(open_store(directory), path(1))):
        leftover.mkdir()
        (leftover / "file").write_text("half")
        remove()
        assert segment in segments(directory)
        assert not leftover.exists()


def test_a_missing_snapshot_is_explained_by_the_latest_of_the_same_model(directory: Path) -> None:
    for number, model in ((1, "a model"), (2, "a model"), (3, "another"), (4, "a model")):
        write(SnapshotStore(directory, snapshot_key(number), model), path(0))
    (segments(directory, 4)[0] / "seal.json").write_text("damaged")
    assert open_store(directory).explain() == {"weights": ("weights 0", "weights 2")}
    assert SnapshotStore(directory, snapshot_key(), "a third").explain() is None
    write(open_store(directory), path(0))
    assert open_store(directory).explain() is None


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o1777])
@pytest.mark.parametrize("inner", [False, True])
def test_a_directory_that_others_can_write_to_is_refused(mode: int, inner: bool, segment: Path) -> None:
    directory = segment.parent.parent
    store = open_store(directory)
    store.index()
    (segment.parent if inner else directory).chmod(mode)
    for call in (store.index, lambda: store.read([0]), lambda: write(store, path(1)), open_store(directory).index):
        with pytest.raises(UnsafeStorage, match=r"writable by others.*chmod"):
            call()
    if not inner:
        with pytest.raises(UnsafeStorage):
            SnapshotCatalog(directory).entries()
        with pytest.raises(UnsafeStorage):
            SnapshotStore(directory, snapshot_key(1), "a model").explain()


@pytest.mark.parametrize("inside", [".", "seal.json", "arrays", "arrays/_METADATA"])
def test_a_segment_that_others_can_write_to_is_refused_unread(
    inside: str, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_entries, "arrays_of", lambda *_: pytest.fail("it was read"))
    directory = segment.parent.parent
    store, place = open_store(directory), segment / inside
    store.index()
    place.chmod(place.stat().st_mode | stat.S_IWGRP)
    with pytest.raises(UnsafeStorage, match=r"writable by others.*chmod"):
        store.read([0])
    with pytest.raises(UnsafeStorage):
        open_store(directory).index()
    with pytest.raises(UnsafeStorage):
        SnapshotCatalog(directory).entries()
    assert "writable by others" in next(iter(SnapshotCatalog(directory).verify().values()))
    assert segment.exists(), "it is the user's to remove"


def test_a_directory_of_another_user_is_refused(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(UnsafeStorage, match=f"belongs to user {owner}.*delete it"):
        open_store(segment.parent.parent).index()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a file away")
def test_a_segment_with_a_file_of_another_user_is_refused(segment: Path) -> None:
    os.chown(large_file(segment), 12345, -1)
    with pytest.raises(UnsafeStorage, match="belongs to user 12345"):
        open_store(segment.parent.parent).index()


def test_pages_are_private_whatever_the_umask_is(directory: Path) -> None:
    before = os.umask(0)
    try:
        write(open_store(directory), path(0))
    finally:
        os.umask(before)
    for place in (directory, *directory.rglob("*")):
        assert stat.S_IMODE(place.stat().st_mode) & 0o077 == 0
    assert readable(open_store(directory)) == digests(0)


def writing_fails_with_one_warning(directory: Path, reason: str) -> None:
    store = open_store(directory)
    with pytest.warns(RuntimeWarning, match=reason) as warned:
        result = write(store, path(7))
    assert len(warned) == 1
    assert result.records == (None, None, None)
    assert write(store, path(8)).records == (None, None, None)


@EVERY_PROBLEM
@EVERY_CALL
def test_a_directory_that_cannot_be_written_to_costs_one_warning(call: str, problem: int, segment: Path) -> None:
    directory = segment.parent.parent
    with failing(call, problem):
        writing_fails_with_one_warning(directory, os.strerror(problem))
    assert list(segment.parent.iterdir()) == [segment], "nothing half-written stays"
    store = open_store(directory)
    assert len(readable(store)) == 8
    assert None not in write(store, path(7)).records, "later tries are allowed"


def test_pages_are_read_from_a_directory_that_cannot_be_written_to(segment: Path) -> None:
    with failing("os.utime", errno.EROFS):
        store = open_store(segment.parent.parent)
        assert len(readable(store)) == 8
        store.use(range(8))


def test_a_file_in_the_place_of_the_directory_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        assert open_store(place).index() == []
        writing_fails_with_one_warning(place, "FileExistsError|NotADirectoryError")


def test_a_full_disk_costs_one_warning(small_disk: Path) -> None:
    write(open_store(small_disk), path(0))
    (small_disk / "filler").write_bytes(b"x" * (1400 << 10))
    writing_fails_with_one_warning(small_disk, "No space left")
    (small_disk / "filler").unlink()
    assert len(segments(small_disk)) == 1
    assert readable(open_store(small_disk)) == digests(0)


def test_a_disk_that_fills_up_while_orbax_writes_costs_one_warning(segment: Path) -> None:
    with filling_up():
        writing_fails_with_one_warning(segment.parent.parent, "No space left")
    assert list(segment.parent.iterdir()) == [segment]


def test_what_was_written_before_the_disk_was_full_stays(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_store, "PAGES_PER_SEGMENT", 2)
    free = iter([1 << 30, 1 << 30, 0, 0])
    usage = shutil.disk_usage(directory.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=next(free)))
    store, pages = open_store(directory), path(0, length=7)
    with pytest.warns(RuntimeWarning, match="No space left"):
        result = write(store, pages)
    assert [record is None for record in result.records] == [False] * 4 + [True] * 3
    assert readable(store) == {page.digest for page in pages[:4]}


@pytest.mark.parametrize("follows", [False, True])
def test_what_is_stored_outlasts_a_power_cut(follows: bool, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: int(follows))
    store = open_store(directory)
    with watched(directory / snapshot_key().digest) as flushes:
        write(store, path(0))
        write(store, path(1))
    assert sorted(flushes.targets) == sorted(segments(directory))
    assert (flushes.unflushed, flushes.dirty) == ([], False)


@pytest.mark.parametrize(("free", "stored"), [(0, True), (-1, False)])
def test_some_room_is_left_on_the_disk(
    free: int, stored: bool, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = sum(array.nbytes for array in contents(path(0))) + store_entries.SPARE_BYTES
    usage = shutil.disk_usage(directory.parent)._replace(free=room + free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with nullcontext() if stored else pytest.warns(RuntimeWarning, match="No space left"):
        write(open_store(directory), path(0))
    assert len(segments(directory)) == stored


@pytest.mark.parametrize(("age", "remains"), [(-1, True), (1, False)])
def test_what_is_not_locked_yet_is_left_alone_for_an_hour(
    age: int, remains: bool, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    making = segment.with_name(".making-left")
    making.mkdir()
    created = making.stat().st_mtime
    monkeypatch.setattr(time, "time", lambda: created + store_entries.LEFTOVER_SECONDS + age)
    store_entries.remove_leftovers(segment.parent)
    assert making.exists() == remains


def test_threads_read_right_pages_while_others_write_and_evict(directory: Path, tmp_path: Path) -> None:
    store = open_store(directory, 3 * size_of_one(tmp_path))

    def work(number: int) -> None:
        for turn in range(8):
            if number % 2:
                records = write(store, path((number + turn) % 5)).records
                store.use([each for each in records if each is not None])
            else:
                readable(store)

    with warnings.catch_warnings(action="error"), ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert SnapshotCatalog(directory).verify() == {}
    assert readable(store) == readable(open_store(directory))


def test_a_page_is_never_written_twice_by_two_threads(directory: Path) -> None:
    store = open_store(directory)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: write(store, path(0)), range(4)))
    assert len({each.records for each in results}) == 1
    assert len(segments(directory)) == 1


def test_the_parent_of_a_first_page_is_its_namespace_s_root() -> None:
    assert path(0)[0].parent == root_digest("") != root_digest("x")
