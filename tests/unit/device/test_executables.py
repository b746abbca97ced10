"""Programs are made once, in order of need, on threads of their own; a late one is reported."""

import asyncio
import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, wait
from types import SimpleNamespace
from typing import Any, cast
from weakref import ref

import anyio
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from anyio import to_thread

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.core.buckets import Bucket
from rekindle.core.device.orders import DeviceState, StateOrder
from rekindle.core.device.place import ROWS, SAME, Place
from rekindle.core.device.programs import executables as executables_module
from rekindle.core.device.programs import workers
from rekindle.core.device.programs.executables import ArgumentsLost, Executables
from rekindle.core.device.programs.functions import EMPTY, ENTER, GATHER, SCATTER, DeviceProgram, Key, ProgramFunction
from rekindle.core.device.programs.lowering import Program, Programs
from rekindle.core.device.programs.shapes import ModelShapes
from rekindle.core.device.programs.store import ProgramStore, Serialized
from rekindle.core.device.programs.workers import WORKERS
from rekindle.core.device.state import Sizes
from rekindle.core.errors import SessionClosed, UnsafeStorage
from rekindle.core.models.weights.form import WeightForm
from rekindle.testing import FAKE_MODEL
from tests.waiting import PATIENCE, until, until_blocking

STEPS: list[Key] = [Bucket(64, 0), Bucket(0, 1), Bucket(0, 4), Bucket(0, 32)]
STEP = Bucket(64, 0)


class GatedPrograms:
    """A stand-in for `Programs`; a program is compiled when its gate is open."""

    def __init__(self, *, closed: Sequence[Key] = ()):
        self.gates = {key: threading.Event() for key in closed}
        self.starts: list[Key] = []
        self.fails: set[Key] = set()
        self._lock = threading.Lock()

    def arguments(self, key: Key) -> dict[str, Any]:
        return {"weights": [jax.ShapeDtypeStruct((2, 3), jnp.float32)], "packed": np.zeros(4, np.int32)}

    def compile(self, key: Key, arguments: Sequence[Any] | None = None) -> Program:
        with self._lock:
            self.starts.append(key)
        if key in self.gates:
            assert self.gates[key].wait(PATIENCE)
        if key in self.fails:
            raise RuntimeError(f"no {key}")
        return lambda *_: key

    def check_devices(self, key: Key, arguments: Sequence[Any]) -> None:
        """Take arguments wherever they are."""


class Store:
    """A stand-in for `ProgramStore`; a program is loaded when its gate is open."""

    def __init__(self, stored: Sequence[Key] = (), *, closed: Sequence[Key] = ()):
        self.stored = set(stored)
        self.gates = {key: threading.Event() for key in closed}
        self.serialized: list[Key] = []
        self.saved: list[Key] = []

    def load(self, key: Key) -> Program | None:
        if key in self.gates:
            assert self.gates[key].wait(PATIENCE)
        return (lambda: key) if key in self.stored else None

    def missing(self, keys: Sequence[Key]) -> list[Key]:
        return [key for key in keys if key not in self.stored]

    def serialize(self, program: Program, seconds: float) -> Serialized | None:
        self.serialized.append(program())
        return Serialized({}, seconds)

    def save(self, key: Key, program: Serialized) -> bool:
        self.saved.append(key)
        return True

    def explain(self, key: Key) -> dict[str, tuple[str, str]] | None:
        return {"code": ("new", "old")}


def build_executables(programs: GatedPrograms, capacity: int = 64, store: Store | None = None) -> Executables:
    return Executables(cast(Programs, programs), capacity, cast(ProgramStore, store) if store else None)


def test_every_program_is_made_once_in_the_order_of_asking() -> None:
    programs = GatedPrograms()
    executables = build_executables(programs)
    wait(executables.prepare(STEPS), PATIENCE)
    assert [executables.obtain(key).result(PATIENCE)() for key in STEPS] == STEPS
    assert Counter(programs.starts) == Counter(STEPS)
    assert (
        executables.builder.compilations,
        executables.builder.loads,
        executables.builder.unexpected,
        len(executables),
    ) == (4, 0, 0, 4)


def test_what_somebody_waits_for_overtakes_what_is_prepared() -> None:
    programs = GatedPrograms(closed=STEPS)
    executables = build_executables(programs)
    executables.prepare(STEPS)
    urgent = executables.obtain(STEPS[-1])
    # No gate is open yet, so those in turn can begin no more than these.
    until_blocking(lambda: len(programs.starts) == WORKERS + 1, "each worker and the urgent one had begun")
    assert Counter(programs.starts) == Counter([*STEPS[:WORKERS], STEPS[-1]])
    for gate in programs.gates.values():
        gate.set()
    assert urgent.result(PATIENCE)() == STEPS[-1]
    executables.idle().result(PATIENCE)


