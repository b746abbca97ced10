"""Filling a device: the weights of a model, and the pages and slots of an idle engine."""

from typing import Any

import jax

from rekindle.concurrency.progress import Progress, Report
from rekindle.device.devices import put_on
from rekindle.device.programs.executables import Executables
from rekindle.device.programs.lowering import EMPTY
from rekindle.engine.blueprint import Blueprint
from rekindle.errors import ConfigError
from rekindle.markup import size_text
from rekindle.models.checkpoint.weights import flat_weights
from rekindle.models.load import load_decoder


def empty_state(executables: Executables, blueprint: Blueprint) -> Any:
    """Allocate the pages and slots of an idle engine.

    Raises:
        ConfigError: the device has no room for them.
    """
    limits, device = blueprint.limits, blueprint.device
    try:
        return jax.block_until_ready(executables.run(EMPTY))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        needed, memory = limits.num_pages * limits.page_bytes, blueprint.budget.memory
        has = "" if memory is None else f", which has {size_text(memory)} in all"
        raise ConfigError(
            f"a pool of {limits.num_pages - 1:,} pages needs {size_text(needed)}, and there is no room for it now on "
            f"{device}{has}; lower pool_bytes or num_pages, or close what else is on the device"
        ) from error


def load(blueprint: Blueprint, report: Report) -> list[jax.Array]:
    """Read the weights of a model onto the device, and report how many bytes are there.

    Raises:
        ModelError: the process is ending.
    """
    checkpoint, read, total = blueprint.checkpoint, 0, blueprint.programs.weight_bytes

    def loaded(size: int) -> None:
        nonlocal read
        read += size
        report(Progress("loading weights", read, total))

    config, tensors, dtype, put = checkpoint.config, checkpoint.tensors, blueprint.dtype, put_on(blueprint.device)
    return flat_weights(load_decoder(config, tensors, dtype, loaded, put, blueprint.programs.implementation))
