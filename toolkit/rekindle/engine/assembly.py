"""All the parts of an engine for one model: loaded, allocated, compiled, and not yet running."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from os import PathLike
from time import monotonic
from typing import Any

import jax

from rekindle.concurrency.progress import Progress, Report
from rekindle.concurrency.threads import soon
from rekindle.config import Settings
from rekindle.device.programs.executables import Executables, wait_for
from rekindle.device.programs.lowering import EMPTY
from rekindle.device.state import Pages, Slots, page_bytes
from rekindle.engine.actors.detokenizer import Detokenizer
from rekindle.engine.actors.disk_tier import DiskTier
from rekindle.engine.actors.host_tier import DeviceCopies, HostTier, host_memory
from rekindle.engine.actors.intake import Intake
from rekindle.engine.actors.settler import Settler
from rekindle.engine.actors.stepper import Stepper
from rekindle.engine.blueprint import Blueprint
from rekindle.engine.engine import Actors, Compose, composed
from rekindle.engine.stores import Stored, open_shelf, open_snapshots, require_all, store_directory
from rekindle.errors import CheckpointError, InvalidRequest
from rekindle.models.checkpoint.checkpoint import Checkpoint
from rekindle.models.checkpoint.defaults import sampling_defaults
from rekindle.models.checkpoint.open import open_checkpoint
from rekindle.models.checkpoint.weights import Weights, flat_weights, load_weights
from rekindle.models.config import ModelConfig
from rekindle.models.families import Family
from rekindle.models.load import load_decoder
from rekindle.models.text.tokenizer import Tokenizer
from rekindle.request import SamplingParams
from rekindle.scheduler.cache.tree import PrefixTree
from rekindle.scheduler.limits import Limits
from rekindle.scheduler.scheduler import Scheduler
from rekindle.scheduler.stats import Stats
from rekindle.store.entries import import_orbax
from rekindle.store.restored import Restored
from rekindle.store.validity import apart

LOADED_AT_ONCE = 3
"""Stored programs that are loaded while the weights are read; the others wait for a moment of quiet."""


@dataclass(frozen=True)
class Assembly:
    """What `build` made.

    Attributes:
        source: where the model was opened.
        actors: wired by an `Engine`.
        tokenizer: None for a model that is asked by token ids alone.
        defaults: sampling options of calls that do not give them.
        unserved: what the model's generation_config asks for and Rekindle has not.
        free: deletes everything that it holds on the device, and the host tier.
        stats: a snapshot from any thread.
        look: what a function says of the prefix tree, between two messages, from any thread.
        load: reads weights of the same structure from another model, or takes tensors by their names, as device arrays
            in the order of `Executables.weights`.
        preparing: every program that is made ahead of need, whether it is ready or not.
        stored: done once programs that were compiled are stored.
        restored: what was found of earlier sessions, from any thread.
    """

    source: str
    model: ModelConfig
    limits: Limits
    dtype: str
    actors: Actors
    tokenizer: Tokenizer | None
    defaults: Mapping[str, Any]
    unserved: tuple[str, ...]
    free: Callable[[], None]
    stats: Callable[[], Stats]
    look: Callable[[Callable[[PrefixTree], Any]], Any]
    load: Callable[[Weights], list[Any]]
    preparing: Sequence[Future[Any]]
    stored: Callable[[], "Future[None]"]
    restored: Callable[[], Restored]


def build(
    model: str | PathLike[str],
    settings: Settings,
    report: Report,
    *,
    compose: Compose | None = None,
    family: Family | None = None,
) -> Assembly:
    """Load a model, allocate its pages, and make the programs that `settings.precompile` says.

    Args:
        compose, family: as `rekindle.open` takes them.

    Raises:
        ModelError: the model cannot be opened.
        ConfigError: the settings do not fit the model.
        UnsafeStorage: somebody else could have written what is in the cache directory.
        NotRestored: `restore="require"`, and not all programs are stored.
    """
    started = monotonic()
    report(Progress("opening the model", 0, 1, "model"))
    checkpoint = open_checkpoint(model, report, family)
    report(Progress("opening the model", 1, 1, "model"))
    blueprint = Blueprint.of(checkpoint, settings, jax.devices()[0])
    defaults, unserved = _defaults(checkpoint, settings, blueprint.limits)
    parts = _parts(blueprint, settings, report)
    limits = blueprint.limits
    scheduler, stepper = Scheduler(limits), Stepper(parts.executables, parts.pages, parts.slots, limits)
    scheduler.restore(parts.stored.pages)
    running = Running(blueprint, parts, scheduler, stepper, _host_tier(blueprint, parts), monotonic() - started)
    actors = Actors(
        intake=Intake(checkpoint.tokenizer, checkpoint.config.vocab_size, checkpoint.eos_ids, limits.max_context),
        scheduler=scheduler,
        stepper=stepper,
        settler=Settler(),
        detokenizer=Detokenizer(checkpoint.tokenizer),
        host_tier=running.host_tier,
        disk_tier=DiskTier(parts.stored.store),
    )
    try:
        actors = composed(actors, compose)
    except BaseException:
        running.free()
        raise
    return Assembly(
        source=checkpoint.source,
        model=checkpoint.config,
        limits=limits,
        dtype=blueprint.dtype.name,
        actors=actors,
        tokenizer=checkpoint.tokenizer,
        defaults=defaults,
        unserved=unserved,
        free=running.free,
        stats=running.stats,
        look=scheduler.look,
        load=partial(running.load, family=family),
        preparing=parts.preparing,
        stored=parts.executables.idle,
        restored=running.restored,
    )


@dataclass(frozen=True)
class Parts:
    """What takes time to get.

    Attributes:
        executables: with the weights.
        preparing: as in `Assembly`.
        pages, slots: the state of an idle engine.
        stored: the snapshot of the prefix cache.
    """

    executables: Executables
    preparing: Sequence[Future[Any]]
    pages: Pages
    slots: Slots
    stored: Stored


@dataclass(frozen=True)
class Running:
    """What a machine tells and does while its actors run.

    Attributes:
        seconds: that it took to open.
    """

    blueprint: Blueprint
    parts: Parts
    scheduler: Scheduler
    stepper: Stepper
    host_tier: HostTier
    seconds: float

    def stats(self) -> Stats:
        """See `Assembly`, like the others."""
        made = self.parts.executables
        return Stats(self.scheduler.stats, len(made), made.loads, made.compilations, made.unexpected)

    def load(self, weights: Weights, family: Family | None) -> list[Any]:
        return load_weights(weights, self.blueprint.checkpoint.config, self.blueprint.dtype, family)

    def restored(self) -> Restored:
        made, nodes = self.parts.executables, len(self.parts.stored.pages)
        misses = [found for found in (self.parts.stored.differences, *tuple(made.misses.values())) if found]
        differences = {part: apart(pair) for found in misses for part, pair in found.items()}
        tokens = nodes * self.blueprint.limits.page_size
        return Restored(made.loads, made.compilations, nodes, tokens, self.seconds, differences)

    def free(self) -> None:
        self.parts.executables.stop()
        self.stepper.free()
        self.host_tier.free()


def _parts(blueprint: Blueprint, settings: Settings, report: Report) -> Parts:
    """Read the weights; programs are loaded or compiled, and pages allocated, on threads of their own meanwhile."""
    directory = store_directory(settings.restore)
    shelf = open_shelf(directory, blueprint)
    stored = open_snapshots(directory, blueprint, settings.disk_cache_bytes)
    orbax = None if directory is None else soon(import_orbax, "orbax")
    wanted = blueprint.all_programs(cached=bool(stored.pages))
    if settings.restore == "require":
        require_all(shelf, wanted)
    quick = shelf is not None and not shelf.missing(wanted)
    first = wanted[:LOADED_AT_ONCE] if quick else blueprint.first_programs
    match settings.precompile:
        case "all":
            first = wanted
        case "lazy":
            first = wanted = [EMPTY]
    executables = Executables(blueprint.programs, settings.max_executables, shelf)
    try:
        preparing = executables.prepare(first)
        state = soon(lambda: executables.obtain(EMPTY).result()(), "device-state")
        executables.weights = _load(blueprint, report)
        pages, slots = state.result()
        if orbax is not None:
            orbax.result()
        if not quick or settings.precompile == "all":  # else a request waits for nothing but what it needs
            wait_for(preparing, report)
        preparing += executables.prepare([key for key in wanted if key not in first], patient=True)
    except BaseException:
        executables.stop()
        raise
    return Parts(executables, preparing, pages, slots, stored)


def _host_tier(blueprint: Blueprint, parts: Parts) -> HostTier:
    limits, device = blueprint.limits, blueprint.device
    copies = DeviceCopies(device, host_memory(device))
    return HostTier(limits.host_pages * limits.page_bytes, page_bytes(parts.pages), copies, parts.stored.store)


def _defaults(checkpoint: Checkpoint, settings: Settings, limits: Limits) -> tuple[dict[str, Any], tuple[str, ...]]:
    if settings.sampling_defaults == "neutral":
        return {}, ()
    defaults, unserved = sampling_defaults(checkpoint.generation_config)
    try:
        SamplingParams.from_options(defaults).check_against(checkpoint.config.vocab_size, limits.max_logprobs)
    except InvalidRequest as error:
        raise CheckpointError(
            f'{checkpoint.source}: generation_config.json: {error}. Correct it, or give sampling_defaults="neutral"'
        ) from error
    return defaults, unserved


def _load(blueprint: Blueprint, report: Report) -> list[jax.Array]:
    checkpoint, read = blueprint.checkpoint, 0
    total = len(checkpoint.tensors)

    def loaded(tensors: int) -> None:
        nonlocal read
        read += tensors
        report(Progress("loading weights", read, total, "tensors"))

    return flat_weights(load_decoder(checkpoint.config, checkpoint.tensors, blueprint.dtype, loaded))
