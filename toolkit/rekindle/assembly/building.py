"""Construction of an engine: opens a model, reads its weights, allocates its pages, and prepares its programs."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from rekindle.assembly.deployment import Deployment
from rekindle.assembly.devices import lanes_of, place_of_set, places_of, places_over, shares_memory
from rekindle.assembly.followers import FollowerHosts, Followers
from rekindle.assembly.limits.machine import cores
from rekindle.assembly.loaded_engine import Lane, LoadedEngine
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.filling import collapse_later, distinct, fill, keep_later
from rekindle.assembly.loading.identity import Identity
from rekindle.assembly.loading.planning import fewest, plan
from rekindle.assembly.loading.stores import Stores, open_keeper, open_stores, store_directory
from rekindle.assembly.preparing.preparer import TOKENIZED_AT_ONCE, Preparer
from rekindle.assembly.programs.engine_programs import EnginePrograms
from rekindle.assembly.programs.laps import Laps
from rekindle.assembly.programs.restore_report import RestoreReport
from rekindle.assembly.programs.starts import ColdStarts
from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.device.orders import DeviceState
from rekindle.core.device.place import Place
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.readiness import wait_for
from rekindle.core.engine.actors.detokenizer import Detokenizer
from rekindle.core.engine.actors.disk_tier import DiskTier
from rekindle.core.engine.actors.grammars import Grammars, jumps_on
from rekindle.core.engine.actors.host_tier import Copies, DeviceCopies, HostTier, SharedCopies, host_memory
from rekindle.core.engine.actors.intake import Intake
from rekindle.core.engine.actors.settler import Settler
from rekindle.core.engine.actors.stepper import Stepper
from rekindle.core.engine.actors.tokenizing import Tokenizing
from rekindle.core.engine.actors.vision import Vision
from rekindle.core.engine.wiring import Actors, Compose
from rekindle.core.errors import CheckpointError, ConfigError, InvalidRequest, ModelTooLarge
from rekindle.core.request.params import SamplingParams
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.core.store.snapshot_store import SnapshotStore
from rekindle.core.text.masks import ThreadedMasks
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.defaults import sampling_defaults
from rekindle.formats.checkpoints.hub.stored import Admission, StoredWeights
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.weights import weights_digest
from rekindle.formats.families.reading import Family
from rekindle.formats.responses.reading.turns import AnswerTurns
from rekindle.settings.engine import Settings


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
) -> LoadedEngine:
    """Load a model, allocate its pages, and prepare programs as `settings.precompile` asks.

    Programs are loaded or compiled, and pages allocated, on other threads while the weights are read.

    Args:
        compose, family, revision, chat_template, hosts: see `rekindle.open`.

    Raises:
        ModelError: the model cannot be opened.
        ModelTooLarge: the model does not fit into the device's memory.
        ConfigError: the settings do not fit the model.
        UnsafeStorage: another user could have written the content of the cache directory.
        NotRestored: `restore="require"`, and not all programs are stored.
        HostRefused: another process cannot serve the model too.
        HostLost: another process is gone.
    """
    laps = Laps()
    checkpoint = open_model(model, report, settings, family, revision, chat_template, admit=_admission(settings))
    laps.end("files")
    directory = store_directory(settings.restore)
    with ExitStack() as resources:
        if hosts is not None:
            hosts.check(settings, family)
        followers = None if hosts is None else resources.enter_context(hosts.group(report))
        lanes, spread = _lanes(checkpoint, settings, directory, report, over=followers is not None)
        blueprint = lanes[0]
        limits = blueprint.limits
        defaults, unserved = defaults_of(checkpoint, settings, limits)
        identity = Identity.of(blueprint, family, defaults)
        stores = open_stores(directory, lanes, identity, settings)
        stored = set(stores[0].compile_seconds).intersection(*(each.compile_seconds for each in stores))
        first, later, wait = blueprint.in_turn(settings.precompile, stores[0].program_keys, stored)
        if followers is not None:
            followers.open_model(model, revision, blueprint.resolve(settings), blueprint)
        keeper = open_keeper(directory, blueprint, identity, settings)
        executables = _executables(lanes, stores, settings, resources)
        preparing = [ready for each in executables.values() for ready in each.prepare(first)]
        places = [(executables[lane.place], lane) for lane in lanes]
        laps.end("plan")
        states = fill(places, report, keeper, reads_weights=settings.weights is not None)
        steppers = _steppers(lanes, executables, states, followers, resources)
        laps.end("weights")
        if wait:
            wait_for(preparing, report)
        laps.end("programs")
        preparing += [ready for each in executables.values() for ready in each.prepare(later, patient=True)]
        pools = [layer for state in states for layer in state.pages]
        resources.callback(collapse_later(distinct([state.weights for state in states]), pools, preparing))
        resources.callback(keep_later(keeper, lanes, states, preparing))
        if followers is not None:
            followers.wait(report)
        preparer = Preparer.of(checkpoint, limits.max_context, limits.picture_rows)
        parts = [
            _lane(lane, store, stepper, preparer, executables[lane.place], resources, alone=followers is None)
            for lane, store, stepper in zip(lanes, stores, steppers, strict=True)
        ]
        laps.end("engine")
        cold_seconds = _cold_seconds(directory, stores, laps.total, wait=wait)
        loaded_engine = LoadedEngine(
            checkpoint=blueprint.checkpoint,
            family=family,
            settings=blueprint.resolve(settings),
            limits=limits,
            deployment=_deployment(lanes, settings, spread),
            defaults=defaults,
            unserved=unserved,
            preparer=preparer,
            lanes=tuple(parts),
            programs=_programs(lanes, stores, executables, preparing, laps, cold_seconds, keeper.bytes_read),
            resources=ExitStack(),
            followers=followers,
            identity=identity,
            weights_digest=weights_digest(checkpoint),
        ).composed(compose)
        return replace(loaded_engine, resources=resources.pop_all())


def _lanes(
    checkpoint: Checkpoint, settings: Settings, directory: Path | None, report: Report, *, over: bool
) -> tuple[list[Blueprint], str]:
    """Return the blueprint of each lane, and the reason for the number of devices, as text.

    Args:
        over: True if all processes of `jax.distributed` shard the model.

    Raises:
        ModelTooLarge: the model does not fit into the device's memory.
        ConfigError: the settings do not fit the model or the devices.
    """
    if settings.prefill is not None:
        return _sets(checkpoint, settings, directory, report), ""
    places = places_over(settings.device, settings) if over else places_of(settings)
    place = fewest(checkpoint, settings, places)
    blueprint = _planned(checkpoint, settings, place, directory, report)
    further = [] if over else lanes_of(place, settings)[1:]
    spread = "as it does not fit on fewer devices" if len(places) > 1 and place != places[0] else ""
    return [blueprint, *(blueprint.at(each, settings) for each in further)], spread


def _planned(
    checkpoint: Checkpoint, settings: Settings, place: Place, directory: Path | None, report: Report
) -> Blueprint:
    """Return the blueprint for a place; raises as `_lanes` does."""
    try:
        blueprint = plan(checkpoint, settings, place, directory, report=report)
        blueprint.budget.check(blueprint.limits, checkpoint.source)
    except ModelTooLarge as error:
        from rekindle.assembly.loading.remedies import remedies

        raise ModelTooLarge(f"{error}.{remedies(checkpoint, settings, place)}") from None
    return blueprint


def _sets(checkpoint: Checkpoint, settings: Settings, directory: Path | None, report: Report) -> list[Blueprint]:
    """Return the blueprints of the prefill lane and the decode lane, with the same number of pages."""
    places = [place_of_set("prefill", settings.prefill), place_of_set("decode", settings.decode)]
    both = set(places[0].devices) & set(places[1].devices)
    if both and not shares_memory(places[0].first):
        raise ConfigError(f"prefill and decode both have {both.pop()}: give them different devices")
    plans = [_planned(checkpoint, settings, place, directory, report) for place in places]
    same = replace(settings, num_pages=min(each.limits.pool.num_pages for each in plans), pool_bytes=None)
    lanes = [Blueprint.of(checkpoint, same, places[0])]
    lanes.append(lanes[0].at(places[1], same))
    pages = {str(lane.programs.shapes.state.page) for lane in lanes}
    if len(pages) > 1 or len({place.first.platform for place in places}) > 1:
        raise ConfigError(
            f"pages on {places[0]} and {places[1]} differ in layout: give prefill and decode devices of one kind"
        )
    if lanes[0].limits.one_shape:
        raise ConfigError(
            "deterministic=True computes a whole request by the same programs on these devices, so prefill and decode "
            "cannot be separate: leave them out, or deterministic"
        )
    return lanes


def _executables(
    lanes: Sequence[Blueprint], stores: Sequence[Stores], settings: Settings, resources: ExitStack
) -> dict[Place, Executables]:
    """Return the programs of each place; lanes on the same devices share them."""
    executables = {}
    for lane, store in zip(lanes, stores, strict=True):
        if lane.place not in executables:
            executables[lane.place] = Executables(lane.programs, settings.max_executables, store.programs)
            resources.callback(executables[lane.place].free)
    return executables


def _steppers(
    lanes: Sequence[Blueprint],
    executables: Mapping[Place, Executables],
    states: Sequence[DeviceState],
    followers: Followers | None,
    resources: ExitStack,
) -> list[Stepper]:
    """Return the stepper of each lane; closing `resources` frees their pages and weights."""
    send = None if followers is None else followers.send
    steppers = []
    for lane, state in zip(lanes, states, strict=True):
        steppers.append(Stepper(executables[lane.place], state, lane.limits, send))
        resources.callback(steppers[-1].free)
    return steppers


def _programs(
    lanes: Sequence[Blueprint],
    stores: Sequence[Stores],
    executables: Mapping[Place, Executables],
    preparing: list[Future[None]],
    laps: Laps,
    cold_seconds: float | None,
    weight_bytes: int,
) -> EnginePrograms:
    """Return the programs of an engine, given the parts of its opening, the cold start's seconds, and kept bytes."""
    by_place = dict(zip((lane.place for lane in lanes), stores, strict=True))
    report = replace(_restore_report(by_place, lanes[0].limits, laps, cold_seconds), weight_bytes=weight_bytes)
    workspace = sum(place.data * lanes[0].budget.workspace for place in executables)
    return EnginePrograms(tuple(executables.values()), preparing, report, workspace)


