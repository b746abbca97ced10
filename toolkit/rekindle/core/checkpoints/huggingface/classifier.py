"""The head of a checkpoint that classifies texts."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from rekindle.core.checkpoints.uses import Classifier
from rekindle.core.errors import CheckpointError, UnsupportedModel

SUFFIX: Final = "ForSequenceClassification"
HEAD: Final = "score.weight"


def is_classifier(settings: Mapping[str, Any]) -> bool:
    """Tell whether config.json is that of a model that classifies texts."""
    return any(str(name).endswith(SUFFIX) for name in settings.get("architectures") or ())


def read_classifier(
    settings: Mapping[str, Any], loaders: Mapping[str, Callable[[], Any]], hidden: int, source: str
) -> Classifier:
    """Return the head of a model that classifies texts.

    Args:
        settings: the content of config.json.
        loaders: of the tensors that are not the decoder's, by name.
        hidden: the size of a hidden state.

    Raises:
        CheckpointError: there is no head, or one of another size.
        UnsupportedModel: the head is no single matrix of that name.
    """
    if HEAD not in loaders:
        heads = ", ".join(loaders) or "none"
        raise UnsupportedModel(f"{source}: a classifier is served whose head is {HEAD}; this one's is {heads:.200}")
    weight = np.asarray(loaders[HEAD]()).astype(np.float32)
    named = settings.get("id2label") or {}
    count = len(named) or int(settings.get("num_labels") or len(weight))
    if weight.shape != (count, hidden) or "score.bias" in loaders:
        raise CheckpointError(
            f"{source}: {HEAD} must have the shape {(count, hidden)} by the config, and no bias; got {weight.shape}"
        )
    labels = tuple(str(named.get(str(each), f"LABEL_{each}")) for each in range(count))
    return Classifier(weight, labels, count == 1 or settings.get("problem_type") == "multi_label_classification")
