"""Vision towers in tests: the tiny golden, and patches of pixels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.assembly.weights.load import load_weights
from rekindle.core.models.vision.config import VisionConfig
from rekindle.core.models.vision.patches import Patches
from rekindle.core.models.vision.tower import abstract_tower
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.checkpoint import TowerFiles
from rekindle.formats.families.towers import tower_config
from rekindle.formats.images.processors.arrays import in_squares
from rekindle_kernels.api import Implementation

Array = np.ndarray[Any, np.dtype[Any]]

SMOLVLM: Final = Path(__file__).parent / "goldens" / "vision" / "smolvlm"
"""A tiny SmolVLM, with the pixels and the embeddings of two prompts by transformers."""

SMOLVLM_256M: Final[dict[str, Any]] = {
    "model_type": "idefics3",
    "scale_factor": 4,
    "vision_config": {
        "hidden_size": 768,
        "image_size": 512,
        "max_image_size": {"longest_edge": 512},
        "model_type": "idefics3",
        "num_attention_heads": 12,
        "patch_size": 16,
        "size": {"longest_edge": 2048},
        "tie_word_embeddings": False,
        "use_base_siglip": False,
    },
}
"""The config of SmolVLM-256M-Instruct about its tower; the text model's embeddings have 576 numbers."""


CLIP_336: Final[dict[str, Any]] = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
    "num_attention_heads": 16, "patch_size": 14,
}  # fmt: skip
SIGLIP_SO400M: Final[dict[str, Any]] = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
    "patch_size": 14,
}  # fmt: skip
CUT_TOWERS: Final[dict[str, tuple[dict[str, Any], int, int, int]]] = {
    "Qwen3-VL-8B": (
        {
            "model_type": "qwen3_vl",
            "vision_config": {"depth": 2, "deepstack_visual_indexes": [0], "out_hidden_size": 4096},
        },
        4096,
        1,
        2304,
    ),
    "Mistral-Small-3.2-24B": (
        {
            "model_type": "mistral3",
            "spatial_merge_size": 2,
            "text_config": {"hidden_size": 5120},
            "vision_config": {
                "model_type": "pixtral", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
                "intermediate_size": 4096, "patch_size": 14, "image_size": 1540,
            },
        },
        5120,
        1,
        1024,
    ),
    "gemma-3-4b": (
        {
            "model_type": "gemma3",
            "mm_tokens_per_image": 256,
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
                "num_attention_heads": 16, "num_hidden_layers": 2, "patch_size": 14,
            },
        },
        2560,
        1,
        4096,
    ),
    "gemma-4-31B": (
        {
            "model_type": "gemma4",
            "vision_config": {
                "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_key_value_heads": 16,
                "num_hidden_layers": 2, "head_dim": 72, "standardize": True,
            },
        },
        5376,
        1,
        2520,
    ),
    "InternVL3-8B": (
        {
            "model_type": "internvl",
            "vision_config": {
                "model_type": "internvl_vision", "hidden_size": 1024, "num_hidden_layers": 2,
                "num_attention_heads": 16, "intermediate_size": 4096, "attention_bias": True,
            },
        },
        3584,
        1,
        1024,
    ),
    "LFM2-VL-1.6B": (
        {
            "model_type": "lfm2_vl",
            "vision_config": {
                "model_type": "siglip2_vision_model", "hidden_size": 1152, "num_hidden_layers": 2,
                "num_attention_heads": 16, "intermediate_size": 4304,
            },
        },
        2048,
        1,
        1024,
    ),
    "Qwen2.5-VL-7B": (
        {
            "model_type": "qwen2_5_vl",
            "vision_config": {"depth": 2, "fullatt_block_indexes": [1], "out_hidden_size": 3584},
        },
        3584,
        1,
        2304,
    ),
    "Qwen2-VL-7B": ({"model_type": "qwen2_vl", "vision_config": {"depth": 2, "hidden_size": 3584}}, 3584, 1, 2304),
    "llava-1.5-7b": (
        {"model_type": "llava", "vision_feature_layer": -2, "vision_config": CLIP_336 | {"num_hidden_layers": 3}},
        4096,
        1,
        576,
    ),
    "llava-v1.6-mistral-7b": (
        {"model_type": "llava_next", "vision_feature_layer": -2, "vision_config": CLIP_336 | {"num_hidden_layers": 3}},
        4096,
        6,
        576,
    ),
    "granite-vision-3.3-2b": (
        {
            "model_type": "llava_next",
            "multimodal_projector_bias": True,
            "text_config": {"model_type": "granite", "embedding_multiplier": 12.0, "hidden_size": 2048},
            "vision_config": SIGLIP_SO400M | {"image_size": 384, "num_hidden_layers": 4},
            "vision_feature_layer": [-4, -3, -2, -1],
            "vision_feature_select_strategy": "full",
        },
        2048,
        12,
        729,
    ),
    "paligemma-3b-224": (
        {"model_type": "paligemma", "vision_config": SIGLIP_SO400M | {"num_hidden_layers": 2, "projection_dim": 2048}},
        2048,
        1,
        256,
    ),
    "pixtral-12b": (
        {
            "model_type": "llava",
            "vision_config": {
                "model_type": "pixtral", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
                "head_dim": 64, "intermediate_size": 4096, "patch_size": 16, "image_size": 1024,
            },
        },
        5120,
        1,
        4096,
    ),
}  # fmt: skip
"""Towers at published widths, cut to a few layers: config, size of an embedding, segments, and patches of each."""


