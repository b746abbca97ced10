"""The host tier keeps gathered pages, within its bound, and stages them again, while the loop goes on."""

import threading
from collections.abc import Sequence
from typing import Any

import anyio
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from rekindle.core.concurrency.mailbox import Mailbox
from rekindle.core.engine.actor import Stage
from rekindle.core.engine.actors.host_tier import DeviceCopies, HostTier, host_memory
from rekindle.core.messages import Copy, Dispatched, Drop, Fetch, Fetched, Gathered, Message, Offloaded
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

PAGE_BYTES = 10
CPU = jax.devices("cpu")[0]


class Name(str):
    """A page with a name for its content."""

    nbytes = PAGE_BYTES


class Named:
    """Copies of named pages between memories. Each copy waits for `permits`.

    Attributes:
        started: set at the start of each copy.
    """

    def __init__(self, permits: int = 1000):
        self.permits = threading.Semaphore(permits)
        self.started = threading.Event()
        self.threads: set[int] = set()
        self.full = False

    def keep(self, pages: Sequence[str]) -> list[str]:
        self._copy()
        self._require_room()
        return [Name(f"kept {page}") for page in pages]

    def stage(self, entries: Sequence[str]) -> list[str]:
        self._copy()
        self._require_room()
        return [f"staged {entry}" for entry in entries]

    def _require_room(self) -> None:
        if self.full:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    def _copy(self) -> None:
        self.started.set()
        self.threads.add(threading.get_ident())
        assert self.permits.acquire(timeout=PATIENCE), "nobody let this copy go on"


async def keep(tier: HostTier, pages: dict[int, Any]) -> bool:
    """Gather pages as numbered entries; return True if the tier keeps all."""
    contents = tuple(Name(page) if isinstance(page, str) else page for page in pages.values())
    (saved,) = await tier.handle(Gathered(5, tuple(pages), contents))
    assert isinstance(saved, Offloaded)
    assert saved.offload_id == 5
    return saved.is_stored


async def fetched(tier: HostTier, *entries: int) -> Fetched:
    (fetched,) = await tier.handle(Fetch(6, tuple(Copy(entry, None) for entry in entries)))
    assert isinstance(fetched, Fetched)
    assert fetched.request_id == 6
    return fetched


async def test_what_was_kept_is_staged_in_the_order_that_is_asked_for() -> None:
    tier = HostTier(100, Named())
    assert await keep(tier, {1: "a", 3: "b", 4: "c"})
    assert await fetched(tier, 4, 1) == Fetched(6, ("staged kept c", "staged kept a"))
    assert await fetched(tier, 3) == Fetched(6, ("staged kept b",))
    assert (len(tier), tier.bytes) == (3, 30)


async def test_no_more_is_kept_than_the_bound_allows_and_never_a_part_of_a_save() -> None:
    tier = HostTier(39, Named())
    assert await keep(tier, {0: "a", 1: "b"})
    assert not await keep(tier, {2: "c", 3: "d"})
    assert tier.bytes == 20
    assert await keep(tier, {4: "c"})
    await tier.handle(Drop((0, 1)))
    assert await keep(tier, {5: "d", 6: "e"})
    assert tier.bytes == 30


async def test_a_dropped_entry_is_gone_and_dropping_what_is_not_there_does_nothing() -> None:
    tier = HostTier(100, Named())
    await keep(tier, {1: "a", 3: "b"})
    assert await tier.handle(Drop((1,))) == []
    assert await tier.handle(Drop((1, 0, 2))) == []
    assert len(tier) == 1
    assert await fetched(tier, 1, 3, 2) == Fetched(6, None, (Copy(1, None), Copy(2, None)))


async def test_an_entry_that_is_dropped_before_it_is_there_takes_no_room() -> None:
    tier = HostTier(20, Named())
    await tier.handle(Drop((1, 2)))
    assert await keep(tier, {0: "a", 1: "b", 2: "c", 3: "d"})
    assert len(tier) == 2
    assert await fetched(tier, 0, 1, 2, 3) == Fetched(6, None, (Copy(1, None), Copy(2, None)))
    assert await fetched(tier, 3, 0) == Fetched(6, ("staged kept d", "staged kept a"))
    assert not vars(tier)["_dropped_ahead"], "nothing is kept of what was dropped"


