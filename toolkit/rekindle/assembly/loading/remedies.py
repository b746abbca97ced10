"""Remedies for a model without room: settings, a smaller model, a larger device."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from rekindle.assembly.devices import shares_memory
from rekindle.assembly.limits.accelerators import holding
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.choosing import MachinePart, candidates
from rekindle.core.device.place import Place
from rekindle.core.errors import RekindleError
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.settings.engine import Settings

_SMALL_STEP: Final[Mapping[str, Any]] = {"max_prefill_tokens": 64, "prefill_chunk": 64, "max_running": 4}
_CHANGES: Final[tuple[Mapping[str, Any], ...]] = (
    {"dtype": "bfloat16"},
    _SMALL_STEP,
    {"quantize": "int8"},
    {"quantize": "int4"},
    {"quantize": "int4", "kv_dtype": "int8", **_SMALL_STEP},
)
"""Changes of settings, those with the least effect on answers and speed first."""


def remedies(checkpoint: Checkpoint, settings: Settings, place: Place) -> str:
    """Return the remedies for a model without room, each on a line of its own."""
    needed = _needed(Blueprint.of(checkpoint, settings, place))
    return remedies_of(settings, place, needed, lambda changed: _fits(checkpoint, changed, place))


def remedies_of(settings: Settings, place: Place, needed: int, fits: Callable[[Settings], bool]) -> str:
    """Return the remedies for so many bytes without room, each on a line of its own.

    Args:
        fits: returns True if the model has room with other settings.
    """
    return "".join(f"\n- {line}" for line in _remedies(settings, place, needed, fits))


def _remedies(settings: Settings, place: Place, needed: int, fits: Callable[[Settings], bool]) -> Iterator[str]:
    change = next((each for each in _CHANGES if fits(replace(settings, **each))), None)
    if change is None:
        yield "No setting makes it fit here"
    else:
        yield "Open it with " + ", ".join(f"{name}={json.dumps(value)}" for name, value in change.items())
    machine = MachinePart.of(settings)
    if suitable := [each for each in candidates(cpu=machine.cores is not None) if machine.fits(each)]:
        yield f'or open {suitable[-1].model!r}, the largest that `rekindle.open("auto")` knows to fit here'
    if not shares_memory(place.first):
        if names := holding(needed):
            yield f"or take a larger device: it fits on {', '.join(names)}"
        yield "or shard it over several devices with tensor="


def _fits(checkpoint: Checkpoint, settings: Settings, place: Place) -> bool:
    with suppress(RekindleError):  # a change that the model refuses
        blueprint = Blueprint.of(checkpoint, settings, place)
        return blueprint.budget.memory is None or _needed(blueprint) <= blueprint.budget.memory
    return False


def _needed(blueprint: Blueprint) -> int:
    """Return the bytes of weights, of the largest step and of the smallest pool."""
    return blueprint.budget.fixed_bytes + 2 * blueprint.limits.pool.page_bytes
