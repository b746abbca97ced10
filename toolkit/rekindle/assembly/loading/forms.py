"""The choice of a form for the weights of a model."""

from collections.abc import Sequence

import jax.numpy as jnp

from rekindle.assembly.devices import reads_floats, shares_memory
from rekindle.assembly.loading.kinds import large_groups, quantized_kinds
from rekindle.core.device.place import Place
from rekindle.core.errors import ConfigError
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import abstract_decoder, expected_shapes, transposed_names
from rekindle.core.models.shard import Shard
from rekindle.core.models.weights.form import WeightForm, kept_orders, kinds_in
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.settings.engine import Settings
from rekindle_kernels.api import Implementation, choose
from rekindle_kernels.devices import capability_of
from rekindle_kernels.storage import MOST, Activations


def weight_form(checkpoint: Checkpoint, settings: Settings, dtype: jnp.dtype, place: Place) -> WeightForm:
    """Return the form of a model's weights, as `Settings.weights` and `Settings.quantize` describe.

    Raises:
        ConfigError: `weights="packed"`, and the blocks of the file cannot be kept; `quantize=`, and its tensors are
            quantized already or none can be; or the activations do not fit the device.
    """
    wide, is_accelerator = WeightForm(dtype), not shares_memory(place.first)
    if settings.quantize is not None:
        return _quantized(checkpoint, settings, dtype, place)
    if settings.weights != "packed" and not _is_packed_by_default(checkpoint, settings, dtype, place):
        _activations(settings, dtype, place)  # checks the setting, which is idle here
        return wide
    shapes = expected_shapes(checkpoint.config)
    kinds, orders = kinds_in(checkpoint.tensors, shapes, transposed_names(checkpoint.config))
    kinds = large_groups(kinds, shapes, floats=reads_floats(place.first)) if is_accelerator else kinds
    form = WeightForm(dtype, kinds, _activations(settings, dtype, place), orders=kept_orders(orders, kinds))
    problem = ""
    if not kinds:
        groups = ", with a scale for at least 128 numbers" if is_accelerator else ""
        if is_accelerator and not reads_floats(place.first):
            groups += " (FP8 takes a GPU of compute capability 9.0)"
        problem = f"and {checkpoint.source} has none of a supported kind{groups}"
    elif not _is_same_on_all(checkpoint.config, form, place.shards):
        problem = f"and the parts of this model for {place.tensor} devices differ in theirs"
    if problem and settings.weights == "packed":
        raise ConfigError(f'weights="packed" keeps the quantized blocks of a file, {problem}: leave it out')
    return wide if problem else form


def _quantized(checkpoint: Checkpoint, settings: Settings, dtype: jnp.dtype, place: Place) -> WeightForm:
    """Return the form of weights quantized as they are read."""
    assert settings.quantize is not None, "the weights are to be quantized"
    if checkpoint.formats and settings.weights == "auto":
        raise ConfigError(
            f"quantize= is for files with plain numbers, and {checkpoint.source} has {', '.join(checkpoint.formats)}: "
            'leave it out, or add weights="dequantized" to convert its numbers and quantize them again'
        )
    is_accelerator = not shares_memory(place.first)
    kinds = quantized_kinds(checkpoint.config, settings.quantize, place.shards, is_accelerator=is_accelerator)
    if not kinds:
        least = 128 if is_accelerator else 32
        raise ConfigError(
            f"quantize= makes groups of {least} numbers and more, and no matrix of {checkpoint.source} has them on "
            f"{place}: leave it out"
        )
    return WeightForm(dtype, kinds, _activations(settings, dtype, place), settings.quantize)


def _activations(settings: Settings, dtype: jnp.dtype, place: Place) -> Activations:
    """Return the numbers multiplied with packed weights."""
    platform = place.first.platform
    if not shares_memory(place.first):
        defaults: dict[str, Activations] = {"bfloat16": "bfloat16", "float16": "float16"}
        default = defaults.get(dtype.name, "exact")
        if settings.activations in ("int16", "int8"):
            raise ConfigError(
                f'activations="{settings.activations}" is for CPUs: leave it out on {platform}, or take "bfloat16", '
                '"float16" or "exact"'
            )
        return settings.activations or default
    if settings.activations == "float16":
        raise ConfigError(
            f'activations="float16" is for accelerators: leave it out on {platform}, or take one of {", ".join(MOST)}'
        )
    return settings.activations or "int16"


def _implementation(
    checkpoint: Checkpoint, settings: Settings, dtype: jnp.dtype, place: Place
) -> Implementation | None:
    """Return the kernels for a model; None if they cannot serve it, as told with the programs."""
    pools = checkpoint.config.pools(2, settings.page_size, place.tensor)
    try:
        return choose(
            place.first.platform,
            pools,
            dtype,
            settings.implementation,
            weights=dtype,
            capability=capability_of(place.first),
        ).implementation
    except ValueError:
        return None


def _is_packed_by_default(checkpoint: Checkpoint, settings: Settings, dtype: jnp.dtype, place: Place) -> bool:
    """Return True for GGUF files with the native kernels of CPUs, which multiply their blocks faster than numbers."""
    if settings.weights != "auto" or not checkpoint.is_gguf:
        return False
    return _implementation(checkpoint, settings, dtype, place) == "cpu"


def _is_same_on_all(config: ModelConfig, form: WeightForm, shards: Sequence[Shard]) -> bool:
    """Return True if the weights of all devices have the same storages, since they run the same program."""
    if len(shards) == 1:
        return True
    storages = {
        tuple(request.storage(form) for request in abstract_decoder(config, form, "xla", shard).requests)
        for shard in shards
    }
    return len(storages) == 1
