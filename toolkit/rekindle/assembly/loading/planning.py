"""Planning: the blueprint for a model and settings, with a pool sized by the measured largest step."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from rekindle.assembly.devices import shares_memory
from rekindle.assembly.limits.resolution import DEFAULT_POOL_BYTES
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.stores import open_programs, require_all
from rekindle.core.concurrency.progress import Progress, Report, silent
from rekindle.core.concurrency.threads import compiling
from rekindle.core.device.place import Place
from rekindle.core.device.programs.lowering import temporary_bytes
from rekindle.core.device.programs.store import ProgramStore
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.settings.engine import Settings

MEASURING = "measuring the largest step"


def fewest(checkpoint: Checkpoint, settings: Settings, places: Sequence[Place]) -> Place:
    """Return the first of several places that fits a model with a useful pool, as `Settings.tensor` describes.

    The decision derives from shapes alone, so that each start makes the same choice. If the model fits none of the
    places, return the last one.

    Raises:
        ConfigError: the settings do not fit the model.
    """
    for place in places[:-1]:
        blueprint = Blueprint.of(checkpoint, settings, place)
        if blueprint.budget.holds(_useful_pool(blueprint, settings)):
            return place
    return places[-1]


def _useful_pool(blueprint: Blueprint, settings: Settings) -> int:
    """Return the bytes of the configured pool, else of the smallest useful pool."""
    if settings.num_pages is not None or settings.pool_bytes is not None:
        return blueprint.limits.pool.bytes
    full_request = _full_request(blueprint.checkpoint, settings)
    return min(DEFAULT_POOL_BYTES, (1 + full_request) * blueprint.limits.pool.page_bytes)


def _full_request(checkpoint: Checkpoint, settings: Settings) -> int:
    """Return the number of pages of the longest request."""
    return -(-(settings.max_context or checkpoint.config.max_context) // settings.page_size)


def plan(
    checkpoint: Checkpoint,
    settings: Settings,
    place: Place,
    directory: Path | None,
    *,
    compiles: bool = True,
    report: Report = silent,
) -> Blueprint:
    """Return the blueprint of an engine.

    If the pool gets the rest of a device's own memory, the largest step is compiled once, for a pool of one full
    request, to learn its temporary memory from the compiler. The program store keeps this number for later starts.

    Args:
        directory: the cache directory, or None.
        compiles: False to use a bound for an unmeasured step instead of compiling it.

    Raises:
        ConfigError: the settings do not fit the model or the device.
        ModelTooLarge: the model does not fit on the device.
        NotRestored: `restore="require"`, and the step is not measured yet.
    """
    blueprint = Blueprint.of(checkpoint, settings, place)
    is_configured = settings.num_pages is not None or settings.pool_bytes is not None
    if is_configured or shares_memory(place.first) or blueprint.budget.memory is None:
        return blueprint
    full_request = replace(settings, num_pages=1 + _full_request(checkpoint, settings))
    small = Blueprint.of(checkpoint, full_request, place)
    store = open_programs(directory, small)
    workspace = None if store is None else store.workspace(small.largest_step)
    if workspace is None and compiles:
        if settings.restore == "require":
            require_all(store, [small.largest_step])
        replace(blueprint.budget, workspace=0).check(blueprint.limits, checkpoint.source)
        report(Progress(MEASURING, 0, 1, "program"))
        workspace = _measure(small, store)
        report(Progress(MEASURING, 1, 1, "program"))
    return Blueprint.of(checkpoint, settings, place, workspace)


def _measure(blueprint: Blueprint, store: ProgramStore | None) -> int:
    """Compile and store the largest step, and return its temporary bytes."""
    began, key = monotonic(), blueprint.largest_step
    with compiling:
        program = blueprint.programs.compile(key)
    if store is not None:
        serialized = store.serialize(program, monotonic() - began)
        if serialized is not None:
            store.save(key, serialized)
    return temporary_bytes(program) or 0
