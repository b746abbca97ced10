"""Requests of a leader to open models, and a follower's side of opening."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import jax

from rekindle.assembly.devices import places_over
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.filling import collapse_later, fill, place_new_weights
from rekindle.assembly.loading.stores import open_programs, require_all, store_directory
from rekindle.assembly.weights.keeping import Keeper
from rekindle.core.concurrency.progress import silent
from rekindle.core.device.jax_settings import JaxSettings, overrides
from rekindle.core.device.orders import DeviceState
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.readiness import wait_for
from rekindle.core.errors import ConfigError, HostRefused, InvalidRequest
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.weights import Weights, opened_weights, tensors_of, tower_of, weights_digest
from rekindle.hosts.agreement import differences, model_facts
from rekindle.settings.engine import Settings

PLAIN: Final = (bool, int, float, str, type(None))
"""Types of the JAX settings sent to followers; settings of other types stay here."""
LEADER_ONLY: Final = ("device", "policy", "route", "logits_processor")
"""Settings not sent to followers, which have other devices, plan nothing, and accept no functions."""


def require_shareable(settings: Settings, family: object, processes: int) -> None:
    """Check a session's settings for this number of processes, before the followers have connected.

    Raises:
        ConfigError: an argument cannot be sent to followers, or the model cannot be split evenly between processes.
    """
    if settings.mesh is not None or settings.data > 1 or settings.lane_count > 1:
        raise ConfigError(
            "with hosts, one group of devices shares the model: leave out mesh, data, replicas, prefill and decode, "
            "and give tensor"
        )
    if settings.tensor is not None and settings.tensor % processes:
        raise ConfigError(
            f"with hosts, tensor must be a multiple of the {processes} processes that share the model, such as "
            f"tensor={processes}; got {settings.tensor}"
        )
    for name, value in (("family", family), ("logits_processor", settings.logits_processor)):
        if value is not None:
            raise ConfigError(f"with hosts, {name} must be None, because functions are not sent to other processes")


def model_request(
    model: str | os.PathLike[str], revision: str | None, settings: Settings, blueprint: Blueprint
) -> dict[str, Any]:
    """Return the request to open a model, as plain data.

    Args:
        model: the model.
        revision: its revision on the hub.
        settings: the resolved settings, so that followers choose nothing.
        blueprint: the leader's plan.

    Raises:
        OSError: a weight file cannot be read.
    """
    values = blueprint.programs.jax_settings.values
    settings = settings if settings.mmproj is None else replace(settings, mmproj=_location(settings.mmproj))
    return {
        "model": _location(model),
        "revision": revision,
        "platform": blueprint.place.first.platform,
        "settings": {
            field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in LEADER_ONLY
        },
        "jax": {name: value for name, value in values.items() if type(value) in PLAIN},
        "facts": model_facts(blueprint),
    }


def weights_request(weights: Weights) -> dict[str, Any]:
    """Return the request to read weights, as plain data.

    Raises:
        InvalidRequest: the weights are arrays, which cannot be sent.
        ModelError: the weights cannot be opened.
        OSError: a file cannot be read.
    """
    if not isinstance(weights, str | os.PathLike):
        raise InvalidRequest(
            "over hosts, weights must be a model that every process can open, as open() takes it; arrays are not sent"
        )
    return {"model": _location(weights), "weights": weights_digest(open_checkpoint(weights))}


def _location(model: str | os.PathLike[str]) -> str:
    path = Path(model).expanduser()
    return str(path.absolute()) if path.exists() else os.fspath(model)


@dataclass(frozen=True, slots=True)
class ModelShard:
    """A follower's shard of an open model.

    Attributes:
        blueprint: the plan of the model.
        executables: the programs of the model.
        state: the state on the devices of this process.
        resources: the resources to close at the end of the session.
    """

    blueprint: Blueprint
    executables: Executables
    state: DeviceState
    resources: ExitStack

    @classmethod
    def open(cls, request: Mapping[str, Any], model: str | None) -> "ModelShard":
        """Open the model requested by a leader, under the leader's settings of JAX.

        Args:
            request: the request, from `model_request`.
            model: the model's name or path on this machine, if it differs from the leader's.

        Raises:
            HostRefused: the model or its computation differs from the leader's.
            RekindleError: the model cannot be opened.
        """
        settings = Settings(**request["settings"])
        # A path in the request is a path on the leader's machine.
        mmproj = settings.mmproj if model is None else None  # beside a model of this machine
        checkpoint = open_checkpoint(model or request["model"], silent, None, request["revision"], mmproj)
        (place,) = places_over(request["platform"], settings)
        blueprint = Blueprint.of(checkpoint, settings, place)
        mismatch = differences(model_facts(blueprint), request["facts"])
        if mismatch:
            raise HostRefused(f"the leader (there) has another model, or computes it differently: {mismatch}")
        blueprint.budget.check(blueprint.limits, checkpoint.source)
        directory = store_directory(settings.restore)
        programs, keys = open_programs(directory, blueprint), blueprint.all_programs()
        if settings.restore == "require":
            require_all(programs, keys)
        stored = set() if programs is None else set(keys).difference(programs.missing(keys))
        first, later, wait = blueprint.in_turn(settings.precompile, keys, stored)
        with ExitStack() as resources:
            executables = Executables(blueprint.programs, settings.max_executables, programs)
            resources.callback(lambda: executables.idle().result())
            resources.callback(executables.free)
            preparing = executables.prepare(first)
            (state,) = fill([(executables, blueprint)], silent, Keeper(None))
            resources.callback(state.delete)
            if wait:
                wait_for(preparing, silent)
            preparing += executables.prepare(later, patient=True)
            resources.callback(collapse_later(state.weights, state.pages, preparing))
            return cls(blueprint, executables, state, resources.pop_all())

    def load(self, request: Mapping[str, Any]) -> list[jax.Array]:
        """Read other weights of the same structure, without using them yet.

        Raises:
            HostRefused: the weights differ from the leader's.
            RekindleError: the weights cannot be read.
        """
        blueprint, programs = self.blueprint, self.blueprint.programs
        if weights_digest(open_checkpoint(request["model"])) != request["weights"]:
            raise HostRefused(f"the leader has other weights in {request['model']} than this process")
        with overrides():
            source, config = opened_weights(request["model"]), blueprint.checkpoint.config
            tower = None if programs.shapes.vision is None else blueprint.checkpoint.vision
            (weights,) = place_new_weights(
                config,
                tensors_of(source, config, blueprint.form),
                blueprint.form,
                programs.shapes.implementation,
                [blueprint.place],
                tower=tower_of(source, tower),
            )
            return weights


def settings_of(request: Mapping[str, Any]) -> JaxSettings:
    """Return the leader's settings of JAX; settings not sent are taken from this process."""
    return JaxSettings({**JaxSettings.here().values, **request["jax"]}, None)
