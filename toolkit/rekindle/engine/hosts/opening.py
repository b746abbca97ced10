"""What a leader asks its followers to open, and how a follower opens it."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from rekindle.concurrency.progress import silent
from rekindle.config import Settings
from rekindle.device.devices import place_over
from rekindle.device.jax_settings import JaxSettings
from rekindle.device.orders import DeviceState
from rekindle.device.programs.executables import Executables, wait_for
from rekindle.engine.blueprint import Blueprint
from rekindle.engine.filling import filled
from rekindle.engine.hosts.agreement import differences, of_model
from rekindle.engine.stores import open_programs, require_all, store_directory
from rekindle.errors import ConfigError, HostRefused
from rekindle.models.checkpoint.open import open_checkpoint

PLAIN: Final = (bool, int, float, str, type(None))
"""The types of JAX's settings that are sent."""
LEADERS_OWN: Final = ("device", "policy", "logits_processor")
"""Settings that are not sent: a follower has devices of its own, plans nothing, and takes no functions."""


def require_sendable(settings: Settings, family: object) -> None:
    """Check that a session can be opened over hosts.

    Raises:
        ConfigError: something would have to be sent to followers that cannot be.
    """
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
    path = Path(model).expanduser()
    values = blueprint.programs.jax_settings.values
    return {
        "model": str(path.absolute()) if path.exists() else os.fspath(model),
        "revision": revision,
        "platform": blueprint.place.first.platform,
        "settings": {
            field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in LEADERS_OWN
        },
        "jax": {name: value for name, value in values.items() if type(value) in PLAIN},
        "facts": of_model(blueprint),
    }


@dataclass(frozen=True, slots=True)
class Share:
    """A follower's share of a model, opened.

    Attributes:
        state: on the devices of this process.
        resources: closed when the session has ended.
    """

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
        blueprint = Blueprint.of(checkpoint, settings, place_over(asked["platform"], settings.tensor))
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
            resources.callback(executables.stop)
            preparing = executables.prepare(first)
            state = filled(executables, blueprint, silent)
            resources.callback(state.delete)
            if wait:
                wait_for(preparing, silent)
            executables.prepare(later, patient=True)
            return cls(executables, state, resources.pop_all())


def settings_of(asked: Mapping[str, Any]) -> JaxSettings:
    """Return the settings of JAX under which a leader compiles; what cannot be sent is this process's own."""
    return JaxSettings({**JaxSettings.here().values, **asked["jax"]}, None)
