"""Filling devices: the weights of a model, and the pages and slots of an idle engine."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp

from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.concurrency.threads import Work, soon
from rekindle.core.device.devices import put_on
from rekindle.core.device.huge_pages import collapse, spans_of
from rekindle.core.device.jax_settings import under_own_settings
from rekindle.core.device.orders import DeviceState
from rekindle.core.device.place import WEIGHTS, Place
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.lowering import EMPTY
from rekindle.core.engine.loading.blueprint import Blueprint
from rekindle.core.errors import ConfigError
from rekindle.core.markup import size_text
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.load import load_weights
from rekindle_kernels.api import Implementation


def fill(lanes: Sequence[tuple[Executables, Blueprint]], report: Report) -> list[DeviceState]:
    """Read the weights, and meanwhile allocate the pages and slots of each idle lane.

    Raises:
        ModelError: the process is ending.
        ConfigError: the device has no room for the pages.
    """
    states = [soon(partial(under_own_settings, empty_state, *lane), "device-state") for lane in lanes]
    weights = load([blueprint for _, blueprint in lanes], report)
    return [DeviceState(list(own), *state.result()) for own, state in zip(weights, states, strict=True)]


def empty_state(executables: Executables, blueprint: Blueprint) -> Any:
    """Allocate the pages and slots of an idle engine.

    Raises:
        ConfigError: the device has no room for them.
    """
    limits = blueprint.limits
    try:
        return jax.block_until_ready(executables.run(EMPTY))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        needed, memory = limits.pool.bytes, blueprint.budget.memory
        has = "" if memory is None else f", which has {size_text(memory)} in all"
        raise ConfigError(
            f"a pool of {limits.pool.num_pages - 1:,} pages needs {size_text(needed)}, and there is no room for it now "
            f"on {blueprint.place}{has}; lower pool_bytes or num_pages, or close what else is on the device"
        ) from error


def load(lanes: Sequence[Blueprint], report: Report) -> list[list[jax.Array]]:
    """Read the weights of a model onto the devices of all lanes, and report how many bytes are there.

    Returns:
        Those of each lane. Lanes on the same devices have the same arrays.

    Raises:
        ModelError: the process is ending.
    """
    blueprint = lanes[0]
    checkpoint, read, total = blueprint.checkpoint, 0, blueprint.programs.weight_bytes

    def loaded(size: int) -> None:
        nonlocal read
        read += size
        report(Progress("loading weights", read, total))

    return place_weights(
        checkpoint.config,
        checkpoint.tensors,
        blueprint.dtype,
        blueprint.programs.implementation,
        [lane.place for lane in lanes],
        loaded,
    )


def place_weights(
    config: ModelConfig,
    tensors: Mapping[str, Any],
    dtype: jnp.dtype,
    implementation: Implementation,
    places: Sequence[Place],
    loaded: Callable[[int], None] = lambda _: None,
) -> list[list[jax.Array]]:
    """Read weights onto this process's devices, each one's share after the other. Each share is read once.

    Args:
        loaded: called with the bytes that came onto a device since the last call.

    Returns:
        Arrays in the order in which every step takes them, for each place; the same arrays for the same place.

    Raises:
        ModelError: the process is ending.
    """
    read: dict[tuple[int, int], list[jax.Array]] = {}
    joined: dict[Place, list[jax.Array]] = {}
    for place in dict.fromkeys(places):
        shares = []
        for device, shard in place.own_shards:
            share = shard.rank, place.tensor
            if share in read:
                there = [under_own_settings(jax.device_put, array, device) for array in read[share]]
            else:
                there = load_weights(config, tensors, dtype, loaded, put_on(device), implementation, shard)
                read[share] = there
            shares.append(there)
        joined[place] = [place.joined(list(each), WEIGHTS) for each in zip(*shares, strict=True)]
    return [joined[place] for place in places]


def place_new_weights(
    config: ModelConfig,
    tensors: Mapping[str, Any],
    dtype: jnp.dtype,
    implementation: Implementation,
    places: Sequence[Place],
) -> list[list[jax.Array]]:
    """Read weights as `place_weights` does while a session serves with others; on CPUs, into huge pages."""
    weights = place_weights(config, tensors, dtype, implementation, places)
    collapse(spans_of(distinct(weights)))
    return weights


def distinct(weights: Sequence[Sequence[jax.Array]]) -> list[jax.Array]:
    """Return the arrays of all lanes, those that lanes share once."""
    return list({id(array): array for own in weights for array in own}.values())


def settle(weights: Sequence[jax.Array], ready: Sequence[Future[None]]) -> Callable[[], None]:
    """Put weights on CPUs into huge pages in the background once the programs are ready.

    After each page comes a pause that is as long. Return what stops it; call that before the weights are deleted.
    """
    spans, stop = spans_of(weights), Event()

    def work() -> None:
        wait(ready)
        collapse(spans, stopped=stop.wait)

    if spans:
        Work(work, "huge-pages", stop.set)
    return stop.set
