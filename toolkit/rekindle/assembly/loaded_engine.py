"""The loaded parts of an engine for one model: allocated and compiled, but not yet running."""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from rekindle.assembly.capturing import Capturing
from rekindle.assembly.deployment import Deployment
from rekindle.assembly.followers import Followers
from rekindle.assembly.loading.adapting import put_adapter, put_empty
from rekindle.assembly.loading.blueprint import adapter_programs, steering_programs
from rekindle.assembly.loading.filling import place_new_weights
from rekindle.assembly.loading.huge_pages import prefer, spans_of
from rekindle.assembly.loading.identity import Identity
from rekindle.assembly.looking import Looks
from rekindle.assembly.preparing.preparer import Preparer
from rekindle.assembly.programs.engine_programs import EnginePrograms
from rekindle.assembly.replicas import LaneState, ProgramsView, ReadWeights, Replicas
from rekindle.assembly.stats import Stats
from rekindle.core.concurrency.feed import Feed
from rekindle.core.device.jax_settings import overrides
from rekindle.core.device.memory import is_out_of_memory
from rekindle.core.device.orders import AwakeWeights, PlacedWeights
from rekindle.core.device.place import Place
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.functions import ADAPT, EMPTY, UNSTEERED
from rekindle.core.device.programs.shapes import AdapterRoom
from rekindle.core.engine.actor import Actor
from rekindle.core.engine.engine import Engine
from rekindle.core.engine.watchdog import timeout_of
from rekindle.core.engine.wiring import Actors, Compose, Deliver, composed
from rekindle.core.errors import InvalidRequest, ModelTooLarge
from rekindle.core.messages import Message
from rekindle.core.models.adapters.products import AdapterSizes, products_of
from rekindle.core.models.config import ModelConfig
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.core.scheduler.stats import total
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint, TowerFiles
from rekindle.formats.checkpoints.weights import Weights, opened_weights, tensors_of, tower_of, weights_digest
from rekindle.formats.families.reading import Family
from rekindle.formats.lora import Lora
from rekindle.formats.weight_file import Stamp
from rekindle.settings.engine import Settings


@dataclass(frozen=True)
class Lane:
    """One lane of an engine: a scheduler and further actors, with separate devices, pages and requests.

    Attributes:
        scheduler: the original scheduler; `actors` may have a wrapper around it.
        actors: the actors of the lane, and the actors shared by all lanes.
        place: devices of the lane; None for a lane in another process.
        executables: programs for these devices; None for a lane in another process.
    """

    scheduler: LaneState
    actors: Actors
    place: Place | None = None
    executables: Executables | None = None

    @property
    def wait_ended(self) -> float:
        """Time at which the lane last got an awaited program, for its `Watchdog`."""
        return -math.inf if self.executables is None else self.executables.wait_ended

    def with_actors(self, actors: Actors) -> "Lane":
        """Return the lane with other actors."""
        return replace(self, actors=actors)


