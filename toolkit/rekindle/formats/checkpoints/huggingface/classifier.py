"""Classification head of a Hugging Face checkpoint."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.uses import Activation, Classifier
from rekindle.formats.model_file import read_json

SUFFIX: Final = "ForSequenceClassification"
HEAD: Final = "score.weight"
_OF_PROBLEMS: Final[Mapping[str, Activation]] = {
    "regression": "identity",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}
_OF_MODULES: Final[Mapping[str, Activation]] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "Tanh": "tanh",
}
"""Activations by their classes in torch.nn, whose full names are in the files of cross-encoders."""


def is_classifier(settings: Mapping[str, Any]) -> bool:
    """Return True if a config.json describes a text classifier."""
    return any(str(name).endswith(SUFFIX) for name in settings.get("architectures") or ())


def read_classifier(
    settings: Mapping[str, Any],
    loaders: Mapping[str, Callable[[], Any]],
    hidden: int,
    activation: Activation | None,
    source: str,
) -> Classifier:
    """Read the classification head of a model.

    Args:
        settings: the content of config.json.
        loaders: loaders of the tensors outside the decoder, by name.
        hidden: the size of a hidden state.
        activation: the activation in the files of a cross-encoder; None if they have none.
        source: path of the model, for error messages.

    Raises:
        CheckpointError: the head has the wrong shape.
        UnsupportedModel: the head is not a single matrix with the name `HEAD`.
    """
    if HEAD not in loaders:
        heads = ", ".join(loaders) or "none"
        raise UnsupportedModel(f"{source}: only a classifier with the head {HEAD} is supported, got {heads:.200}")
    weight = np.asarray(loaders[HEAD]()).astype(np.float32)
    labels = labels_of(settings, len(weight))
    count = len(labels)
    if weight.shape != (count, hidden) or "score.bias" in loaders:
        raise CheckpointError(
            f"{source}: {HEAD} must have the shape {(count, hidden)} by the config, and no bias; got {weight.shape}"
        )
    return Classifier(weight, labels, activation_of(settings, activation, count))


def labels_of(settings: Mapping[str, Any], default: int) -> tuple[str, ...]:
    """Return the names of classes in a config, with a default for their number."""
    names = settings.get("id2label") or {}
    count = len(names) or int(settings.get("num_labels") or default)
    return tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(count))


def activation_of(settings: Mapping[str, Any], own: Activation | None, count: int) -> Activation:
    """Return the activation of a head with a number of classes: that of its files, or of its problem."""
    activation = own or _OF_PROBLEMS.get(settings.get("problem_type") or "", "softmax")
    return "sigmoid" if activation == "softmax" and count == 1 else activation


def read_activation(settings: Mapping[str, Any], directory: Path) -> Activation | None:
    """Return the activation of a cross-encoder from its files, or None if they have none.

    Newer versions of sentence-transformers save it in config_sentence_transformers.json, older ones in config.json.

    Raises:
        UnsupportedModel: the activation is not supported.
    """
    own = settings.get("sentence_transformers")
    names = (
        read_json(directory / "config_sentence_transformers.json").get("activation_fn"),
        own.get("activation_fn") if isinstance(own, Mapping) else None,
        settings.get("sbert_ce_default_activation_function"),
    )
    name = next((name for name in names if name is not None), None)
    if name is None:
        return None
    package, _, kind = str(name).rpartition(".")
    if not package.startswith("torch.nn") or kind not in _OF_MODULES:
        raise UnsupportedModel(
            f"{directory}: the activation of its scores is {str(name)!r:.80}; supported are {', '.join(_OF_MODULES)} "
            "of torch.nn"
        )
    return _OF_MODULES[kind]