def test_stored_programs_are_loaded_and_others_saved() -> None:
    programs, store = GatedPrograms(), Store(STEPS[:2])
    executables = build_executables(programs, store=store)
    wait(executables.prepare(STEPS), PATIENCE)
    executables.idle().result(PATIENCE)
    assert (executables.builder.loads, executables.builder.compilations) == (2, 2)
    assert Counter(programs.starts) == Counter(store.saved) == Counter(STEPS[2:])
    assert executables.builder.misses == {key: {"code": ("new", "old")} for key in STEPS[2:]}


def test_a_program_is_serialized_before_anybody_can_call_it() -> None:
    """Check the order: XLA cannot serialize a sort after its first run."""
    store, snapshots = Store(), list[list[Key]]()
    executables = build_executables(GatedPrograms(), store=store)
    executables.obtain(ENTER).add_done_callback(lambda _: snapshots.append(list(store.serialized)))
    executables.idle().result(PATIENCE)
    assert snapshots == [[ENTER]]
    assert store.saved == [ENTER]


def test_a_failure_is_told_to_all_who_wait_and_another_try_is_made_later() -> None:
    programs = GatedPrograms(closed=[ENTER])
    programs.fails.add(ENTER)
    executables = build_executables(programs)
    waiting = [executables.obtain(ENTER), executables.obtain(ENTER)]
    programs.gates[ENTER].set()
    for future in waiting:
        with pytest.raises(RuntimeError, match="no enter"):
            future.result(PATIENCE)
    programs.fails.clear()
    assert executables.obtain(ENTER).result(PATIENCE)() == ENTER


def test_a_planned_program_that_failed_is_made_again_without_a_warning_of_something_else() -> None:
    programs = GatedPrograms()
    programs.fails.add(ENTER)
    executables = build_executables(programs)
    (planned,) = executables.prepare([ENTER])
    with pytest.raises(RuntimeError, match="no enter"):
        planned.result(PATIENCE)
    with pytest.raises(RuntimeError, match="no enter"):
        executables.obtain(ENTER).result(PATIENCE)
    assert executables.builder.unexpected == 0


@pytest.mark.parametrize("planned", [False, True])
def test_each_program_that_is_compiled_again_after_it_was_given_up_is_told(planned: bool) -> None:
    executables = build_executables(GatedPrograms(), capacity=1)
    if planned:
        wait(executables.prepare([GATHER, SCATTER]), PATIENCE)
    with warnings.catch_warnings(record=True) as reports:
        warnings.simplefilter("default")  # which shows a text of one line once
        for key in (GATHER, SCATTER, GATHER, SCATTER):
            executables.obtain(key).result(PATIENCE)
        executables.idle().result(PATIENCE)
    messages = [str(each.message) for each in reports]
    assert len(messages) == executables.builder.unexpected == executables.builder.compilations - 2
    assert len(messages) >= 2
    assert all("it was evicted, because max_executables=1" in each for each in messages)
    assert len(executables) == 1


def test_a_program_that_was_given_up_and_is_stored_is_loaded_again() -> None:
    executables = build_executables(GatedPrograms(), capacity=1, store=Store([GATHER, SCATTER]))
    for key in (GATHER, SCATTER, GATHER):
        executables.obtain(key).result(PATIENCE)
    assert (executables.builder.loads, executables.builder.compilations, executables.builder.unexpected) == (3, 0, 0)


class Broken(Store):
    """A store of programs with a failure at every call, but not at a load."""

    def __init__(
        self,
        stored: Sequence[Key],
        donated: jax.Array | None = None,
        message: str = "NOT_FOUND: Function wrapped_broadcast not found",
    ):
        super().__init__(stored)
        self.dropped: list[Key] = []
        self._donated, self._message = donated, message

    def load(self, key: Key) -> Program | None:
        def fail(*arguments: Any) -> Any:
            if self._donated is not None:
                self._donated.delete()
            raise jax.errors.JaxRuntimeError(self._message)

        return fail if key in self.stored else None

    def drop(self, key: Key, error: Exception) -> None:
        self.dropped.append(key)
        self.stored.discard(key)


