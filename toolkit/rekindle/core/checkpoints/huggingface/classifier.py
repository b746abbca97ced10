"""Classification head of a Hugging Face checkpoint."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from rekindle.core.checkpoints.uses import Classifier
from rekindle.core.errors import CheckpointError, UnsupportedModel

SUFFIX: Final = "ForSequenceClassification"
HEAD: Final = "score.weight"


def is_classifier(settings: Mapping[str, Any]) -> bool:
    """Return True if a config.json describes a text classifier."""
    return any(str(name).endswith(SUFFIX) for name in settings.get("architectures") or ())


def read_classifier(
    settings: Mapping[str, Any], loaders: Mapping[str, Callable[[], Any]], hidden: int, source: str
) -> Classifier:
    """Read the classification head of a model.

    Args:
        settings: the content of config.json.
        loaders: loaders of the tensors outside the decoder, by name.
        hidden: the size of a hidden state.
        source: path of the model, for error messages.

    Raises:
        CheckpointError: the head has the wrong shape.
        UnsupportedModel: the head is not a single matrix with the name `HEAD`.
    """
    if HEAD not in loaders:
        heads = ", ".join(loaders) or "none"
        raise UnsupportedModel(f"{source}: only a classifier with the head {HEAD} is supported, got {heads:.200}")
    weight = np.asarray(loaders[HEAD]()).astype(np.float32)
    names = settings.get("id2label") or {}
    count = len(names) or int(settings.get("num_labels") or len(weight))
    if weight.shape != (count, hidden) or "score.bias" in loaders:
        raise CheckpointError(
            f"{source}: {HEAD} must have the shape {(count, hidden)} by the config, and no bias; got {weight.shape}"
        )
    labels = tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(count))
    return Classifier(weight, labels, count == 1 or settings.get("problem_type") == "multi_label_classification")