async def test_a_full_device_fails_the_fetch_alone() -> None:
    copies = Named()
    tier = HostTier(100, copies)
    await keep(tier, {0: "a"})
    copies.full = True
    assert await fetched(tier, 0) == Fetched(6, None)
    copies.full = False
    assert await fetched(tier, 0) == Fetched(6, ("staged kept a",))


async def test_full_host_memory_fails_the_save_alone() -> None:
    copies = Named()
    tier = HostTier(100, copies)
    copies.full = True
    assert not await keep(tier, {0: "a"})
    copies.full = False
    assert await keep(tier, {1: "b"})
    assert len(tier) == 1


async def test_pages_that_the_device_had_no_room_to_gather_are_not_kept() -> None:
    tier = HostTier(100, Named())
    await tier.handle(Drop((1,)))
    assert await tier.handle(Gathered(5, (0, 1), ())) == [Offloaded(5, is_stored=False)]
    assert await keep(tier, {2: "c"})
    assert len(tier) == 1


async def test_freeing_forgets_everything() -> None:
    tier = HostTier(100, Named())
    await keep(tier, {0: "a", 1: "b"})
    tier.free()
    assert tier.bytes == 0


async def test_another_actors_message_is_refused() -> None:
    with pytest.raises(TypeError, match="the host tier takes no"):
        await HostTier(100, Named()).handle(Dispatched(1, (), (), None))


async def test_a_drop_that_comes_while_its_entry_is_staged_waits_for_it_and_the_loop_for_neither() -> None:
    copies, outbox = Named(permits=1), Mailbox[Message]()
    tier = HostTier(100, copies)
    stage = Stage("host_tier", tier, outbox.put, lambda message: None, lambda record: None)
    await keep(tier, {0: "a"})
    copies.started.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.run)
        stage.mailbox.put(Fetch(6, (Copy(0, None),)))
        stage.mailbox.put(Drop((0,)))
        await anyio.wait_all_tasks_blocked()  # the loop turns
        assert copies.started.wait(PATIENCE)
        assert len(tier) == 1
        copies.permits.release()
        assert await outbox.receive() == Fetched(6, ("staged kept a",))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert len(tier) == 0
    assert threading.get_ident() not in copies.threads


@pytest.mark.parametrize("message", [Gathered(5, (1,), (Name("b"),)), Fetch(6, (Copy(0, None),))])
async def test_the_engine_can_stop_while_a_copy_hangs(message: Message) -> None:
    copies = Named(permits=1)
    tier = HostTier(100, copies)
    assert await keep(tier, {0: "a"})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tier.handle, message)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    copies.permits.release()
    assert len(tier) == 1


# Copies between real memories


@pytest.mark.parametrize("memory", [None, "pinned_host"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
async def test_pages_come_back_to_the_device_bit_for_bit(memory: str | None, dtype: type) -> None:
    tier = HostTier(1 << 20, DeviceCopies(SingleDeviceSharding(CPU), memory))
    rng = np.random.default_rng(0)
    pages: list[np.ndarray[Any, Any]] = [np.asarray(rng.integers(0, 60000, (2, 2, 1, 4, 3)), dtype) for _ in range(3)]
    assert await keep(tier, dict(enumerate(map(jnp.asarray, pages))))
    answer = await fetched(tier, 2, 0, 1)
    assert answer.staged is not None
    for staged, page in zip(answer.staged, (pages[2], pages[0], pages[1]), strict=True):
        assert isinstance(staged, jax.Array)
        assert staged.sharding.memory_kind == CPU.default_memory().kind
        np.testing.assert_array_equal(np.asarray(staged), page)


async def test_entries_are_in_the_memory_that_was_chosen() -> None:
    (entry,) = DeviceCopies(SingleDeviceSharding(CPU), "pinned_host").keep([jnp.ones(3)])
    assert entry.sharding.memory_kind == "pinned_host"
    (entry,) = DeviceCopies(SingleDeviceSharding(CPU), None).keep([jnp.ones(3)])
    assert isinstance(entry, np.ndarray)
    assert host_memory(CPU) is None, "its device memory is host memory"
