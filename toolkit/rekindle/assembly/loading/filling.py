"""Filling of devices: the weights of a model, and the pages and slots of an idle engine."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any

import jax
import numpy as np

from rekindle.assembly.devices import put_on
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.huge_pages import collapse, prefer, spans_of
from rekindle.assembly.loading.joining import join, share
from rekindle.assembly.weights.keeping import DECODER, TOWER, Keeper
from rekindle.assembly.weights.reading import Conversion, ShardWeights, Source
from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.concurrency.threads import Work, soon
from rekindle.core.concurrency.warning import warn
from rekindle.core.device.jax_settings import with_overrides
from rekindle.core.device.memory import is_out_of_memory
from rekindle.core.device.orders import DeviceState, PlacedWeights
from rekindle.core.device.place import SAME, WEIGHTS, Place
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.functions import EMPTY
from rekindle.core.errors import ConfigError
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.shard import WHOLE
from rekindle.core.models.weights.form import WeightForm
from rekindle.core.words import quantity, size_text
from rekindle.formats.checkpoints.checkpoint import TowerFiles
from rekindle_kernels.api import Implementation


def fill(
    lanes: Sequence[tuple[Executables, Blueprint]], report: Report, keeper: Keeper, *, reads_weights: bool = True
) -> list[DeviceState]:
    """Read the weights while the pages and slots of each idle lane are allocated.

    Args:
        keeper: see `load`.
        reads_weights: whether there are weights to read; each lane has none otherwise.

    Raises:
        ModelError: the process is ending.
        ConfigError: the device has no room for the pages.
    """
    states = [soon(partial(with_overrides, empty_state, *lane), "device-state") for lane in lanes]
    blueprints = [blueprint for _, blueprint in lanes]
    try:
        weights: list[list[jax.Array]] = load(blueprints, report, keeper) if reads_weights else [[] for _ in lanes]
        towers = load_towers(blueprints, keeper)
    except BaseException:
        for state in states:  # which come into being now, on other threads
            with suppress(Exception):
                _delete(state.result())
        raise
    return [
        DeviceState(list(arrays), pages, slots, tower=tower, embeddings=no_embeddings(blueprint))
        for arrays, (pages, slots), tower, blueprint in zip(
            weights, (state.result() for state in states), towers, blueprints, strict=True
        )
    ]


def _delete(arrays: Any) -> None:
    for array in jax.tree.leaves(arrays):
        array.delete()


def load_towers(lanes: Sequence[Blueprint], keeper: Keeper) -> list[list[jax.Array]]:
    """Read the weights of the vision tower onto the devices of all lanes; none for a model without images.

    Args:
        keeper: see `load`.

    Raises:
        ModelError: the process is ending.
    """
    shapes, vision = lanes[0].programs.shapes, lanes[0].checkpoint.vision
    if shapes.vision is None or vision is None:
        return [[] for _ in lanes]
    conversion = Conversion(vision.config, vision.tensors, shapes.vision.form, shapes.implementation, join)
    return place_weights(keeper.over(conversion, TOWER), [lane.place for lane in lanes], of_tower=True)


def no_embeddings(blueprint: Blueprint) -> jax.Array | None:
    """Return the buffer for embeddings of images, or None for a model without images."""
    vision, place = blueprint.programs.shapes.vision, blueprint.place
    if vision is None:
        return None
    zeros = np.zeros(vision.buffer.shape, vision.buffer.dtype)
    shards = [with_overrides(jax.device_put, zeros, device) for device, _ in place.local_shards]
    return place.global_array(shards, SAME)


def empty_state(executables: Executables, blueprint: Blueprint) -> Any:
    """Allocate the pages and slots of an idle engine.

    Raises:
        ConfigError: the device has no room for the pages.
    """
    limits = blueprint.limits
    try:
        return jax.block_until_ready(executables.run(EMPTY))
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        required, memory = limits.pool.bytes, blueprint.budget.memory
        has = "" if memory is None else f", which has {size_text(memory)} in all"
        raise ConfigError(
            f"out of memory: a pool of {limits.pool.num_pages - 1:,} pages needs {size_text(required)}, and not enough "
            f"is free on {blueprint.place}{has}; lower pool_bytes or num_pages, or close other users of the device"
        ) from error


def load(lanes: Sequence[Blueprint], report: Report, keeper: Keeper) -> list[list[jax.Array]]:
    """Read the weights of a model onto the devices of all lanes, and report the bytes loaded.

    Args:
        keeper: the weights kept by earlier sessions.

    Returns:
        Arrays of each lane. Lanes on the same devices have the same arrays.

    Raises:
        ModelError: the process is ending.
    """
    blueprint = lanes[0]
    checkpoint, done, total = blueprint.checkpoint, 0, blueprint.programs.shapes.weight_bytes

    def report_bytes(size: int) -> None:
        nonlocal done
        done += size
        report(Progress("loading weights", done, total))

    implementation = blueprint.programs.shapes.implementation
    conversion = Conversion(checkpoint.config, checkpoint.tensors, blueprint.form, implementation, join, report_bytes)
    return place_weights(keeper.over(conversion, DECODER), [lane.place for lane in lanes])


def place_weights(source: Source, places: Sequence[Place], *, of_tower: bool = False) -> list[list[jax.Array]]:
    """Read weights onto this process's devices, one shard after the other. Each shard is read once.

    Args:
        source: reads the weights of a shard.
        of_tower: whether each device has all weights, as of a tower.

    Returns:
        Arrays of each place, in the order of the steps' arguments; the same arrays for the same place.

    Raises:
        ModelError: the process is ending.
    """
    by_shard: dict[tuple[int, int], ShardWeights] = {}
    joined: dict[Place, list[jax.Array]] = {}
    for place in dict.fromkeys(places):
        shards = []
        for device, shard in place.local_shards:
            shard = WHOLE if of_tower else shard
            key = shard.rank, shard.of
            if key in by_shard:
                arrays = [with_overrides(jax.device_put, array, device) for array in by_shard[key].arrays]
            else:
                by_shard[key] = source(shard, put_on(device))
                arrays = by_shard[key].arrays
            shards.append(arrays)
        spec = SAME if of_tower else WEIGHTS
        joined[place] = [place.global_array(list(each), spec) for each in zip(*shards, strict=True)]
    if count := sum(each.infinite for each in by_shard.values()):
        warn(
            f"{quantity(count, 'number')} of the {'tower' if of_tower else 'weights'} left the range of float16, which "
            'ends at 65,504, and became infinite: dtype="float32" has room for them'
        )
    return [joined[place] for place in places]


def place_new_weights(
    config: ModelConfig,
    tensors: Mapping[str, Any],
    form: WeightForm,
    implementation: Implementation,
    places: Sequence[Place],
    *,
    tower: TowerFiles | None = None,
    shares: bool = False,
) -> list[PlacedWeights]:
    """Read weights like `place_weights` while a session serves with others; on CPUs, into huge pages.

    Args:
        tower: another vision tower; None to keep the tower.
        shares: whether weights may share memory with the tensors; see `share`.
    """
    joining = share if shares else join
    weights = place_weights(Conversion(config, tensors, form, implementation, joining), places)
    collapse(spans_of(distinct(weights)))
    towers: list[list[jax.Array]] = [[] for _ in places]
    if tower is not None:
        conversion = Conversion(tower.config, tower.tensors, WeightForm(form.dtype), implementation, join)
        towers = place_weights(conversion, places, of_tower=True)
    return list(map(PlacedWeights, weights, towers))


def distinct(weights: Sequence[Sequence[jax.Array]]) -> list[jax.Array]:
    """Return the arrays of all lanes, without duplicates."""
    return list({id(array): array for arrays in weights for array in arrays}.values())


def keep_later(
    keeper: Keeper, lanes: Sequence[Blueprint], states: Sequence[DeviceState], ready: Sequence[Future[None]]
) -> Callable[[], None]:
    """Keep new weights and towers on disk, as `Keeper.keep_later` does."""
    weights = [(DECODER, lane.place, state.weights) for lane, state in zip(lanes, states, strict=True)]
    towers = [(TOWER, lane.place, state.tower) for lane, state in zip(lanes, states, strict=True)]
    return keeper.keep_later([*weights, *towers], ready)


def collapse_later(
    weights: Sequence[jax.Array], pages: Sequence[jax.Array], ready: Sequence[Future[None]]
) -> Callable[[], None]:
    """Move weights and pages on CPUs into huge pages in the background, once the programs are ready.

    A pause follows each page, as long as the move took. Parts of the pool without a write stay unallocated. Call the
    returned function before the weights are deleted: it stops the work.
    """
    spans, pool, stop = spans_of(weights), spans_of(pages), Event()

    def work() -> None:
        wait(ready)
        prefer(pool)
        collapse([*spans, *pool], should_stop=stop.wait)

    if spans or pool:
        Work(work, "huge-pages", stop.set)
    return stop.set
