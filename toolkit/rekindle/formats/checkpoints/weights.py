"""New weights for an open model of the same structure."""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from os import PathLike
from typing import Any

import jax
import numpy as np

from rekindle.core.content import content_digest
from rekindle.core.errors import InvalidRequest, UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes, transposed_names
from rekindle.core.models.weights.form import WeightForm, kinds_in
from rekindle.core.store.snapshot_key import content_fingerprint
from rekindle.formats.array_digests import arrays_digest
from rekindle.formats.checkpoints.checkpoint import Checkpoint, TowerFiles, check_shapes
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.tied import has_separate_head
from rekindle.formats.families.reading import Family

Weights = str | PathLike[str] | Mapping[str, Any]
"""A model as accepted by `open`, or arrays by Hugging Face name, with projections (out, in)."""


def opened_weights(weights: Weights, family: Family | None = None) -> Checkpoint | Mapping[str, Any]:
    """Open a model with new weights; return arrays as they are.

    Raises:
        InvalidRequest: `weights` is neither a model nor a mapping.
        ModelNotFound: the model does not exist.
        Others: as `open_checkpoint`.
    """
    if isinstance(weights, Mapping):
        return weights
    if not isinstance(weights, str | PathLike):
        raise InvalidRequest(f"weights must be a model as in open(), or a mapping of arrays; got {weights!r:.80}")
    return open_checkpoint(weights, family=family)


def tensors_of(weights: Checkpoint | Mapping[str, Any], config: ModelConfig, form: WeightForm) -> Mapping[str, Any]:
    """Return the new weights by tensor name; arrays of JAX as they are.

    Args:
        weights: the opened model, or the arrays.
        config: config of the open model.
        form: form of the open model's weights.

    Raises:
        UnsupportedModel: the model has another structure, or is not in the quantized blocks of the open model.
        CheckpointError: a tensor is missing or has a wrong shape.
    """
    if isinstance(weights, Mapping):
        from rekindle.formats.checkpoints.huggingface.names import stored_names

        by_name = stored_names(weights, config.names).by_name
        weights = {name: weights[stored_name] for name, stored_name in by_name.items()}
        remedy = "Give all of them"
        if config.draft_head is not None:
            remedy += ', with those of the draft head, or open the session without draft="mtp"'
        shapes = {name: np.shape(array) for name, array in weights.items()}
        check_shapes(shapes, config, "the given weights", remedy)
        if has_separate_head(config, weights):
            raise UnsupportedModel(
                "update_weights needs a model of the same structure: the open model uses its embedding as its head, "
                "and the given weights have a separate head. Open that model instead"
            )
        arrays = {name: weights[name] for name in expected_shapes(config)}
        _check_kinds(arrays, config, form, "the given weights")
        return {name: each if isinstance(each, jax.Array) else np.asarray(each) for name, each in arrays.items()}
    if config.draft_head is not None:
        weights = weights.with_draft_head()
        if weights.config.draft_head is None:
            raise UnsupportedModel(
                f'update_weights needs the draft head too, because the session was opened with draft="mtp", and '
                f"{weights.source} has none. Open the session without it"
            )
    _check_same(config, weights.config, weights.source)
    _check_kinds(weights.tensors, config, form, weights.source)
    return weights.tensors


def tower_of(weights: Checkpoint | Mapping[str, Any], tower: TowerFiles | None) -> TowerFiles | None:
    """Return the vision tower in new weights; None to keep the tower of the open model, or for a model without one.

    Args:
        weights: the opened model, or the arrays, which may leave out the tower.
        tower: the tower of the open model; None without one.

    Raises:
        UnsupportedModel: the new tower has another structure.
        CheckpointError: a tensor of the tower is missing or has a wrong shape.
    """
    if tower is None:
        return None
    if not isinstance(weights, Mapping):
        if weights.vision is not None and weights.vision.config != tower.config:
            raise UnsupportedModel(
                f"update_weights needs a vision tower of the same structure, and that of {weights.source} differs from "
                "the open model's. Open that model instead"
            )
        return weights.vision
    from rekindle.formats.checkpoints.vision.tensors import own_names, tower_files

    names = own_names(tower.config, weights)
    arrays = {name: weights[name] for name in names.values() if name in weights}
    if not arrays:
        return None
    shapes = {name: np.shape(array) for name, array in arrays.items()}
    loaders = {name: partial(np.asarray, array) for name, array in arrays.items()}
    return tower_files(tower.config, names, shapes, loaders, "the given weights")


def weights_digest(weights: Checkpoint | Mapping[str, Any]) -> str:
    """Return the digest of a model's weights: of all bytes of its files, or of all numbers of arrays.

    It is empty for a model without weight files.

    Raises:
        OSError: a file cannot be read.
    """
    if isinstance(weights, Mapping):
        return arrays_digest(weights)
    return content_digest([content_fingerprint(weights.files), weights.configs]) if weights.files else ""


def _check_kinds(tensors: Mapping[str, Any], config: ModelConfig, form: WeightForm, source: str) -> None:
    if form.quantize is not None:  # numbers of any form are quantized as they are read
        return
    kinds, order_of = map(dict[str, str], kinds_in(tensors, form.kind_of, transposed_names(config)))
    for name, kind in form.kinds:
        if kinds.get(name) != kind:
            raise UnsupportedModel(
                f"the open model keeps {name} packed as {kind}, and in {source} it is {kinds.get(name, 'not packed')}: "
                'open the model with weights="dequantized" to give it other numbers'
            )
        if order_of.get(name) != form.order_of.get(name):
            raise UnsupportedModel(
                f"the open model joins {name} with others by the order of its inputs (act-order), and in {source} "
                'others have the same: open the model with weights="dequantized" to give it other numbers'
            )


def _check_same(config: ModelConfig, other: ModelConfig, source: str) -> None:
    for field in fields(config):
        expected, actual = getattr(config, field.name), getattr(other, field.name)
        if expected != actual:
            raise UnsupportedModel(
                f"update_weights needs a model of the same structure: expected {field.name} {expected!r}, and "
                f"{source} has {actual!r}. Open it instead"
            )
