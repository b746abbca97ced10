"""Random adapters, and the same model with an adapter merged into its weights."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from rekindle.core.models.adapters.products import products_of
from rekindle.core.models.config import ModelConfig
from rekindle.formats.lora import LowRank

Array = np.ndarray[Any, np.dtype[Any]]


def random_parts(
    config: ModelConfig,
    rank: int = 3,
    seed: int = 0,
    selects: Callable[[str], bool] = lambda name: True,
    scale: float = 0.0625,
) -> dict[str, LowRank]:
    """Return summands of the selected linear layers of a model; they change its logits clearly."""
    chance = np.random.default_rng(seed)
    parts = {}
    for product in products_of(config):
        for name, rows in product.parts.items():
            a = chance.standard_normal((rank, product.inputs)).astype(np.float32)
            b = chance.standard_normal((rows, rank)).astype(np.float32)
            if selects(name):
                parts[name] = LowRank(a, b, scale)
    return parts


def merged(config: ModelConfig, tensors: Mapping[str, Any], parts: Mapping[str, LowRank]) -> dict[str, Any]:
    """Return the tensors of a model with summands added to them."""
    arrays = {name: np.asarray(tensors[name]) for name in tensors}
    for name, part in parts.items():
        summand = part.scale * (part.b @ part.a).astype(np.float64)
        summand = summand.T if config.names.transposed and name.startswith(config.names.layers) else summand
        arrays[f"{name}.weight"] = (arrays[f"{name}.weight"].astype(np.float64) + summand).astype(np.float32)
    return arrays


def tensors_of(parts: Mapping[str, LowRank], prefix: str = "base_model.model.") -> dict[str, Array]:
    """Return summands as PEFT's tensors."""
    tensors = {}
    for name, part in parts.items():
        tensors[f"{prefix}{name}.lora_A.weight"] = part.a
        tensors[f"{prefix}{name}.lora_B.weight"] = part.b
    return tensors


def config_of(parts: Mapping[str, LowRank], **more: Any) -> dict[str, Any]:
    """Return the configuration for summands of one rank and one scale."""
    ranks, scales = ({len(part.a) for part in parts.values()}, {part.scale for part in parts.values()})
    (rank,), (scale,) = ranks, scales
    return {"peft_type": "LORA", "r": rank, "lora_alpha": scale * rank, "target_modules": "all-linear", **more}


def saved(directory: Path, parts: Mapping[str, LowRank], **more: Any) -> Path:
    """Write an adapter as PEFT does, and return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors_of(parts), directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(config_of(parts, **more)))
    return directory