def _deployment(lanes: Sequence[Blueprint], settings: Settings, spread: str) -> Deployment:
    """Return the deployment, given the `spread` from `_lanes`."""
    blueprint = lanes[0]
    form = Deployment(
        dtype=blueprint.dtype.name,
        form=blueprint.form,
        implementation=blueprint.programs.shapes.implementation,
        weight_bytes=blueprint.programs.shapes.weight_bytes,
        spread=spread,
        kernels=str(blueprint.programs.shapes.kernels),
        fallback=blueprint.programs.shapes.kernels.reason,
        apart=settings.prefill is not None,
        kv_dtype="" if blueprint.kv_dtype == blueprint.dtype else blueprint.kv_dtype.name,
        logits_processor=str(blueprint.programs.statics.get("logits_processor", "")),
    )
    return form.over([lane.place for lane in lanes])


def open_model(
    model: str | PathLike[str],
    report: Report,
    settings: Settings,
    family: Family | None,
    revision: str | None,
    chat_template: str | None,
    *,
    admit: Admission | None = None,
) -> Checkpoint:
    """Open the files of a model, and replace its chat template unless `chat_template` is None.

    Args:
        admit: see `open_checkpoint`.
    """
    report(Progress("opening the model", 0, 1, ""))
    checkpoint = open_checkpoint(model, report, family, revision, settings.mmproj, admit)
    if chat_template is not None:
        checkpoint = checkpoint.with_chat_template(chat_template)
    report(Progress("opening the model", 1, 1, ""))
    return checkpoint