def golden(prompt: int) -> tuple[Array, Array]:
    """Return the pixels of the tiles of a prompt's images, (tiles, channels, height, width), and their embeddings."""
    with np.load(SMOLVLM / "golden.npz") as arrays:
        (pixels,) = arrays[f"{prompt}_pixel_values"]
        return pixels, arrays[f"{prompt}_embedded"]


def patches_of(pixels: Array, patch: int, merge: int) -> Patches:
    """Cut square tiles (tiles, channels, height, width) into patches, in the order of `Patches`."""
    tiles, channels, height, _ = pixels.shape
    side, squares = height // patch, height // patch // merge
    parts = pixels.reshape(tiles, channels, squares, merge, patch, squares, merge, patch)
    values = parts.transpose(0, 2, 5, 3, 6, 4, 7, 1).reshape(tiles, side * side, -1)
    positions = np.tile(in_squares(squares * merge, squares * merge, merge), (tiles, 1, 1))
    return Patches(np.ascontiguousarray(values, np.float32), positions, np.ones(values.shape[:2], bool))


def padded(patches: Patches, segments: int, length: int) -> Patches:
    """Return patches with so many more segments, and so much longer ones, of ones that must not matter."""
    widths = [(0, segments), (0, length)]
    values = np.pad(patches.values, [*widths, (0, 0)], constant_values=1.0)
    return Patches(values, np.pad(patches.positions, [*widths, (0, 0)]), np.pad(patches.valid, widths))


@dataclass(frozen=True)
class RunningTower:
    """A tower and its weights, as one program for each shape of patches.

    Attributes:
        config: the structure of the tower.
        form: the form of the weights.
        implementation: the kernels.
        weights: the weights, in the program's order.
    """

    config: VisionConfig
    form: WeightForm
    implementation: Implementation
    weights: Sequence[jax.Array]

    @classmethod
    def of(cls, tower: TowerFiles, dtype: str = "float32", implementation: Implementation = "xla") -> "RunningTower":
        """Load a tower."""
        form = WeightForm(jnp.dtype(dtype))
        weights = load_weights(tower.config, tower.tensors, form, implementation=implementation)
        return cls(tower.config, form, implementation, weights)

    def embed(self, patches: Patches) -> Array:
        """Return the embeddings of patches."""
        program = tower_program(self.config, self.form, self.implementation)
        return np.asarray(program(self.weights, patches))


@lru_cache(maxsize=8)
def tower_program(config: VisionConfig, form: WeightForm, implementation: Implementation) -> Callable[..., jax.Array]:
    """Return the function of weights and patches to embeddings, compiled for each shape."""
    abstract = abstract_tower(config, form, implementation)
    return jax.jit(lambda weights, patches: abstract.with_weights(weights)(patches))


Program = tuple[Callable[..., jax.Array], list[jax.ShapeDtypeStruct], Patches]
"""A function of weights and patches, and the shapes of both."""


def published_program(implementation: Implementation, segments: int) -> Program:
    """Return the tower of SmolVLM-256M in bfloat16."""
    config = tower_config(SMOLVLM_256M, 576, "SmolVLM-256M")
    assert config is not None
    return _program(config, implementation, segments, 1024)


def cut_program(implementation: Implementation, name: str) -> Program:
    """Return one of the `CUT_TOWERS` in bfloat16."""
    settings, size, segments, patches = CUT_TOWERS[name]
    config = tower_config(settings, size, name)
    assert config is not None
    return _program(config, implementation, segments, patches)


def _program(config: VisionConfig, implementation: Implementation, segments: int, patches: int) -> Program:
    abstract = abstract_tower(config, WeightForm(jnp.dtype("bfloat16")), implementation)
    shapes = (
        jax.ShapeDtypeStruct((segments, patches, *rest), jnp.dtype(dtype))
        for rest, dtype in (((config.patch_width,), "float32"), ((2,), "int32"), ((), "bool"))
    )
    return lambda weights, patches: abstract.with_weights(weights)(patches), list(abstract.forms), Patches(*shapes)