@dataclass(frozen=True)
class LoadedEngine:
    """A loaded model with its pages, programs and actors: the parts of an `Engine`, and the facts about it.

    `build` creates it on the `EngineThread`, and the thread wires and runs its actors. Sessions read the settings,
    counters and model from it.

    Attributes:
        checkpoint: the opened model.
        family: the family given to `rekindle.open`, or None.
        settings: all settings, with the chosen values.
        limits: settings resolved for the model; sizes are per lane.
        deployment: devices and form of the weights.
        defaults: sampling options for calls without them.
        unserved: entries of the model's generation_config not implemented in Rekindle.
        preparer: creates requests, and shows a prompt's tokens to callers before they submit it.
        lanes: lanes of the engine, to be wired by an `Engine`.
        programs: compiled programs.
        resources: resources closed by `free`.
        identity: all content that decides answers.
        weights_digest: digest of the weights in use at first; empty for a model without weight files.
        weights_version: their number; above 0 for replicas with weights replaced by an earlier session.
        followers: processes with other shards of the model; None without any.
        replicas: processes of the lanes; None for lanes in this process.
    """

    checkpoint: Checkpoint
    family: Family | None
    settings: Settings
    limits: EngineLimits
    deployment: Deployment
    defaults: Mapping[str, Any]
    unserved: tuple[str, ...]
    preparer: Preparer
    lanes: tuple[Lane, ...]
    programs: ProgramsView
    resources: ExitStack
    identity: Identity
    followers: Followers | None = None
    replicas: Replicas | None = None
    weights_digest: str = ""
    weights_version: int = 0

    @property
    def source(self) -> str:
        """Name or path from which the model was opened."""
        return self.checkpoint.source

    @property
    def model(self) -> ModelConfig:
        """Config of the model."""
        return self.checkpoint.config

    @property
    def chat_defaults(self) -> Mapping[str, Any]:
        """Sampling options for chats without them, in place of `defaults`; none with `sampling_defaults="neutral"`."""
        return {} if self.settings.sampling_defaults == "neutral" else self.checkpoint.chat_defaults

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer of the model; None for a model with token ids only."""
        return self.checkpoint.tokenizer

    @property
    def schedulers(self) -> list[LaneState]:
        """The original scheduler of each lane."""
        return [lane.scheduler for lane in self.lanes]

    def engine(self, deliver: Deliver) -> Engine:
        """Wire the actors of all lanes into an engine; `deliver` gets the messages to callers."""
        return Engine(
            [lane.actors for lane in self.lanes],
            deliver,
            self._router(),
            timeout_of(self.settings.watchdog_timeout, self.deployment.platform),
            lambda lane: self.lanes[lane].wait_ended,
        )

    def _router(self) -> Actor | None:
        """Return the router of requests to lanes; None for a single lane."""
        settings = self.settings
        if self.deployment.apart:
            from rekindle.assembly.routing.relay import Relay

            _, decode = self.schedulers
            assert isinstance(decode, Scheduler), "lanes with separate prefill are in this process"
            return Relay(decode, settings.prefill_from, self.limits.pool.page_size)
        if len(self.lanes) == 1 and self.replicas is None:
            return None
        from rekindle.assembly.routing.router import Router

        return Router(self.schedulers, settings.route, self.limits)

    def stats(self) -> Stats:
        """Return a snapshot of all counters. Thread-safe."""
        lanes, programs = tuple(scheduler.stats for scheduler in self.schedulers), self.programs
        counts = len(programs), programs.loads, programs.compilations, programs.unexpected
        return Stats(total(lanes), *counts, lanes, self.deployment.kernels)

    def load(self, weights: Weights, *, shares: bool = False) -> ReadWeights:
        """Read weights of the same structure in all processes.

        Args:
            weights: the weights.
            shares: whether they may share memory with arrays in this process.

        Raises as `opened_weights`, `tensors_of` and `Followers` do.

        Returns:
            Device arrays in the order of the programs' arguments; one list per lane if there are several lanes.
        """
        if self.replicas is not None:
            return self.replicas.load(weights)
        with overrides():
            tensors, tower, digest, stamps = self._open_weights(weights)
            if self.followers is None:
                lanes = self._place_weights(tensors, tower, shares)
                return ReadWeights(lanes[0] if len(lanes) == 1 else lanes, digest, stamps)
            return ReadWeights(
                self.followers.load_weights(weights, lambda: self._place_weights(tensors, tower)[0]), digest
            )

    def reload(self, weights: Weights | None, *, shares: bool = False) -> ReadWeights:
        """Read weights for an engine that is asleep, and allocate its pages and slots.

        Args:
            weights: as in `load`; None for those of the opened model.
            shares: as in `load`.

        Returns:
            `AwakeWeights`; one for each lane if there are several lanes.

        Raises:
            ModelTooLarge: the device has no room at the moment.
            Others: as in `load`.
        """
        with overrides():
            tensors, tower, digest, stamps = self._open_weights(weights)
            states: list[Any] = []
            try:
                states += [lane.executables.run(EMPTY) for lane in self.lanes if lane.executables is not None]
                lanes = [
                    AwakeWeights(arrays, *state)
                    for arrays, state in zip(self._place_weights(tensors, tower, shares), states, strict=True)
                ]
                jax.block_until_ready([(each.pages, each.slots) for each in lanes])
                prefer(spans_of(layer for each in lanes for layer in each.pages))
            except BaseException as error:
                for array in jax.tree.leaves(states):
                    array.delete()
                if not (isinstance(error, jax.errors.JaxRuntimeError) and is_out_of_memory(error)):
                    raise
                raise ModelTooLarge(
                    f"out of memory: {self.deployment} has no room for the weights and the pages at the moment; close "
                    "other users of the device, and wake the session again"
                ) from error
        return ReadWeights(lanes[0] if len(lanes) == 1 else lanes, digest, stamps)

    @property
    def looks(self) -> Looks:
        """The looks at sequences of the model."""
        return self.preparer.looks

    def capturing(
        self, ask: Callable[[Callable[[int], Message]], Feed[Any]], error: Callable[[], Exception | None]
    ) -> Capturing:
        """Return the captures of activations for requests; see `Capturing` for the arguments."""
        executables = self.lanes[0].executables
        assert executables is not None, "captures are for lanes in this process"
        return Capturing(self.looks, executables, self.tokenizer, ask, error)

    def check_looks(self, feature: str) -> None:
        """Raise InvalidRequest for a model that cannot be looked into; `feature` is the name of what looks."""
        if self.replicas is not None or self.followers is not None:
            raise InvalidRequest(f"{feature} is for sessions in one process, and this one has devices of others")
        if self.model.streams is not None:
            raise InvalidRequest(f"{feature} is for models with one residual stream, and this one has several")

    def check_programs(self, feature: str, *, adapters: bool = False, steered: bool = False) -> None:
        """Check the room for the programs of rows with adapters, or with steering.

        Args:
            feature: the name of the feature, for messages.

        Raises:
            InvalidRequest: other processes have devices, all rows share one program, or there is no room for more.
        """
        if self.replicas is not None or self.followers is not None:
            raise InvalidRequest(f"{feature} are for sessions in one process, and this one has devices of others")
        if self.limits.one_shape:
            raise InvalidRequest(
                f"deterministic=True computes all rows by one program on these devices, and rows with {feature} need "
                "another: open the session without it"
            )
        programs, most = self.limits.program_count(adapters=adapters, steered=steered), self.settings.max_executables
        if self.settings.precompile != "lazy" and programs > most:
            raise InvalidRequest(
                f"with {feature} these settings need {programs} programs, and max_executables keeps {most}: open the "
                "session with a larger one"
            )

    def check_adapter(self, lora: Lora) -> Lora:
        """Return an adapter that fits the model; raises as `Lora.check` does."""
        lora.check(self.model, products_of(self.model), self.limits.max_adapter_rank)
        return lora

    def place_adapter(self, lora: Lora, *, with_room: bool) -> tuple[Any, Any]:
        """Put the arrays of an adapter on the devices.

        Args:
            with_room: whether the devices have no arrays for adapters yet.

        Returns:
            The adapter, and empty arrays for all adapters or None; one entry for each lane if there are several.

        Raises:
            ModelTooLarge: the device has no room.
        """
        places = [lane.place for lane in self.lanes if lane.place is not None]
        sizes = AdapterSizes(self.limits.adapter_slots, self.limits.max_adapter_rank)
        form, kernels = self.deployment.form, self.deployment.implementation
        rooms = {place: AdapterRoom(self.model, sizes, form.dtype, kernels, place) for place in places}
        try:
            empty = {place: put_empty(room) for place, room in rooms.items()} if with_room else {}
            content = {place: put_adapter(room, lora) for place, room in rooms.items()}
            jax.block_until_ready([*empty.values(), *content.values()])
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise ModelTooLarge(
                f"out of memory: {self.deployment} has no room for {self.limits.adapter_slots} adapters of rank "
                f"{self.limits.max_adapter_rank}; open the session with max_adapters, so that room is set aside"
            ) from error
        if len(places) == 1:
            return content[places[0]], empty.get(places[0])
        return [content[place] for place in places], [empty[place] for place in places] if with_room else None

    def prepare_adapter_programs(self) -> None:
        """Prepare the programs for adapters in quiet times, unless they are prepared, or `precompile` is "lazy"."""
        if self.settings.precompile != "lazy":
            assert isinstance(self.programs, EnginePrograms), "adapters are for lanes in this process"
            steered = steering_programs(self.limits, adapters=True) if UNSTEERED in self.programs.requested else []
            self.programs.prepare([*adapter_programs(self.limits), *steered])

    def prepare_steering(self) -> None:
        """Prepare the programs for steered requests in quiet times, unless they are, or `precompile` is "lazy"."""
        if self.settings.precompile != "lazy":
            assert isinstance(self.programs, EnginePrograms), "steering is for lanes in this process"
            adapters = self.limits.expects_adapters or ADAPT in self.programs.requested
            self.programs.prepare(steering_programs(self.limits, adapters=adapters))

    def _open_weights(
        self, weights: Weights | None
    ) -> tuple[Mapping[str, Any], TowerFiles | None, str, Mapping[Path, Stamp]]:
        """Return the tensors of weights, their vision tower, their digest, and the stamps of files.

        None stands for the weights and the tower of the opened model.
        """
        tower = self.checkpoint.vision if self.limits.picture_rows else None
        if weights is None:
            return self.checkpoint.tensors, tower, self.weights_digest, self.checkpoint.stamps
        source = opened_weights(weights, self.family)
        tensors, other = tensors_of(source, self.model, self.deployment.form), tower_of(source, tower)
        if isinstance(source, Mapping):
            return tensors, other, weights_digest({**tensors, **({} if other is None else other.tensors)}), {}
        return tensors, other, weights_digest(source), source.stamps

    def _place_weights(
        self, tensors: Mapping[str, Any], tower: TowerFiles | None, shares: bool = False
    ) -> list[PlacedWeights]:
        places = [lane.place for lane in self.lanes if lane.place is not None]
        form, kernels = self.deployment.form, self.deployment.implementation
        return place_new_weights(self.model, tensors, form, kernels, places, tower=tower, shares=shares)

    def composed(self, compose: Compose | None) -> "LoadedEngine":
        """Return the loaded engine with its actors replaced by `compose`; raises as `wiring.composed` does."""
        actors = composed([lane.actors for lane in self.lanes], compose)
        return replace(self, lanes=tuple(map(Lane.with_actors, self.lanes, actors)))

    def free(self) -> None:
        """Delete all device and host tier memory, release the programs, and stop preparing programs."""
        self.resources.close()
