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
    text, is_wrapped = config.get("text_config", config), "text_config" in config
    last, hidden, place = text["num_hidden_layers"] - 1, text["hidden_size"], "model."
    place += "language_model." if is_wrapped else ""
    is_beside = config["model_type"].startswith("qwen3")
    before, prefix = f"{place}layers.{last}.", "mtp.layers.0." if is_beside else f"model.layers.{last + 1}."
    layer = {name.replace(before, prefix): value for name, value in tensors.items() if name.startswith(before)}
    own = (
        ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
        if is_beside
        else (f"{prefix}enorm", f"{prefix}hnorm", f"{prefix}eh_proj", f"{prefix}shared_head.norm")
    )
    one = np.zeros(hidden, np.float32) if is_beside else np.ones(hidden, np.float32)
    values = one, one, np.eye(hidden, 2 * hidden, dtype=np.float32), tensors[f"{place}norm.weight"]
    added = layer | {f"{name}.weight": value for name, value in zip(own, values, strict=True)}
    if head == "random":
        added = {name: (value + rng.normal(0, 0.3, value.shape)).astype(value.dtype) for name, value in added.items()}
    save_file(tensors | added, target / "model.safetensors")
    count = {"mtp_num_hidden_layers" if is_beside else "num_nextn_predict_layers": 1}
    text |= count
    (target / "config.json").write_text(json.dumps(config))
    return target
