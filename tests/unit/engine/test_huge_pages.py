"""Weights are put into huge pages where they lie, once a session's programs are ready."""

import mmap
import threading
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

import jax
import numpy as np
import pytest

import rekindle
from rekindle.assembly.loading import filling, huge_pages
from rekindle.assembly.loading.filling import collapse_later
from rekindle.assembly.loading.huge_pages import COLLAPSE, collapse, prefer, spans_of
from tests.engine.small import SMALL
from tests.waiting import PATIENCE, until_blocking

SIZE = 2 << 20


def some_memory(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def possible() -> bool:
    """Return True if this machine's kernel makes huge pages of existing memory, and none of its own accord."""
    try:
        memory = some_memory(4 * SIZE)
        memory.write(bytes(4 * SIZE))
        memory.madvise(COLLAPSE)
    except (OSError, AttributeError, ValueError):
        return False
    size, enabled = ((huge_pages.SETTINGS / name).read_text() for name in ("hpage_pmd_size", "enabled"))
    return int(size) == SIZE and "[madvise]" in enabled


needs_them = pytest.mark.skipif(not possible(), reason="this kernel makes no huge pages, or not only when it is asked")


def arrays_in(memory: mmap.mmap, count: int) -> list[jax.Array]:
    """Return arrays in some memory, one behind the other, each smaller than a huge page."""
    whole = np.frombuffer(memory, np.float32)
    whole[:] = np.arange(len(whole))
    return [jax.device_put(part) for part in np.split(whole, count)]


def huge_bytes(begin: int, end: int) -> int:
    """Return the bytes of some memory in huge pages by the kernel's count, neighbours in its mapping included."""
    size, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, *rest = line.split()
        if "-" in head and ":" not in head:
            low, high = (int(each, 16) for each in head.split("-"))
            inside = low < end and begin < high
        elif inside and head == "AnonHugePages:":
            size += int(rest[0]) * 1024
    return size


def test_arrays_that_lie_side_by_side_are_one_span() -> None:
    memory = some_memory(8 * SIZE)
    first, second, third, fourth = arrays_in(memory, 4)
    begin = first.unsafe_buffer_pointer()
    assert spans_of([third, first, second]) == [(begin, begin + 6 * SIZE)]
    assert spans_of([fourth, first]) == [(begin, begin + 2 * SIZE), (begin + 6 * SIZE, begin + 8 * SIZE)]
    assert spans_of([]) == []


@needs_them
def test_small_arrays_share_huge_pages_and_keep_their_place_and_content() -> None:
    memory = some_memory(8 * SIZE)
    arrays = arrays_in(memory, 16)
    ((begin, end),) = spans_of(arrays)
    places = [array.unsafe_buffer_pointer() for array in arrays]
    before = huge_bytes(begin, end)
    done = collapse([(begin, end)])
    assert done >= 7 * SIZE, "all but the ends, which may lie across"
    assert huge_bytes(begin, end) >= before + done
    assert [array.unsafe_buffer_pointer() for array in arrays] == places
    assert np.array_equal(np.concatenate(arrays), np.arange(8 * SIZE // 4, dtype=np.float32))


@needs_them
def test_it_stops_between_two_pages() -> None:
    memory = some_memory(8 * SIZE)
    spans = spans_of(arrays_in(memory, 4))
    assert collapse(spans, should_stop=lambda seconds: seconds > 0) == SIZE


def test_memory_that_is_gone_is_left_alone() -> None:
    memory = some_memory(8 * SIZE)
    begin = np.frombuffer(memory, np.uint8).ctypes.data
    memory.close()
    assert collapse([(begin, begin + 8 * SIZE)]) == 0


@pytest.mark.parametrize("setting", ["always madvise [never]", None], ids=["refused", "unknown"])
def test_nothing_is_done_where_nobody_wants_it(
    setting: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting is not None:
        (tmp_path / "enabled").write_text(setting)
        (tmp_path / "hpage_pmd_size").write_text(str(SIZE))
    monkeypatch.setattr(huge_pages, "SETTINGS", tmp_path)
    huge_pages.page_size.cache_clear()
    try:
        memory = some_memory(8 * SIZE)
        spans = spans_of(arrays_in(memory, 4))
        prefer(spans)
        assert collapse(spans) == 0
    finally:
        monkeypatch.undo()
        huge_pages.page_size.cache_clear()


@needs_them
@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended"])
def test_weights_settle_once_the_programs_are_ready_unless_the_session_ended_before(ended: bool) -> None:
    memory = some_memory(8 * SIZE)
    arrays = arrays_in(memory, 4)
    ((begin, end),) = spans_of(arrays)
    before, ready = huge_bytes(begin, end), Future[None]()
    others = set(threading.enumerate())
    stop = collapse_later(arrays[:2], arrays[2:], [ready])
    (worker,) = (each for each in threading.enumerate() if each not in others and each.name == "rekindle-huge-pages")
    until_blocking(lambda: ready._waiters or not worker.is_alive(), "somebody waited for the programs")
    assert huge_bytes(begin, end) == before
    if ended:
        stop()
    ready.set_result(None)
    worker.join(PATIENCE)
    gain = huge_bytes(begin, end) - before
    assert gain <= SIZE if ended else gain >= 7 * SIZE


@needs_them
def test_the_pool_takes_huge_pages_by_its_writes_and_nothing_before() -> None:
    memory = some_memory(8 * SIZE)
    whole = np.frombuffer(memory, np.uint8)
    (span,) = spans_of([jax.device_put(whole)])
    assert span[0] == whole.ctypes.data, "the array is in this memory"
    before, first = huge_bytes(*span), -span[0] % SIZE
    whole[first + SIZE] = 1
    assert huge_bytes(*span) == before, "its first page is a small one"
    prefer([span])
    assert huge_bytes(*span) == before, "memory without a write is not allocated"
    assert collapse([span]) == SIZE
    assert huge_bytes(*span) == before + SIZE, "the page with a write, and no other"
    whole[first + 3 * SIZE] = 1
    assert huge_bytes(*span) == before + 2 * SIZE
    whole[-1] = 1
    assert huge_bytes(*span) == before + 2 * SIZE + (SIZE if (span[1] % SIZE == 0) else 0), "but for the ends"


def test_weights_of_a_session_settle_and_others_are_there_before_they_are_used(
    families: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = SimpleQueue[list[huge_pages.Span]]()
    monkeypatch.setattr(filling, "collapse", lambda spans, **options: requests.put(spans))
    model = families / "llama-tied"
    with rekindle.open_sync(model, progress=False, precompile="lazy", restore="off", **SMALL) as session:
        first = requests.get(timeout=PATIENCE)
        session.update_weights_sync(model)
        second = requests.get(block=False)
    assert all(end > begin for begin, end in [*first, *second])
    assert first
    assert second