@pytest.mark.anyio
async def test_a_loaded_program_that_fails_at_its_first_call_is_dropped_and_made_anew() -> None:
    store = Broken([GATHER, STEP])
    executables = build_executables(GatedPrograms(), store=store)
    assert executables.run(GATHER) == GATHER
    _, step = await executables.for_step(STEP)
    assert await executables.call(STEP, step) == STEP
    assert store.dropped == store.saved == [GATHER, STEP]
    assert (executables.builder.loads, executables.builder.compilations) == (2, 2)
    assert executables.run(GATHER) == GATHER


@pytest.mark.anyio
async def test_a_loaded_program_that_takes_its_arguments_with_it_fails_once_and_is_made_anew() -> None:
    pages = jax.numpy.zeros(3)
    store = Broken([STEP], pages)
    executables = build_executables(GatedPrograms(), store=store)
    _, step = await executables.for_step(STEP)
    with pytest.raises(ArgumentsLost):
        await executables.call(STEP, step, pages)
    assert store.dropped == store.saved == [STEP]


@pytest.mark.anyio
async def test_a_loaded_program_without_memory_for_its_first_call_is_not_damaged() -> None:
    store = Broken([STEP], message="RESOURCE_EXHAUSTED: Out of memory")
    executables = build_executables(GatedPrograms(), store=store)
    _, step = await executables.for_step(STEP)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
        await executables.call(STEP, step)
    assert not store.dropped


@pytest.mark.parametrize("at", ["load", "explain", "save"])
def test_a_store_that_becomes_unsafe_is_used_no_more_and_stops_nobody(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store([GATHER])

    def refuse(*arguments: object) -> None:
        raise UnsafeStorage("writable by others")

    monkeypatch.setattr(store, at, refuse)
    executables = build_executables(GatedPrograms(), store=store)
    with warnings.catch_warnings(record=True, action="always") as reports:
        for key in (SCATTER, GATHER):
            assert executables.run(key) == key
            executables.idle().result(PATIENCE)
    (message,) = [str(each.message) for each in reports]
    assert message == "compiled programs are no longer loaded or saved: writable by others"
    assert (executables.builder.loads, executables.builder.compilations, store.saved) == (0, 2, [])


def test_stopping_ends_the_wait_for_what_is_not_begun() -> None:
    programs = GatedPrograms(closed=STEPS)
    executables = build_executables(programs)
    futures = executables.prepare(STEPS)
    until_blocking(lambda: len(programs.starts) == WORKERS, "each worker had begun")
    executables.stop()
    for future in futures[WORKERS:]:
        with pytest.raises(SessionClosed):
            future.result(PATIENCE)
    for gate in programs.gates.values():
        gate.set()
    executables.idle().result(PATIENCE)
    assert len(programs.starts) == WORKERS


def test_programs_that_are_freed_are_gone_at_once_and_those_that_come_later_too() -> None:
    """Check the release of programs at once, without a garbage collection: each keeps code mapped into memory."""
    programs = GatedPrograms(closed=[ENTER])
    executables = build_executables(programs)
    ready = executables.prepare(STEPS)
    wait(ready, PATIENCE)
    later = executables.obtain(ENTER)
    references = [ref(executables.obtain(key).result(PATIENCE)) for key in STEPS]
    executables.free()
    programs.gates[ENTER].set()
    references.append(ref(later.result(PATIENCE)))
    executables.idle().result(PATIENCE)
    del later
    assert [each() for each in references] == [None] * len(references)
    assert len(executables) == 0
    assert all(future.result() is None for future in ready), "that they had been ready can still be told"


async def ask(executables: Executables, minimum: Bucket, buckets: list[Bucket]) -> None:
    """Append the bucket of the program for a step to a list."""
    bucket, program = await executables.for_step(minimum)
    assert program() == bucket
    buckets.append(bucket)


@pytest.mark.anyio
async def test_a_larger_bucket_serves_while_the_needed_one_is_made() -> None:
    small, large, other = Bucket(0, 1), Bucket(0, 4), Bucket(64, 0)
    programs = GatedPrograms(closed=[small, large])
    executables = build_executables(programs)
    await executables.ready(other)
    executables.prepare([small, large])
    buckets: list[Bucket] = []

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, executables, small, buckets)
        await anyio.wait_all_tasks_blocked()
        assert buckets == [], "a bucket that does not hold as much was taken"
        await until(lambda: executables.awaited == small, "the engine waited for the program")
        programs.gates[large].set()
    assert executables.awaited is None
    await ask(executables, small, buckets)
    programs.gates[small].set()
    await to_thread.run_sync(executables.obtain(small).result, PATIENCE)
    await ask(executables, small, buckets)
    assert buckets == [large, large, small]


