"""New weights for an open model, which must be of the same structure."""

from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from typing import Any

import numpy as np

from rekindle.core.checkpoints.checkpoint import check_shapes
from rekindle.core.checkpoints.open import open_checkpoint
from rekindle.core.checkpoints.tied import has_own_head
from rekindle.core.errors import InvalidRequest, UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.core.models.families.reading import Family

Weights = str | PathLike[str] | Mapping[str, Any]
"""A model as `open` takes it, or arrays by their Hugging Face names, with projections (out, in)."""


def tensors_of(weights: Weights, config: ModelConfig, family: Family | None = None) -> Mapping[str, Any]:
    """Return the tensors of new weights by their names.

    Args:
        weights: the model to read them from, or the arrays.
        config: the model that is open.
        family: as `rekindle.open` takes it.

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
        if has_own_head(config, weights):
            raise UnsupportedModel(
                "update_weights takes a model of the same structure: the open one has its embedding as its head, and "
                "the given weights have another head. Open that model instead"
            )
        return {name: np.asarray(weights[name]) for name in expected_shapes(config)}
    checkpoint = open_checkpoint(weights, family=family)
    _check_same(config, checkpoint.config, checkpoint.source)
    return checkpoint.tensors


def _check_same(config: ModelConfig, other: ModelConfig, source: str) -> None:
    for field in fields(config):
        mine, theirs = getattr(config, field.name), getattr(other, field.name)
        if mine != theirs:
            raise UnsupportedModel(
                f"update_weights takes a model of the same structure: expected {field.name} {mine!r}, and {source} has "
                f"{theirs!r}. Open it instead"
            )