def _admission(settings: Settings) -> Admission:
    """Return the check of a model on the hub before its download, for the devices of these settings."""

    def admit(stored: StoredWeights) -> None:
        from rekindle.assembly.loading.admission import check_before_download  # most models are on this machine

        check_before_download(stored, settings)

    return admit


def _cold_seconds(directory: Path | None, stores: Sequence[Stores], seconds: float, *, wait: bool) -> float | None:
    """Return the seconds of the cold start with these programs; None if they are unknown, or for this one.

    Args:
        seconds: the seconds of this opening.
        wait: True if the opening waited for programs; only such a cold start is recorded.
    """
    entries = [each.programs.entry(key) for each in stores if each.programs for key in each.program_keys]
    if directory is None or not entries:
        return None
    starts = ColdStarts(directory, entries)
    if any(each.compile_seconds for each in stores):
        return starts.seconds()
    if wait:
        starts.record(seconds)
    return None


def _restore_report(
    stores: Mapping[Place, Stores], limits: EngineLimits, laps: Laps, cold_seconds: float | None
) -> RestoreReport:
    """Return the report on restored state: the programs of all places, and the pages of the first."""
    reports = [each.restore_report(limits.pool.page_size, laps.total) for each in stores.values()]
    return replace(
        reports[0],
        stored=sum(each.stored for each in reports),
        compile_seconds=sum(each.compile_seconds for each in reports),
        cold_seconds=cold_seconds,
        spent=laps.seconds,
    )


