"""All the parts of an engine for one model: loaded, allocated, compiled, and not yet running."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import PathLike
from time import monotonic
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from rekindle.core.checkpoints.checkpoint import Checkpoint
from rekindle.core.checkpoints.defaults import sampling_defaults
from rekindle.core.checkpoints.open import open_checkpoint
from rekindle.core.checkpoints.weights import Weights, tensors_of
from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.config import Settings
from rekindle.core.device.devices import places_of, places_over
from rekindle.core.device.jax_settings import own_settings
from rekindle.core.device.place import Place
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.held import HeldPrograms
from rekindle.core.device.programs.readiness import wait_for
from rekindle.core.engine.actors.detokenizer import Detokenizer
from rekindle.core.engine.actors.disk_tier import DiskTier
from rekindle.core.engine.actors.grammars import Grammars, jumps_on
from rekindle.core.engine.actors.host_tier import Copies, DeviceCopies, HostTier, SharedCopies, host_memory
from rekindle.core.engine.actors.intake import Intake
from rekindle.core.engine.actors.settler import Settler
from rekindle.core.engine.actors.stepper import Stepper
from rekindle.core.engine.actors.tokenizing import Tokenizing
from rekindle.core.engine.assembling.blueprint import Blueprint
from rekindle.core.engine.assembling.filling import filled, replacing, settle
from rekindle.core.engine.assembling.planning import fewest, plan
from rekindle.core.engine.assembling.stores import open_stores, store_directory
from rekindle.core.engine.engine import Actors, Compose, composed
from rekindle.core.engine.followers import FollowerHosts, Followers
from rekindle.core.engine.preparing import TOKENIZED_AT_ONCE, Preparer
from rekindle.core.errors import CheckpointError, InvalidRequest
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.families.reading import Family
from rekindle.core.request.params import SamplingParams
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.core.scheduler.stats import Stats
from rekindle.core.store.snapshot_store import SnapshotStore
from rekindle.core.text.masks import InThreads
from rekindle.core.text.tokenizer import Tokenizer
from rekindle_kernels.api import Implementation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deployment:
    """The weights on their devices.

    Attributes:
        dtype: the dtype of weights and pages, by name.
        implementation: of the kernels.
        weight_bytes: the size of the weights on one group of devices.
        place: the devices that have weights and pages, and run the programs.
        spread: why it is so many devices, in words; empty if that is no choice of Rekindle's.
        kernels: those that serve, in words.
    """

    dtype: str
    implementation: Implementation
    weight_bytes: int
    place: Place
    spread: str
    kernels: str


@dataclass(frozen=True)
class Assembly:
    """A model that is loaded, with the pages, programs and actors that serve it; not yet running.

    Attributes:
        checkpoint: the model as it was opened.
        family: as `rekindle.open` takes it.
        settings: all settings as they were chosen.
        limits: the settings as they are resolved for the model.
        deployment: where the weights are, and in which form.
        defaults: sampling options of calls that do not give them.
        unserved: entries of the model's generation_config that Rekindle does not implement.
        scheduler: the one that was made; `actors` may have another around it.
        preparer: makes requests, also for callers that look at a prompt before they submit it.
        actors: wired by an `Engine`.
        programs: the compiled programs.
        resources: closed by `free`.
        crew: the other processes that serve the session; None without any.
    """

    checkpoint: Checkpoint
    family: Family | None
    settings: Settings
    limits: EngineLimits
    deployment: Deployment
    defaults: Mapping[str, Any]
    unserved: tuple[str, ...]
    scheduler: Scheduler
    preparer: Preparer
    actors: Actors
    programs: HeldPrograms
    resources: ExitStack
    crew: Followers | None = None

    @property
    def source(self) -> str:
        """The place where the model was opened."""
        return self.checkpoint.source

    @property
    def model(self) -> ModelConfig:
        """The config of the model."""
        return self.checkpoint.config

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the model; None for one that is asked by token ids alone."""
        return self.checkpoint.tokenizer

    def stats(self) -> Stats:
        """Return a snapshot of all counters. Any thread may ask."""
        made = self.programs.executables.making
        held = len(self.programs.executables)
        return Stats(self.scheduler.stats, held, made.loads, made.compilations, made.unexpected)

    def load(self, weights: Weights) -> list[jax.Array]:
        """Read weights of the same structure, in all processes. See `tensors_of` and `Followers`, also for the errors.

        Returns:
            Device arrays, in the order in which programs take them.
        """
        with own_settings():
            if self.crew is None:
                return self._read(weights)
            return self.crew.load_weights(weights, partial(self._read, weights))

    def _read(self, weights: Weights) -> list[jax.Array]:
        tensors, deployment = tensors_of(weights, self.model, self.family), self.deployment
        return replacing(self.model, tensors, jnp.dtype(deployment.dtype), deployment.implementation, deployment.place)

    def free(self) -> None:
        """Delete everything on the device and in the host tier, give up the programs, and stop preparing them."""
        self.resources.close()


