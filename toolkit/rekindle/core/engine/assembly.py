"""All the parts of an engine for one model: loaded, allocated, compiled, and not yet running."""

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
from rekindle.core.device.programs.held import HeldPrograms
from rekindle.core.engine.actor import Actor
from rekindle.core.engine.assembling.filling import replacing
from rekindle.core.engine.engine import Engine
from rekindle.core.engine.followers import Followers
from rekindle.core.engine.preparing import Preparer
from rekindle.core.engine.watchdog import timeout_of
from rekindle.core.engine.wiring import Actors, Compose, Deliver, composed
from rekindle.core.markup import counted
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.families.reading import Family
from rekindle.core.routing.relay import Relay
from rekindle.core.routing.router import Router
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.core.scheduler.stats import Stats, total
from rekindle.core.text.tokenizer import Tokenizer
from rekindle_kernels.api import Implementation


@dataclass(frozen=True, slots=True)
class Deployment:
    """The weights on their devices.

    Attributes:
        dtype: the dtype of weights and pages, by name.
        implementation: of the kernels.
        weight_bytes: the size of the weights on one group of devices.
        places: for each lane, the devices that have weights and pages, and run the programs.
        spread: why it is so many devices, in words; empty if that is no choice of Rekindle's.
        kernels: those that serve, in words.
        apart: whether the first lane computes prompts and the second generates.
    """

    dtype: str
    implementation: Implementation
    weight_bytes: int
    places: tuple[Place, ...]
    spread: str
    kernels: str
    apart: bool = False

    def __str__(self) -> str:
        if self.apart:
            return f"{self.places[0]} to prefill, {self.places[1]} to decode"
        alone = ", ".join(dict.fromkeys(map(str, self.places)))
        return alone if len(self.places) == 1 else f"{alone} in {counted(len(self.places), 'lane')}"

    @property
    def place(self) -> Place:
        """The devices of the first lane, which stand for all where they do not differ."""
        return self.places[0]

    @property
    def devices(self) -> int:
        """The number of devices of all lanes."""
        return len({device for place in self.places for device in place.devices})

    @property
    def copies(self) -> int:
        """The number of groups of devices that have the weights; lanes on the same devices share them."""
        return sum(place.data for place in set(self.places))


@dataclass(frozen=True)
class Lane:
    """The part of an engine that serves some of the requests, on devices of its own.

    Attributes:
        scheduler: the one that was made; `actors` may have another around it.
        actors: its own, and those that all lanes share.
        executables: the programs of its devices.
    """

    scheduler: Scheduler
    actors: Actors
    executables: Executables

    def with_actors(self, actors: Actors) -> "Lane":
        """Return the same with other actors."""
        return replace(self, actors=actors)


@dataclass(frozen=True)
class Assembly:
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
        crew: the other processes that serve the session; None without any.
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

    @property
    def schedulers(self) -> list[Scheduler]:
        """The scheduler of each lane, as it was made."""
        return [lane.scheduler for lane in self.lanes]

    def engine(self, deliver: Deliver) -> Engine:
        """Return an engine of the lanes; `deliver` takes what it says to callers."""
        return Engine(
            [lane.actors for lane in self.lanes],
            deliver,
            self._router(),
            timeout_of(self.settings.watchdog_timeout, self.deployment.place.first.platform),
            lambda lane: self.lanes[lane].executables.wait_ended,
        )

    def _router(self) -> Actor | None:
        """Return what gives requests to the lanes, if there are several."""
        settings = self.settings
        if self.deployment.apart:
            _, decode = self.schedulers
            return Relay(decode, settings.prefill_from, self.limits.pool.page_size)
        return Router(self.schedulers, settings.route, self.limits) if len(self.lanes) > 1 else None

    def stats(self) -> Stats:
        """Return a snapshot of all counters. Any thread may ask."""
        lanes, programs = tuple(scheduler.stats for scheduler in self.schedulers), self.programs
        return Stats(total(lanes), len(programs), programs.loads, programs.compilations, programs.unexpected, lanes)

    def load(self, weights: Weights) -> list[Any]:
        """Read weights of the same structure, in all processes. See `tensors_of` and `Followers`, also for the errors.

        Returns:
            Device arrays, in the order in which programs take them; with several lanes, those of each lane.
        """
        with own_settings():
            if self.crew is None:
                lanes = self._read(weights)
                return lanes[0] if len(lanes) == 1 else lanes
            return self.crew.load_weights(weights, lambda: self._read(weights)[0])

    def _read(self, weights: Weights) -> list[list[jax.Array]]:
        tensors, deployment = tensors_of(weights, self.model, self.family), self.deployment
        dtype = jnp.dtype(deployment.dtype)
        return replacing(self.model, tensors, dtype, deployment.implementation, deployment.places)

    def composed(self, compose: Compose | None) -> "Assembly":
        """Return the same with the actors that `compose` wants; raises as `rekindle.core.engine.wiring.composed`."""
        actors = composed([lane.actors for lane in self.lanes], compose)
        return replace(self, lanes=tuple(map(Lane.with_actors, self.lanes, actors)))

    def free(self) -> None:
        """Delete everything on the device and in the host tier, give up the programs, and stop preparing them."""
        self.resources.close()
