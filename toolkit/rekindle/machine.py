"""All the parts of an engine for one model: loaded, allocated, compiled, and not yet running."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import Any

import jax
import jax.numpy as jnp

from rekindle.cache_view import CacheView, view
from rekindle.checkpoint.checkpoint import Checkpoint
from rekindle.checkpoint.layout import expected_shapes
from rekindle.checkpoint.open import open_checkpoint
from rekindle.config import Limits, Settings
from rekindle.defaults import sampling_defaults
from rekindle.detokenizer import Detokenizer
from rekindle.disk_tier import DiskTier
from rekindle.engine import Actors
from rekindle.errors import CheckpointError, InvalidRequest
from rekindle.executables import Executables
from rekindle.host_tier import DeviceCopies, HostTier, host_memory
from rekindle.intake import Intake
from rekindle.metrics import Stats
from rekindle.model_config import ModelConfig
from rekindle.models.load import load_decoder
from rekindle.page_copies import page_bytes
from rekindle.preparing import wait_for
from rekindle.program_key import Target
from rekindle.program_shelf import ProgramShelf
from rekindle.program_store import ProgramStore
from rekindle.programs import EMPTY, ENTER, GATHER, SCATTER, Key, Programs, Sizes
from rekindle.progress import Progress, Report
from rekindle.request import SamplingParams
from rekindle.restored import Restored
from rekindle.scheduler import Scheduler
from rekindle.settler import Settler
from rekindle.snapshot_key import SnapshotKey, weights_fingerprint
from rekindle.snapshot_store import SnapshotStore
from rekindle.step import Pages
from rekindle.stepper import Stepper
from rekindle.stored_page import StoredPage
from rekindle.stores import PROGRAMS, open_snapshots, require_all, store_directory
from rekindle.text.tokenizer import Tokenizer
from rekindle.threads import soon
from rekindle.weights import Weights, flat_weights, load_weights


@dataclass(frozen=True)
class Machine:
    """What `build` made.

    Attributes:
        source: where the model was opened.
        actors: wired by an `Engine`.
        tokenizer: None for a model that is asked by token ids alone.
        defaults: sampling options of calls that do not give them.
        unserved: what the model's generation_config asks for and Rekindle has not.
        free: deletes everything that it holds on the device, and the host tier.
        stats: a snapshot from any thread.
        cache: what the prefix cache holds, from any thread.
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
    cache: Callable[[], CacheView]
    load: Callable[[Weights], list[Any]]
    preparing: Sequence[Future[Any]]
    stored: Callable[[], "Future[None]"]
    restored: Callable[[], Restored]


