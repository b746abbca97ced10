"""All the parts of an engine for one model: loaded, allocated, compiled, and not yet running."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
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
from rekindle.engine import Actors
from rekindle.errors import CheckpointError, InvalidRequest
from rekindle.executables import ENTER, GATHER, SCATTER, Executables
from rekindle.host_tier import DeviceCopies, HostTier, host_memory
from rekindle.intake import Intake
from rekindle.metrics import Stats
from rekindle.model_config import ModelConfig
from rekindle.models.decoder import Decoder
from rekindle.models.load import load_decoder
from rekindle.page_copies import page_bytes
from rekindle.progress import Progress, Report
from rekindle.request import SamplingParams
from rekindle.scheduler import Scheduler
from rekindle.settler import Settler
from rekindle.step import Pages, empty_pages, empty_slots
from rekindle.stepper import Stepper
from rekindle.text.tokenizer import Tokenizer
from rekindle.weights import Weights, load_weights


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


def build(model: str | PathLike[str], settings: Settings, report: Report) -> Machine:
    """Load a model, allocate its pages, and compile what `settings.precompile` says.

    Raises:
        ModelError: the model cannot be opened.
        ConfigError: the settings do not fit the model.
    """
    report(Progress("opening the model", 0, 1, "model"))
    checkpoint = open_checkpoint(model, report)
    report(Progress("opening the model", 1, 1, "model"))
    config = checkpoint.config
    dtype = jnp.dtype(settings.dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16"))
    limits = Limits.of(settings, config, dtype.itemsize)
    defaults, unserved = _defaults(checkpoint, settings, limits)
    decoder = _load(checkpoint, dtype, report)
    pages = empty_pages(config, limits.num_pages, limits.page_size, dtype)
    slots = empty_slots(limits.max_running, limits.pages_per_request, config.vocab_size)
    executables = Executables(decoder, pages, slots, settings.max_executables, limits.max_logprobs)
    if settings.precompile == "all":
        executables.compile_all([ENTER, GATHER, SCATTER, *limits.all_buckets()], report)
    compiled = executables.compilations
    scheduler, stepper = Scheduler(limits), Stepper(executables, pages, slots, limits)
    host_tier = _host_tier(pages, limits)

    def stats() -> Stats:
        compilations = executables.compilations
        return Stats(scheduler.stats, len(executables), compilations, compilations - compiled)

    actors = Actors(
        intake=Intake(checkpoint.tokenizer, config.vocab_size, checkpoint.eos_ids, limits.max_context),
        scheduler=scheduler,
        stepper=stepper,
        settler=Settler(),
        detokenizer=Detokenizer(checkpoint.tokenizer),
        host_tier=host_tier,
    )

    def cache() -> CacheView:
        tokenizer = checkpoint.tokenizer
        text_of = tokenizer.decode if tokenizer else lambda tokens: ""
        return scheduler.look(lambda tree: view(tree, limits.page_bytes, text_of))

    def load(weights: Weights) -> list[Any]:
        return load_weights(weights, config, dtype)

    def free() -> None:
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
    )


def _host_tier(pages: Pages, limits: Limits) -> HostTier:
    (device,) = pages[0].devices()
    return HostTier(limits.host_pages * limits.page_bytes, page_bytes(pages), DeviceCopies(device, host_memory(device)))


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


def _load(checkpoint: Checkpoint, dtype: jnp.dtype, report: Report) -> Decoder:
    total, read = len(expected_shapes(checkpoint.config)), 0

    def loaded(tensors: int) -> None:
        nonlocal read
        read += tensors
        report(Progress("loading weights", read, total, "tensors"))

    return load_decoder(checkpoint.config, checkpoint.tensors, dtype, loaded)
