"""Requirements of a model with some settings: its limits, its programs, and their store."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from rekindle.assembly.devices import candidate_places, place_from, places_of
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.choosing import AUTO, choose
from rekindle.assembly.loading.planning import fewest, plan
from rekindle.assembly.loading.stores import PROGRAMS, program_store
from rekindle.cli.models.targets import devices_of
from rekindle.cli.requirements import settings_of
from rekindle.core.concurrency.progress import Report
from rekindle.core.device.place import Place
from rekindle.core.device.programs.store import ProgramStore
from rekindle.core.errors import ConfigError
from rekindle.core.store.directory import cache_dir
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import Settings


@dataclass(frozen=True, slots=True)
class Requirements:
    """The requirements of a model, as `open` would plan them.

    Attributes:
        blueprint: the plan for the devices sharing the model.
        devices: all devices of the target or of this machine.
        store: the store of the model's programs.
    """

    blueprint: Blueprint
    devices: Sequence[jax.Device]
    store: ProgramStore

    @classmethod
    def of(cls, arguments: Namespace, report: Report, *, compiles: bool = False) -> "Requirements":
        """Plan the model of the arguments of `add_arguments`, downloading it if necessary.

        Args:
            arguments: the parsed arguments.
            report: the callback for progress.
            compiles: whether a step may be compiled to measure the memory left for the pool.

        Raises:
            ModelError: the model cannot be opened.
            ConfigError: the settings do not fit the model, or nothing can be compiled for the target.
            StorageError: the cache directory cannot be used.
        """
        target: str | None = arguments.target
        devices = jax.devices() if target is None else devices_of(target)
        settings = _settings(arguments)
        places = places_of(settings) if target is None else _places(target, devices, settings)
        model: str = arguments.model
        if model == AUTO:
            choice = choose(settings)
            model = choice.model
            print(choice.reason, file=sys.stderr)
        checkpoint = open_checkpoint(model, report, revision=arguments.revision, mmproj=settings.mmproj)
        place = fewest(checkpoint, settings, places)
        blueprint = plan(checkpoint, settings, place, cache_dir(), compiles=compiles, report=report)
        return cls(blueprint, devices, program_store(cache_dir(PROGRAMS), blueprint))


def _places(target: str, devices: Sequence[jax.Device], settings: Settings) -> list[Place]:
    tensor, data = settings.tensor, settings.data
    if data * (tensor or 1) > len(devices):
        raise ConfigError(f"{target} has {len(devices)} devices, and the mesh has data={data}, tensor={tensor or 1}")
    return candidate_places(devices, data) if tensor is None else [place_from(devices, tensor, data)]


def _settings(arguments: Namespace) -> Settings:
    return Settings(**settings_of(arguments), precompile="lazy")  # "lazy" allows any number of programs
