"""All the parts of an engine for one model: loaded, allocated, compiled, and not yet running."""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from rekindle.core.checkpoints.checkpoint import Checkpoint
from rekindle.core.checkpoints.weights import Weights, tensors_of
from rekindle.core.config import Settings
from rekindle.core.device.jax_settings import own_settings
from rekindle.core.device.place import Place
from rekindle.core.device.programs.executables import Executables
from rekindle.core.engine.actor import Actor
from rekindle.core.engine.deployment import Deployment
from rekindle.core.engine.engine import Engine
from rekindle.core.engine.followers import Followers
from rekindle.core.engine.loading.filling import place_new_weights
from rekindle.core.engine.preparing import Preparer
from rekindle.core.engine.replicas import LaneState, ProgramsView, Replicas
from rekindle.core.engine.watchdog import timeout_of
from rekindle.core.engine.wiring import Actors, Compose, Deliver, composed
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.families.reading import Family
from rekindle.core.routing.relay import Relay
from rekindle.core.routing.router import Router
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.core.scheduler.stats import Stats, total
from rekindle.core.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Lane:
    """The part of an engine that serves some of the requests, on devices of its own.

    Attributes:
        scheduler: the one that was made; `actors` may have another around it.
        actors: its own, and those that all lanes share.
        place: its devices; None in another process.
        executables: the programs of these.
    """

    scheduler: LaneState
    actors: Actors
    place: Place | None = None
    executables: Executables | None = None

    @property
    def wait_ended(self) -> float:
        """The time when it last got a program that it had waited for, as `Watchdog` takes it."""
        return -math.inf if self.executables is None else self.executables.wait_ended

    def with_actors(self, actors: Actors) -> "Lane":
        """Return the same with other actors."""
        return replace(self, actors=actors)


@dataclass(frozen=True)
class LoadedEngine:
    """A model that is loaded, with the pages, programs and actors that serve it; not yet running.

    Attributes:
        checkpoint: the model as it was opened.
        family: as `rekindle.open` takes it.
        settings: all settings as they were chosen.
        limits: the settings as they are resolved for the model; sizes are those of one lane.
        deployment: where the weights are, and in which form.
        defaults: sampling options of calls that do not give them.
        unserved: entries of the model's generation_config that Rekindle does not implement.
        preparer: makes requests, also for callers that look at a prompt before they submit it.
        lanes: wired by an `Engine`.
        programs: the compiled programs.
        resources: closed by `free`.
        followers: the processes that have shares of the model; None without any.
        replicas: the processes in which the lanes are; None if they are in this one.
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
    followers: Followers | None = None
    replicas: Replicas | None = None

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

    @property
    def schedulers(self) -> list[LaneState]:
        """The scheduler of each lane, as it was made."""
        return [lane.scheduler for lane in self.lanes]

    def engine(self, deliver: Deliver) -> Engine:
        """Return an engine of the lanes; `deliver` takes what it says to callers."""
        return Engine(
            [lane.actors for lane in self.lanes],
            deliver,
            self._router(),
            timeout_of(self.settings.watchdog_timeout, self.deployment.platform),
            lambda lane: self.lanes[lane].wait_ended,
        )

    def _router(self) -> Actor | None:
        """Return what gives requests to the lanes, if there are several."""
        settings = self.settings
        if self.deployment.apart:
            _, decode = self.schedulers
            assert isinstance(decode, Scheduler), "the lanes of prompts apart are in this process"
            return Relay(decode, settings.prefill_from, self.limits.pool.page_size)
        alone = len(self.lanes) == 1 and self.replicas is None
        return None if alone else Router(self.schedulers, settings.route, self.limits)

    def stats(self) -> Stats:
        """Return a snapshot of all counters. Any thread may ask."""
        lanes, programs = tuple(scheduler.stats for scheduler in self.schedulers), self.programs
        return Stats(total(lanes), len(programs), programs.loads, programs.compilations, programs.unexpected, lanes)

    def load(self, weights: Weights) -> list[Any]:
        """Read weights of the same structure, in all processes. See `tensors_of` and `Followers`, also for the errors.

        Returns:
            Device arrays, in the order in which programs take them; with several lanes, those of each lane.
        """
        if self.replicas is not None:
            return self.replicas.load(weights)
        with own_settings():
            if self.followers is None:
                lanes = self._read(weights)
                return lanes[0] if len(lanes) == 1 else lanes
            return self.followers.load_weights(weights, lambda: self._read(weights)[0])

    def _read(self, weights: Weights) -> list[list[jax.Array]]:
        tensors, deployment = tensors_of(weights, self.model, self.family), self.deployment
        dtype = jnp.dtype(deployment.dtype)
        places = [lane.place for lane in self.lanes if lane.place is not None]
        return place_new_weights(self.model, tensors, dtype, deployment.implementation, places)

    def composed(self, compose: Compose | None) -> "LoadedEngine":
        """Return the same with the actors that `compose` wants; raises as `rekindle.core.engine.wiring.composed`."""
        actors = composed([lane.actors for lane in self.lanes], compose)
        return replace(self, lanes=tuple(map(Lane.with_actors, self.lanes, actors)))

    def free(self) -> None:
        """Delete everything on the device and in the host tier, give up the programs, and stop preparing them."""
        self.resources.close()