@pytest.mark.anyio
@pytest.mark.parametrize(("larger", "serves"), [(Bucket(192, 0), False), (Bucket(128, 0), True), (Bucket(64, 4), True)])
async def test_a_stored_program_is_waited_for_unless_a_larger_bucket_pads_little(
    larger: Bucket, serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, wait_for_one = Bucket(64, 0), executables_module._wait_for_one
    waited_for: list[Sequence[Future[Program]]] = []

    def noting(programs: Sequence[Future[Program]]) -> None:
        waited_for.append(programs)
        wait_for_one(programs)

    monkeypatch.setattr(executables_module, "_wait_for_one", noting)
    store = Store([small, larger], closed=[small])
    executables = build_executables(GatedPrograms(), store=store)
    await executables.ready(larger)
    executables.prepare([small])
    buckets: list[Bucket] = []

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, executables, small, buckets)
        await until(lambda: buckets or waited_for, "a program served or was waited for")
        assert buckets == ([larger] if serves else []), "it was loading all that time"
        store.gates[small].set()
    assert buckets == [larger if serves else small]
    assert executables.builder.compilations == 0


class Computing:
    """A stand-in for an array, computed once `done` is set; `waited_for` is set as soon as somebody waits."""

    def __init__(self) -> None:
        self.waited_for, self.done = threading.Event(), threading.Event()

    def block_until_ready(self) -> "Computing":
        self.waited_for.set()
        assert self.done.wait(PATIENCE)
        return self


def test_patient_programs_wait_until_what_was_called_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "QUIET_SECONDS", 0.01)
    executables, result, donated = build_executables(GatedPrograms()), Computing(), jnp.ones(2)
    donated.delete()
    executables.obtain(STEP).result(PATIENCE)
    asyncio.run(executables.call(STEP, lambda: [donated, result]))
    (later,) = executables.prepare([ENTER], patient=True)
    until_blocking(lambda: result.waited_for.is_set() or later.done(), "a worker waited for what was called")
    assert not later.done(), "it was made while a program ran"
    result.done.set()
    assert wait([later], PATIENCE).done


@pytest.mark.anyio
async def test_a_bucket_that_nobody_planned_is_made_though_a_larger_one_is_ready() -> None:
    executables = build_executables(GatedPrograms())
    await executables.ready(Bucket(0, 4))
    bucket, program = await executables.for_step(Bucket(0, 1))
    assert program() == bucket == Bucket(0, 1)


@pytest.mark.anyio
async def test_the_first_call_of_a_program_is_made_in_a_worker_thread_and_later_ones_are_not() -> None:
    executables, here = Executables(cast(Programs, GatedPrograms()), capacity=4), threading.get_ident()
    executables.prepare(STEPS[:1])[0].result()

    def calls(argument: int) -> tuple[int, int]:
        return argument, threading.get_ident()

    first, second = [await executables.call(STEPS[0], calls, 7) for _ in range(2)]
    assert (first[0], second) == (7, (7, here))
    assert first[1] != here


@pytest.mark.anyio
async def test_a_program_that_refuses_its_arguments_is_compiled_for_them() -> None:
    executables, key = build_executables(GatedPrograms()), Bucket(0, 1)

    def refuse(*_: object) -> None:
        raise TypeError("compiled for other arguments")

    arguments = ([np.zeros((2, 4), "f4")], np.zeros(4, "i4"))
    with pytest.warns(RuntimeWarning, match="shape of weights"):
        assert await executables.call(key, refuse, *arguments) == key
    assert executables.builder.compilations == executables.builder.unexpected == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([np.zeros((2, 4), "f4")], np.zeros(4, "i4")), r"shape of weights\[0\] is \(2, 4\) instead of \(2, 3\)"),
        (([np.zeros((2, 3), "f2")], np.zeros(4, "i4")), r"dtype of weights\[0\] is float16 instead of float32"),
        (([np.zeros((2, 3), "f4")], np.zeros(5, "i4")), r"shape of packed is \(5,\) instead of \(4,\)"),
        (([np.zeros((2, 3), "f4")] * 2, np.zeros(4, "i4")), "weights has another structure"),
    ],
)
def test_a_compilation_for_other_arguments_says_which_property_differs(arguments: Sequence[Any], message: str) -> None:
    executables = build_executables(GatedPrograms())
    with pytest.warns(RuntimeWarning, match=message):
        executables.builder.compile_for(Bucket(0, 1), arguments)
    assert executables.builder.unexpected == 1


