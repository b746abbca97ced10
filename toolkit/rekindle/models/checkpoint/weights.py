"""New weights for an open model: they are read, and must be of the same structure."""

from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.errors import InvalidRequest, UnsupportedModel
from rekindle.models.checkpoint.checkpoint import check_shapes
from rekindle.models.checkpoint.open import open_checkpoint
from rekindle.models.config import ModelConfig
from rekindle.models.decoder import Decoder, expected_shapes
from rekindle.models.families.reading import Family
from rekindle.models.load import Put, load_decoder
from rekindle_kernels.api import Implementation

Weights = str | PathLike[str] | Mapping[str, Any]
"""A model as `open` takes it, or arrays by their Hugging Face names, with projections (out, in)."""


def load_weights(
    weights: Weights,
    config: ModelConfig,
    dtype: jnp.dtype,
    put: Put,
    implementation: Implementation,
    family: Family | None = None,
) -> list[jax.Array]:
    """Read weights onto the device.

    Args:
        weights: the model to read them from, or the arrays.
        config: the model that is open.
        dtype: of the result.
        put: puts an array on the device, from several threads.
        implementation: of the kernels that will read them.
        family: as `rekindle.open` takes it.

    Returns:
        Device arrays, in the order in which every step takes them.

    Raises:
        InvalidRequest: `weights` is neither a model nor a mapping.
        UnsupportedModel: the model has another structure.
        CheckpointError: a tensor is missing or has a wrong shape.
        ModelNotFound: there is no such model.
    """
    if not isinstance(weights, Mapping | str | PathLike):
        raise InvalidRequest(f"weights must be a model as open() takes it, or a mapping of arrays; got {weights!r:.80}")
    if isinstance(weights, Mapping):
        check_shapes(
            {name: np.shape(array) for name, array in weights.items()}, config, "the given weights", "Give all of them"
        )
        tensors: Mapping[str, Any] = {name: np.asarray(weights[name]) for name in expected_shapes(config)}
    else:
        checkpoint = open_checkpoint(weights, family=family)
        _check_same(config, checkpoint.config, checkpoint.source)
        tensors = checkpoint.tensors
    return flat_weights(load_decoder(config, tensors, dtype, put=put, implementation=implementation))


def flat_weights(decoder: Decoder) -> list[jax.Array]:
    """Return a decoder's arrays in the order in which programs take them."""
    leaves: list[jax.Array] = jax.tree.leaves(nnx.state(decoder))
    return leaves


def _check_same(config: ModelConfig, other: ModelConfig, source: str) -> None:
    for field in fields(config):
        mine, theirs = getattr(config, field.name), getattr(other, field.name)
        if mine != theirs:
            raise UnsupportedModel(
                f"update_weights takes a model of the same structure: expected {field.name} {mine!r}, and {source} has "
                f"{theirs!r}. Open it instead"
            )
