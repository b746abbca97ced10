"""The choice of a form for the weights of a model."""

from collections.abc import Sequence

import jax.numpy as jnp

from rekindle.core.checkpoints.checkpoint import Checkpoint
from rekindle.core.config import Settings
from rekindle.core.device.place import Place
from rekindle.core.errors import ConfigError
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import abstract_decoder, expected_shapes
from rekindle.core.models.shard import Shard
from rekindle.core.models.weights.form import WeightForm, kinds_in
from rekindle_kernels.api import choose_for_all


def weight_form(checkpoint: Checkpoint, settings: Settings, dtype: jnp.dtype, place: Place) -> WeightForm:
    """Return the form of a model's weights, as `Settings.weights` describes.

    Raises:
        ConfigError: `weights="packed"`, and the blocks of the file cannot be kept.
    """
    wide = WeightForm(dtype)
    if settings.weights != "packed" and not _is_packed_by_default(checkpoint, settings, dtype, place):
        return wide
    kinds = kinds_in(checkpoint.tensors, expected_shapes(checkpoint.config))
    form = WeightForm(dtype, kinds, settings.activations)
    problem = ""
    if not kinds:
        problem = f"and {checkpoint.source} has none of a supported kind"
    elif not _is_same_on_all(checkpoint.config, form, place.shards):
        problem = f"and the parts of this model for {place.tensor} devices differ in theirs"
    if problem and settings.weights == "packed":
        raise ConfigError(f'weights="packed" keeps the quantized blocks of a file, {problem}: leave it out')
    return wide if problem else form


def _is_packed_by_default(checkpoint: Checkpoint, settings: Settings, dtype: jnp.dtype, place: Place) -> bool:
    """Return True for GGUF files with the native kernels of CPUs, which multiply their blocks faster than numbers."""
    if settings.weights != "auto" or not any(path.suffix == ".gguf" for path in checkpoint.files):
        return False
    pools = checkpoint.config.pools(2, settings.page_size, place.tensor)
    try:
        return choose_for_all(place.first.platform, pools, dtype, settings.implementation) == "cpu"
    except ValueError:  # told with the programs
        return False


def _is_same_on_all(config: ModelConfig, form: WeightForm, shards: Sequence[Shard]) -> bool:
    """Return True if the weights of all devices have the same storages, since they run the same program."""
    storages = {
        tuple(request.storage(form) for request in abstract_decoder(config, form, "xla", shard).requests)
        for shard in shards
    }
    return len(storages) == 1