def build(
    model: str | PathLike[str],
    settings: Settings,
    report: Report,
    *,
    compose: Compose | None = None,
    family: Family | None = None,
    revision: str | None = None,
    chat_template: str | None = None,
    hosts: FollowerHosts | None = None,
) -> Assembly:
    """Load a model, allocate its pages, and make the programs that `settings.precompile` says.

    While the weights are read, programs are loaded or compiled, and pages allocated, on threads of their own.

    Args:
        compose, family, revision, chat_template, hosts: as `rekindle.open` takes them.

    Raises:
        ModelError: the model cannot be opened.
        ModelTooLarge: it does not fit into the device's memory.
        ConfigError: the settings do not fit the model.
        UnsafeStorage: somebody else could have written what is in the cache directory.
        NotRestored: `restore="require"`, and not all programs are stored.
        HostRefused: another process cannot serve it too.
        HostLost: another process is gone.
    """
    started = monotonic()
    checkpoint = _opened(model, report, family, revision, chat_template)
    directory = store_directory(settings.restore)
    with ExitStack() as resources:
        if hosts is not None:
            hosts.check(settings, family)
        crew = None if hosts is None else resources.enter_context(hosts.crew(report))
        places = places_of(settings) if crew is None else places_over(settings.device, settings)
        place = fewest(checkpoint, settings, places)
        blueprint = plan(checkpoint, settings, place, directory, report=report)
        limits = blueprint.limits
        blueprint.budget.check(limits, checkpoint.source)
        defaults, unserved = _defaults(checkpoint, settings, limits)
        stores = open_stores(directory, blueprint, settings)
        first, later, wait = blueprint.in_turn(settings.precompile, stores.wanted, stored=stores.complete)
        if crew is not None:
            crew.open_model(model, revision, blueprint.chosen(settings), blueprint)
        executables = Executables(blueprint.programs, settings.max_executables, stores.programs)
        resources.callback(executables.free)
        preparing = executables.prepare(first)
        state = filled(executables, blueprint, report)
        stepper = Stepper(executables, state, limits, None if crew is None else crew.send)
        resources.callback(stepper.free)
        if wait:
            wait_for(preparing, report)
        preparing += executables.prepare(later, patient=True)
        resources.callback(settle(state.weights, preparing))
        if crew is not None:
            crew.wait(report)
        host_tier = _host_tier(blueprint, stores.snapshot, alone=crew is None)
        resources.callback(host_tier.free)
        scheduler = Scheduler(limits)
        scheduler.restore(stores.pages)
        preparer = Preparer.of(checkpoint, limits.max_context)
        actors = _actors(blueprint, preparer, scheduler, stepper, host_tier, DiskTier(stores.snapshot))
        return Assembly(
            checkpoint=checkpoint,
            family=family,
            settings=blueprint.chosen(settings),
            limits=limits,
            deployment=Deployment(
                dtype=blueprint.dtype.name,
                implementation=blueprint.programs.implementation,
                weight_bytes=sum(array.nbytes for array in state.weights),
                place=place,
                spread="as it does not fit on fewer devices" if len(places) > 1 and place != places[0] else "",
                kernels=blueprint.kernels(settings.implementation),
            ),
            defaults=defaults,
            unserved=unserved,
            scheduler=scheduler,
            preparer=preparer,
            actors=composed(actors, compose),
            programs=HeldPrograms(
                executables,
                preparing,
                stores.found(limits.pool.page_size, monotonic() - started),
                place.data * blueprint.budget.workspace,
            ),
            resources=resources.pop_all(),
            crew=crew,
        )


def _opened(
    model: str | PathLike[str], report: Report, family: Family | None, revision: str | None, chat_template: str | None
) -> Checkpoint:
    """Open the model's files, and give it another chat template if there is one."""
    report(Progress("opening the model", 0, 1, "model"))
    checkpoint = open_checkpoint(model, report, family, revision)
    if chat_template is not None:
        checkpoint = checkpoint.with_chat_template(chat_template)
    report(Progress("opening the model", 1, 1, "model"))
    return checkpoint


def _actors(
    blueprint: Blueprint,
    preparer: Preparer,
    scheduler: Scheduler,
    stepper: Stepper,
    host_tier: HostTier,
    disk_tier: DiskTier,
) -> Actors:
    """Return all actors; an `Engine` wires them."""
    jumps = jumps_on(blueprint.place.first.platform, blueprint.limits)
    return Actors(
        intake=Intake(preparer, TOKENIZED_AT_ONCE),
        tokenizer=Tokenizing(preparer, TOKENIZED_AT_ONCE),
        scheduler=scheduler,
        stepper=stepper,
        settler=Settler(),
        detokenizer=Detokenizer(blueprint.checkpoint.tokenizer),
        grammars=Grammars(jumps, InThreads(preparer.vocab_size)),
        host_tier=host_tier,
        disk_tier=disk_tier,
    )


def _host_tier(blueprint: Blueprint, disk: SnapshotStore | None, *, alone: bool) -> HostTier:
    """Return an empty host tier; pages of which other processes have shares are copied whole, through the host."""
    limits, programs = blueprint.limits, blueprint.programs
    copies: Copies = SharedCopies()
    if alone:
        copies = DeviceCopies(programs.page_sharding, host_memory(blueprint.place.first))
    return HostTier(limits.data * limits.pool.host_pages * limits.pool.page_bytes, programs.copy_bytes, copies, disk)


def _defaults(
    checkpoint: Checkpoint, settings: Settings, limits: EngineLimits
) -> tuple[dict[str, Any], tuple[str, ...]]:
    own: dict[str, Any] = {"processor_args": ()} if limits.processes_logits else {}
    if settings.sampling_defaults == "neutral":
        return own, ()
    defaults, unserved = sampling_defaults(checkpoint.generation_config)
    try:
        SamplingParams.from_options({}, defaults).check_against(checkpoint.config.vocab_size, limits.max_logprobs)
    except InvalidRequest as error:
        raise CheckpointError(
            f'{checkpoint.source}: generation_config.json: {error}. Correct it, or give sampling_defaults="neutral"'
        ) from error
    return defaults | own, unserved
