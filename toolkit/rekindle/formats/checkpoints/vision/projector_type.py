"""A type of projectors in llama.cpp's files of vision towers, and common parts of several."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rekindle.core.models.vision.config import Product, Scaling, Step, VisionConfig
from rekindle.formats.checkpoints.gguf.architecture import plain
from rekindle.formats.checkpoints.gguf.file import GGUFFile

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProjectorType:
    """A type of projectors.

    Attributes:
        settings: returns an equivalent `config.json` without a text model, given the file.
        stems: returns the names in the file of the projector's tensors, by the model's names.
        images: returns settings of an equivalent `preprocessor_config.json`, for a file without those of images.
        output_size: returns the numbers of an embedding; None if the file does not say.
        videos: settings of an equivalent `video_preprocessor_config.json`, missing in all files.
    """

    settings: Callable[[GGUFFile], Settings]
    stems: Callable[[VisionConfig], dict[str, str]]
    images: Callable[[GGUFFile], Settings] = lambda _: {}
    output_size: Callable[[GGUFFile], Any] = lambda file: number(file, "projection_dim")
    videos: Mapping[str, Any] = field(default_factory=dict)


def number(file: GGUFFile, name: str) -> Any:
    """Return a value below "clip.vision." in the metadata, or None."""
    return plain(file.metadata.get(f"clip.vision.{name}"))


def present(**settings: Any) -> Settings:
    """Return the settings other than None."""
    return {name: value for name, value in settings.items() if value is not None}


def activation(file: GGUFFile) -> str:
    is_silu, is_gelu = file.metadata.get("clip.use_silu"), file.metadata.get("clip.use_gelu")
    return "silu" if is_silu else "gelu_pytorch_tanh" if is_gelu else "quick_gelu"


def encoder(file: GGUFFile, **further: Any) -> Settings:
    """Return the settings of an encoder, with others."""
    return present(
        hidden_size=number(file, "embedding_length"),
        intermediate_size=number(file, "feed_forward_length"),
        num_hidden_layers=number(file, "block_count"),
        num_attention_heads=number(file, "attention.head_count"),
        layer_norm_eps=number(file, "attention.layer_norm_epsilon"),
        image_size=number(file, "image_size"),
        patch_size=number(file, "patch_size"),
        **further,
    )


def step_names(steps: tuple[Step, ...], norm: str, products: tuple[str, ...]) -> dict[str, str]:
    """Return the names in a file of the norm and of the products among the steps."""
    norms = [step.name for step in steps if isinstance(step, Scaling)]
    own = [step.name for step in steps if isinstance(step, Product)]
    return dict.fromkeys(norms, norm) | dict(zip(own, products, strict=True))
