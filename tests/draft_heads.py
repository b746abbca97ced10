"""Tiny models with draft heads: goldens with further tensors."""

import json
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors.numpy import load_file, save_file

Head = Literal["random", "echo"]
"""The weights of a head: random, or those of a head that guesses as the last layer does without its context."""


def with_draft_head(source: Path, target: Path, head: Head = "random") -> Path:
    """Copy a model directory, and add a draft head.

    Args:
        source: the directory of a tiny model, whose last layer has the tensors of the head's.
        target: a directory to create.
        head: the weights of the head.

    Returns:
        The directory.
    """
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    tensors, rng = load_file(source / "model.safetensors"), np.random.default_rng(7)
    last, hidden = config["num_hidden_layers"] - 1, config["hidden_size"]
    before, prefix = f"model.layers.{last}.", f"model.layers.{last + 1}."
    layer = {name.replace(before, prefix): value for name, value in tensors.items() if name.startswith(before)}
    own = {
        "enorm.weight": np.ones(hidden, np.float32),
        "hnorm.weight": np.ones(hidden, np.float32),
        "shared_head.norm.weight": tensors["model.norm.weight"],
        "eh_proj.weight": np.eye(hidden, 2 * hidden, dtype=np.float32),
    }
    added = layer | {f"{prefix}{name}": value for name, value in own.items()}
    if head == "random":
        added = {name: (value + rng.normal(0, 0.3, value.shape)).astype(value.dtype) for name, value in added.items()}
    save_file(tensors | added, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    return target