def test_a_real_program_that_is_called_with_another_dtype_raises_before_it_takes_anything() -> None:
    """Check the order: the stepper relies on it for a compilation for other arguments."""
    sizes = Sizes(num_pages=4, page_size=16, pages_per_request=2, max_running=2, max_logprobs=0)
    programs = Programs(FAKE_MODEL, sizes, WeightForm(jnp.dtype("float32")), Place((jax.devices()[0],)))
    page = programs.compile(SCATTER)
    pages, _ = programs.compile(EMPTY)()
    content = np.zeros(programs.shapes.state.page.shape, np.float16)
    with pytest.raises(TypeError):
        page(pages, np.int32(1), content)
    assert not any(layer.is_deleted() for layer in pages)
    again = programs.compile(GATHER, (pages, np.int16(1)))
    assert again(pages, np.int16(1)).shape == programs.shapes.state.page.shape


def test_a_further_program_is_one_record() -> None:
    """Check the record alone: its name, its arguments, its function, and the part of the state for its orders."""

    def build(shapes: ModelShapes) -> ProgramFunction:
        def put(tokens: jax.Array, slot: jax.Array, token: jax.Array) -> jax.Array:
            return tokens.at[slot].set(token)

        arguments = {"tokens": shapes.state.slots.token, "slot": np.int32(0), "token": np.int32(0)}
        function = shapes.place.on_each_device(put, (ROWS, SAME, SAME), ROWS)
        return ProgramFunction(function, arguments, (ROWS, SAME, SAME), ROWS, (0,))

    put_token = DeviceProgram("put token", build, "slots.token")
    sizes = Sizes(num_pages=4, page_size=16, pages_per_request=2, max_running=2, max_logprobs=0)
    programs = Programs(FAKE_MODEL, sizes, WeightForm(jnp.dtype("float32")), Place((jax.devices()[0],)))
    executables = Executables(programs, 4)
    state = DeviceState([], *executables.run(EMPTY))
    for order in (StateOrder(put_token, 1, np.int32(7)), StateOrder(put_token, 2, np.int32(9))):
        assert state.take(order, executables.run(order.key, *state.arguments(order))) is None
    assert state.slots.token.tolist() == [0, 7, 9]
    assert "rekindle_put_token_" in programs.lower(put_token).as_text()
    executables.free()


def test_no_program_has_the_name_of_another() -> None:
    """Check the names: an entry of JAX's own cache under a known name lacks its code."""
    sizes = Sizes(num_pages=5, page_size=16, pages_per_request=4, max_running=2, max_logprobs=0)
    form, place = WeightForm(jnp.dtype("float32")), Place((jax.devices()[0],))
    programs = [Programs(FAKE_MODEL, sizes, form, place) for _ in range(2)]
    texts = [each.lower(EMPTY).as_text() for each in (*programs, *programs)]
    names = [text.partition("module @")[2].split()[0] for text in texts]
    assert len({*names}) == 4
    assert all(name.startswith("jit_rekindle_empty_") for name in names)


def test_a_session_begins_with_stored_programs_that_serve_and_compiles_the_others_in_quiet_times() -> None:
    prefills, decodes = [Bucket(512, 0), Bucket(64, 0)], [Bucket(0, 1), Bucket(0, 4)]
    keys: list[Key] = [EMPTY, prefills[0], decodes[0], SCATTER, prefills[1], decodes[1]]
    blueprint: Any = SimpleNamespace(first_programs=keys[:3])

    def begins(*stored: Key) -> tuple[Sequence[Key], Sequence[Key], bool]:
        return Blueprint.in_turn(blueprint, "background", keys, stored)

    assert begins() == (keys[:3], keys[3:], True)
    assert begins(*keys) == (keys[:3], keys[3:], False)
    small: list[Key] = [EMPTY, decodes[0], prefills[1]]
    assert begins(*small) == (small, [prefills[0], SCATTER, decodes[1]], False)
    assert begins(*small, SCATTER, decodes[1]) == (
        [EMPTY, decodes[0], SCATTER, prefills[1]],
        [decodes[1], prefills[0]],
        False,
    )
    lists: list[list[Key]] = [small[:2], small[1:], [EMPTY, *prefills]]
    for lacking in lists:
        first, later, waits = begins(*lacking)
        assert (first, set(later), waits) == (keys[:3], set(keys[3:]), True)
        stored_first = [key in lacking for key in later]
        assert stored_first == sorted(stored_first, reverse=True)