def build(model: str | PathLike[str], settings: Settings, report: Report) -> Machine:
    """Load a model, allocate its pages, and make the programs that `settings.precompile` says.

    Programs are loaded or compiled, and pages allocated, on threads of their own while the weights are read.

    Raises:
        ModelError: the model cannot be opened.
        ConfigError: the settings do not fit the model.
        StorageError: the cache directory is not safe to load programs from.
        NotRestored: `restore="require"`, and not all programs are stored.
    """
    started = monotonic()
    report(Progress("opening the model", 0, 1, "model"))
    checkpoint = open_checkpoint(model, report)
    report(Progress("opening the model", 1, 1, "model"))
    config, device = checkpoint.config, jax.devices()[0]
    dtype = jnp.dtype(settings.dtype or ("float32" if device.platform == "cpu" else "bfloat16"))
    limits = Limits.of(settings, config, dtype.itemsize)
    defaults, unserved = _defaults(checkpoint, settings, limits)
    programs = Programs(config, sizes(limits), dtype, device.platform)
    directory = store_directory(settings.restore)
    shelf = None
    if directory is not None:
        store = ProgramStore(directory / PROGRAMS)
        shelf = ProgramShelf(store, programs, config, Target.of([device]), [device])
    snapshots = soon(partial(_snapshots, directory, checkpoint, limits, programs, dtype, settings), "snapshots")
    first, rest = _planned(settings, limits)
    if settings.restore == "require":
        require_all(shelf, [*first, *rest])
    executables = Executables(programs, settings.max_executables, shelf)
    try:
        preparing = executables.prepare(first)
        state = soon(lambda: executables.obtain(EMPTY).result()(), "device-state")
        preparing += executables.prepare(rest)
        executables.weights = _load(checkpoint, dtype, report)
        wait_for(preparing if settings.precompile == "all" else preparing[: len(first)], report)
        pages, slots = state.result()
        snapshot_store, stored = snapshots.result()
    except BaseException:
        executables.stop()
        raise
    scheduler, stepper = Scheduler(limits), Stepper(executables, pages, slots, limits)
    scheduler.restore(stored)
    restored_pages = scheduler.stats.disk_pages
    host_tier = _host_tier(pages, limits, snapshot_store)
    seconds = monotonic() - started

    def stats() -> Stats:
        return Stats(
            scheduler.stats, len(executables), executables.loads, executables.compilations, executables.unexpected
        )

    actors = Actors(
        intake=Intake(checkpoint.tokenizer, config.vocab_size, checkpoint.eos_ids, limits.max_context),
        scheduler=scheduler,
        stepper=stepper,
        settler=Settler(),
        detokenizer=Detokenizer(checkpoint.tokenizer),
        host_tier=host_tier,
        disk_tier=DiskTier(snapshot_store),
    )

    def cache() -> CacheView:
        tokenizer = checkpoint.tokenizer
        text_of = tokenizer.decode if tokenizer else lambda tokens: ""
        return scheduler.look(lambda tree: view(tree, limits.page_bytes, text_of))

    def load(weights: Weights) -> list[Any]:
        return load_weights(weights, config, dtype)

    def restored() -> Restored:
        differences = {part: pair for found in executables.misses.values() if found for part, pair in found.items()}
        tokens = restored_pages * limits.page_size
        return Restored(executables.loads, executables.compilations, restored_pages, tokens, seconds, differences)

    def free() -> None:
        executables.stop()
        stepper.free()
        host_tier.free()

    return Machine(
        checkpoint.source,
        config,
        limits,
        dtype.name,
        actors,
        checkpoint.tokenizer,
        defaults,
        unserved,
        free,
        stats,
        cache,
        load,
        preparing,
        executables.idle,
        restored,
    )


def sizes(limits: Limits) -> Sizes:
    """Of the device state within these limits."""
    return Sizes(limits.num_pages, limits.page_size, limits.pages_per_request, limits.max_running, limits.max_logprobs)


def _planned(settings: Settings, limits: Limits) -> tuple[list[Key], list[Key]]:
    """The programs to make before the first request, and those to make after them."""
    if settings.precompile == "lazy":
        return [EMPTY], []
    first: list[Key] = [EMPTY, *limits.first_buckets()]
    largest: list[Key] = [*sorted(limits.all_buckets(), key=sum, reverse=True)]
    rest: list[Key] = [GATHER, SCATTER, ENTER, *largest]
    return first, [key for key in rest if key not in first]


def _snapshots(
    directory: Path | None,
    checkpoint: Checkpoint,
    limits: Limits,
    programs: Programs,
    dtype: jnp.dtype,
    settings: Settings,
) -> tuple[SnapshotStore | None, Sequence[StoredPage]]:
    if directory is None or not limits.snapshots:
        return None, ()
    key = SnapshotKey.of(
        checkpoint.config,
        weights_fingerprint(checkpoint.files),
        dtype.name,
        limits.page_size,
        programs.page.shape,
        programs.page.dtype.name,
        programs.platform,
    )
    return open_snapshots(directory, key, checkpoint.source, settings.disk_cache_bytes)


def _host_tier(pages: Pages, limits: Limits, disk: SnapshotStore | None) -> HostTier:
    (device,) = pages[0].devices()
    copies = DeviceCopies(device, host_memory(device))
    return HostTier(limits.host_pages * limits.page_bytes, page_bytes(pages), copies, disk)


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


def _load(checkpoint: Checkpoint, dtype: jnp.dtype, report: Report) -> list[jax.Array]:
    total, read = len(expected_shapes(checkpoint.config)), 0

    def loaded(tensors: int) -> None:
        nonlocal read
        read += tensors
        report(Progress("loading weights", read, total, "tensors"))

    return flat_weights(load_decoder(checkpoint.config, checkpoint.tensors, dtype, loaded))
