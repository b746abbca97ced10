"""What a leader asks its followers to open, and how a follower opens it."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import jax

from rekindle.core.checkpoints.open import open_checkpoint
from rekindle.core.checkpoints.weights import Weights, tensors_of
from rekindle.core.concurrency.progress import silent
from rekindle.core.config import Settings
from rekindle.core.device.devices import places_over
from rekindle.core.device.jax_settings import JaxSettings, own_settings
from rekindle.core.device.orders import DeviceState
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.readiness import wait_for
from rekindle.core.engine.loading.blueprint import Blueprint
from rekindle.core.engine.loading.filling import fill, place_new_weights, settle
from rekindle.core.engine.loading.stores import open_programs, require_all, store_directory
from rekindle.core.errors import ConfigError, HostRefused, InvalidRequest
from rekindle.core.store.snapshot_key import content_fingerprint
from rekindle.hosts.agreement import differences, of_model

PLAIN: Final = (bool, int, float, str, type(None))
"""The types of JAX's settings that are sent."""
LEADERS_OWN: Final = ("device", "policy", "route", "logits_processor")
"""Settings that are not sent: a follower has devices of its own, plans nothing, and takes no functions."""


def require_shareable(settings: Settings, family: object, processes: int) -> None:
    """Check that a session can be opened over so many processes, as far as that is known before they have come.

    Raises:
        ConfigError: something would have to be sent to followers that cannot be, or not all have the same part to do.
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


def asked(
    model: str | os.PathLike[str], revision: str | None, settings: Settings, blueprint: Blueprint
) -> dict[str, Any]:
    """Return what followers are asked to open, as plain data.

    Args:
        settings: as they were chosen, so that nothing is left to a follower.

    Raises:
        OSError: a weight file cannot be read.
    """
    values = blueprint.programs.jax_settings.values
    return {
        "model": _where(model),
        "revision": revision,
        "platform": blueprint.place.first.platform,
        "settings": {
            field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in LEADERS_OWN
        },
        "jax": {name: value for name, value in values.items() if type(value) in PLAIN},
        "facts": of_model(blueprint),
    }


def weights_asked(weights: Weights) -> dict[str, Any]:
    """Return which weights followers are asked to read, as plain data.

    Raises:
        InvalidRequest: these cannot be sent.
        ModelError: they cannot be opened.
        OSError: a file cannot be read.
    """
    if not isinstance(weights, str | os.PathLike):
        raise InvalidRequest(
            "over hosts, weights must be a model that every process can open, as open() takes it; arrays are not sent"
        )
    return {"model": _where(weights), "weights": content_fingerprint(open_checkpoint(weights).files)}


def _where(model: str | os.PathLike[str]) -> str:
    path = Path(model).expanduser()
    return str(path.absolute()) if path.exists() else os.fspath(model)


@dataclass(frozen=True, slots=True)
class Share:
    """A follower's share of a model, opened.

    Attributes:
        blueprint: how it was opened.
        state: on the devices of this process.
        resources: closed when the session has ended.
    """

    blueprint: Blueprint
    executables: Executables
    state: DeviceState
    resources: ExitStack

    @classmethod
    def opened(cls, asked: Mapping[str, Any], model: str | None) -> "Share":
        """Open what a leader asks for, under its settings of JAX.

        Args:
            model: where the model is on this machine, if it is elsewhere than on the leader's.

        Raises:
            HostRefused: it is another model here, or it is computed otherwise.
            RekindleError: it cannot be opened.
        """
        settings = Settings(**asked["settings"])
        # A path is where the leader has the model.
        checkpoint = open_checkpoint(model or asked["model"], silent, None, asked["revision"])
        (place,) = places_over(asked["platform"], settings)
        blueprint = Blueprint.of(checkpoint, settings, place)
        unlike = differences(of_model(blueprint), asked["facts"])
        if unlike:
            raise HostRefused(f"the leader has another model, or computes it otherwise (there) than here: {unlike}")
        blueprint.budget.check(blueprint.limits, checkpoint.source)
        directory = store_directory(settings.restore)
        programs, wanted = open_programs(directory, blueprint), blueprint.all_programs()
        if settings.restore == "require":
            require_all(programs, wanted)
        stored = programs is not None and not programs.missing(wanted)
        first, later, wait = blueprint.in_turn(settings.precompile, wanted, stored=stored)
        with ExitStack() as resources:
            executables = Executables(blueprint.programs, settings.max_executables, programs)
            resources.callback(lambda: executables.idle().result())
            resources.callback(executables.free)
            preparing = executables.prepare(first)
            (state,) = fill([(executables, blueprint)], silent)
            resources.callback(state.delete)
            if wait:
                wait_for(preparing, silent)
            preparing += executables.prepare(later, patient=True)
            resources.callback(settle(state.weights, preparing))
            return cls(blueprint, executables, state, resources.pop_all())

    def load(self, asked: Mapping[str, Any]) -> list[jax.Array]:
        """Read other weights of the same structure; they are not used yet.

        Raises:
            HostRefused: they are others here than on the leader's.
            RekindleError: they cannot be read.
        """
        blueprint, programs = self.blueprint, self.blueprint.programs
        if content_fingerprint(open_checkpoint(asked["model"]).files) != asked["weights"]:
            raise HostRefused(f"the leader has other weights in {asked['model']} than this process")
        with own_settings():
            tensors = tensors_of(asked["model"], blueprint.checkpoint.config)
            (weights,) = place_new_weights(
                blueprint.checkpoint.config, tensors, blueprint.dtype, programs.implementation, [blueprint.place]
            )
            return weights


def settings_of(asked: Mapping[str, Any]) -> JaxSettings:
    """Return the settings of JAX under which a leader compiles; what cannot be sent is this process's own."""
    return JaxSettings({**JaxSettings.here().values, **asked["jax"]}, None)