def _lane(
    blueprint: Blueprint,
    stores: Stores,
    stepper: Stepper,
    preparer: Preparer,
    executables: Executables,
    resources: ExitStack,
    *,
    alone: bool,
) -> Lane:
    """Return a lane with all its actors; `alone` is False if other processes have shards of its pages."""
    limits = blueprint.limits
    host_tier = _host_tier(blueprint, stores.snapshot, alone=alone)
    resources.callback(host_tier.free)
    scheduler = Scheduler(limits)
    scheduler.restore(stores.pages)
    actors = Actors(
        intake=Intake(preparer, TOKENIZED_AT_ONCE),
        tokenizer=Tokenizing(preparer, TOKENIZED_AT_ONCE),
        scheduler=scheduler,
        stepper=stepper,
        settler=Settler(limits),
        detokenizer=Detokenizer(blueprint.checkpoint.tokenizer, AnswerTurns.of(blueprint.checkpoint.tokenizer)),
        grammars=Grammars(
            jumps_on(blueprint.place.first.platform, limits), ThreadedMasks(preparer.prompts.vocab_size, cores())
        ),
        vision=Vision(stores.images),
        host_tier=host_tier,
        disk_tier=DiskTier(stores.snapshot),
    )
    return Lane(scheduler, actors, blueprint.place, executables)


def _host_tier(blueprint: Blueprint, disk: SnapshotStore | None, *, alone: bool) -> HostTier:
    """Return an empty host tier; pages sharded over processes are copied whole, through the host."""
    limits, programs = blueprint.limits, blueprint.programs
    copies: Copies = SharedCopies()
    if alone:
        # Pinned memory would have a copy of the page for each device.
        sharding = programs.shapes.state.copy_sharding
        has_copies = blueprint.place.tensor > 1 and sharding.is_fully_replicated
        memory = None if has_copies else host_memory(blueprint.place.first)
        copies = DeviceCopies(sharding, memory)
    return HostTier(limits.data * limits.pool.host_pages * limits.pool.page_bytes, copies, disk)


def defaults_of(
    checkpoint: Checkpoint, settings: Settings, limits: EngineLimits
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the defaults of sampling options for calls, and the model's recommended options without an effect here.

    Raises:
        CheckpointError: the model recommends an invalid value.
    """
    of_session: dict[str, Any] = {"processor_args": ()} if limits.processes_logits else {}
    if settings.sampling_defaults == "neutral":
        return of_session, ()
    defaults, unserved = sampling_defaults(checkpoint.generation_config)
    try:
        SamplingParams.from_options({}, defaults).check_against(checkpoint.config.vocab_size, limits.max_logprobs)
    except InvalidRequest as error:
        raise CheckpointError(
            f'{checkpoint.source}: generation_config.json: {error}. Correct it, or give sampling_defaults="neutral"'
        ) from error
    return defaults | of_session, unserved
