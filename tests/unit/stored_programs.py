"""Make programs and keys for tests of the executable store, and use it from other processes."""

import json
import os
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rekindle.core.buckets import Bucket
from rekindle.core.device.jax_settings import JaxSettings
from rekindle.core.device.programs.functions import Key
from rekindle.core.device.programs.key import ProgramKey, SharedKey, Target
from rekindle.core.device.programs.lowering import Program
from rekindle.core.device.programs.store import ProgramStore, Serialized
from rekindle.core.models.config import ModelConfig, Rope
from rekindle.core.store.catalog import DEFAULT_BYTES
from tests.compilations import listen

MODEL = ModelConfig.llama(
    family="llama", vocab_size=9, hidden_size=8, intermediate_size=8, num_layers=3, num_heads=4, num_kv_heads=2,
    head_dim=4, max_context=64, norm_eps=1e-5, rope=Rope(10000.0),
)  # fmt: skip
ARGUMENT = np.arange(256, dtype=np.float32)


def some_key(number: int) -> ProgramKey:
    """Make a key independent of sources, versions and machines."""
    target = Target("cpu", "1", "cpu", "cpu:0", "", "a cpu")
    return ProgramKey(f"program {number}", "{}", "x", "here", SharedKey("c", "m", "f", "j", "p", "3", target))


def nth(number: int) -> Bucket:
    """Return the bucket of the program of `some_key(number)`."""
    return Bucket(number, 0)


def key_of(key: Key) -> ProgramKey:
    """Return the key of a bucket of `nth`."""
    assert isinstance(key, Bucket)
    return some_key(key.prefill_tokens)


def open_programs(directory: Path, capacity_bytes: int = DEFAULT_BYTES) -> ProgramStore:
    """Open the store of the programs of `some_key` anew."""
    return ProgramStore(directory, key_of, jax.devices()[:1], capacity_bytes)


def save_as(directory: Path, key: ProgramKey, program: Serialized, model: str = "") -> None:
    """Store a program under any key, as one of a model."""
    assert ProgramStore(directory, lambda _: key, (), model=model).save(nth(0), program)


def small_program(factor: float = 2.0) -> jax.stages.Compiled:
    """Compile a multiplication of `ARGUMENT`."""
    return jax.jit(lambda x: x * np.float32(factor)).lower(ARGUMENT).compile()


def serialized(program: jax.stages.Compiled | None = None) -> Serialized:
    """Serialize a program, by default `small_program()`, as the store takes it."""
    content = open_programs(Path()).serialize(small_program() if program is None else program)
    assert content is not None
    return content


def multiplies(program: Program, factor: float = 2.0) -> bool:
    """Return True if a program multiplies as `small_program` does."""
    return np.array_equal(np.asarray(program(jax.device_put(ARGUMENT))), ARGUMENT * np.float32(factor))


def in_other_processes(count: int, work: Callable[..., None], *arguments: object) -> list[int | None]:
    """Run a function of this file in fresh processes, all at once; return their exit codes."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["rekindle.core.device.programs.store", "orbax.checkpoint"])
    processes = [context.Process(target=work, args=arguments) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def save_until_killed(directory: Path, log: Path, first: int, done: int, seconds: float) -> None:
    """Save one program after the other, and log each stored one; be killed some seconds after the first `done` ones."""
    program, store = serialized(), open_programs(directory)
    store.save(nth(first), program)
    with log.open("a", buffering=1) as file:
        for number in range(first, first + 10_000):
            if number == first + done:  # the signal's default action ends the process at once, as SIGKILL does
                signal.setitimer(signal.ITIMER_REAL, seconds)
            store.save(nth(number), program)
            file.write(f"{number}\n")


def share(directory: Path, rounds: int, capacity_bytes: int) -> None:
    """Load and save the same few programs as another process, and check that each is right."""
    warnings.simplefilter("error")
    programs = [serialized(small_program(number)) for number in range(5)]
    for turn in range(rounds):
        number = (turn * (1 + os.getpid() % 4)) % 5
        store = open_programs(directory, capacity_bytes)
        program = store.load(nth(number))
        if program is None:
            assert store.save(nth(number), programs[number])
        else:
            assert multiplies(program, number)


def use_each_of_two_devices(directory: Path) -> None:
    """Save a program for each device, load both, and check that they run there."""
    jax.config.update("jax_num_cpu_devices", 2)
    for number, device in enumerate(jax.devices()):
        there = jax.device_put(ARGUMENT, device)
        doubling = jax.jit(lambda x: x + x).lower(there).compile()
        store = ProgramStore(directory, key_of, [device])
        assert store.save(nth(number), serialized(doubling))
        program = store.load(nth(number))
        assert program is not None
        result = program(there)
        assert np.array_equal(np.asarray(result), 2 * ARGUMENT)
        assert result.devices() == {device}


def model_key(model: ModelConfig, shapes: tuple[Any, ...]) -> ProgramKey:
    """Make the key of an engine with one device, for the shapes of weights, pages, slots and packed inputs."""
    arguments = dict(zip(("weights", "pages", "slots", "packed"), shapes, strict=True))
    return ProgramKey.of(
        SharedKey.of(model, Target.of(jax.devices()[:1]), JaxSettings.here()), "16 + 2", {"max_logprobs": 2}, arguments
    )


def run_stored_step(directory: Path, model: ModelConfig, shapes: tuple[Any, ...], inputs: Path, outputs: Path) -> None:
    """Run a stored step on stored inputs, alone and in four threads; write the outputs and the counters to files."""
    jax.config.update("jax_numpy_dtype_promotion", "strict")  # as in conftest.py, because it is part of the key
    compilations = listen()
    program = ProgramStore(directory, lambda _: model_key(model, shapes), jax.devices()[:1]).load(nth(0))
    assert program is not None
    with np.load(inputs) as stored:
        leaves = [stored[f"arr_{place}"] for place in range(len(jax.tree.leaves(shapes)))]

    def run() -> tuple[list[np.ndarray], list[bool]]:
        weights, pages, slots, packed = jax.tree.unflatten(jax.tree.structure(shapes), jax.device_put(leaves))
        results = [np.asarray(leaf) for leaf in jax.tree.leaves(program(weights, pages, slots, packed))]
        return results, [leaf.is_deleted() for leaf in jax.tree.leaves((weights, pages, slots))]

    results, donated = run()
    with ThreadPoolExecutor(4) as pool:
        others = list(pool.map(lambda _: run()[0], range(8)))
    report = {
        "compilations": compilations,
        "donated": donated,
        "same_in_threads": all(
            np.array_equal(x, y, equal_nan=True) for other in others for x, y in zip(results, other, strict=True)
        ),
    }
    np.savez(outputs, *results)
    outputs.with_suffix(".json").write_text(json.dumps(report))
