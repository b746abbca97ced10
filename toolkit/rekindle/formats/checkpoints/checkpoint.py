"""Opened models, independent of the storage format."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import CheckpointError, ConfigError
from rekindle.core.models.config import ExpertsConfig, ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.core.models.vision.config import VisionConfig
from rekindle.core.models.weights.requests import Shapes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.uses import Uses
from rekindle.formats.weight_file import Stamp
from rekindle_kernels.blocks import Tensor

if TYPE_CHECKING:
    from rekindle.formats.images.processors.processor import ImageProcessor


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by Hugging Face name. A tensor is read on each lookup and not cached.

    Lookups are thread-safe.
    """

    def __init__(self, loaders: Mapping[str, Callable[[], Tensor]]) -> None:
        self._loaders = loaders

    def __getitem__(self, name: str) -> Tensor:
        return self._loaders[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._loaders

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)


@dataclass(frozen=True)
class TowerFiles:
    """The vision tower of an opened model, with the weights still on disk.

    Attributes:
        config: the structure of the tower.
        tensors: exactly the tensors of `tower_shapes(config)`, in the dtypes and forms of a `Checkpoint`.
    """

    config: VisionConfig
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """One opened model: everything needed to build it, with the weights still on disk.

    Attributes:
        source: path of the model, for error messages.
        config: the structure of the model.
        tensors: exactly the tensors of `expected_shapes(config)`; projections are (out, in). Floats have the file's
            dtype (float32, float16, ml_dtypes.bfloat16), as read-only views of the file. Quantized tensors are blocks;
            numpy.asarray converts them to float32, or to bfloat16 for MXFP4.
        eos_ids: the tokens that end an answer; empty if the model declares none.
        tokenizer: the tokenizer, or None for a model served by token ids alone.
        generation_config: the content of generation_config.json; empty if there is no file.
        files: the weight files.
        uses: the uses of the model, such as embeddings.
        formats: the quantized formats of the tensors in the files, the most frequent first; empty for plain numbers.
        family: the family's name in the files, such as "llama"; empty if they name none.
        chat_defaults: the sampling options recommended for chats by the model's card; empty if none are known.
        stamps: the stamps of the weight files when they were opened.
        configs: the digest of the files beside them that decide how they are read; empty if there are none.
        images: the rules for images; None for a text model.
        vision: the vision tower; None for a text model, or for a tower without support.
        draft_head: the structure and the tensors of the model with its draft head; None without one.
    """

    source: str
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    eos_ids: frozenset[int]
    tokenizer: Tokenizer | None
    generation_config: Mapping[str, Any]
    files: tuple[Path, ...]
    uses: Uses = field(default_factory=Uses)
    formats: tuple[str, ...] = ()
    family: str = ""
    chat_defaults: Mapping[str, Any] = field(default_factory=dict)
    stamps: Mapping[Path, Stamp] = field(default_factory=dict)
    configs: str = ""
    images: "ImageProcessor | None" = None
    vision: TowerFiles | None = None
    draft_head: tuple[ModelConfig, Mapping[str, Tensor]] | None = None

    @property
    def is_gguf(self) -> bool:
        """True for GGUF files, by their names."""
        return any(path.suffix.lower() == ".gguf" for path in self.files)

    def with_draft_head(self) -> "Checkpoint":
        """Return the same model with its draft head, if it has one."""
        if self.draft_head is None:
            return self
        config, tensors = self.draft_head
        return replace(self, config=config, tensors=tensors)

    def with_chat_template(self, chat_template: str) -> "Checkpoint":
        """Return the same model with another chat template.

        Raises:
            ConfigError: the model has no tokenizer.
        """
        if self.tokenizer is None:
            raise ConfigError(f"{self.source} has no tokenizer, so a chat_template does nothing: omit it")
        return replace(self, tokenizer=self.tokenizer.with_chat_template(chat_template))


def check_layers(layers: int, shapes: Shapes, source: str) -> None:
    """Require a tensor for each layer, before the layers are built.

    Raises:
        CheckpointError: a file has fewer tensors.
    """
    if layers > len(shapes):
        raise CheckpointError(
            f"{source} has {layers:,} layers by its config, and the file has only {len(shapes):,} tensors. Fetch the "
            "model again"
        )


def check_counts(shapes: Shapes, config: ModelConfig | VisionConfig, source: str) -> None:
    """Compare the counts and sizes of a config with a file, before a name and a shape are made for each.

    Raises:
        CheckpointError: the config has more layers or experts, or larger matrices, than the file could have.
    """
    layers = config.encoder.layers if isinstance(config, VisionConfig) else config.layers
    check_layers(len(layers), shapes, source)
    numbers = max(map(math.prod, shapes.values()), default=0)
    stacked = {shape[0] for shape in shapes.values() if len(shape) > 2}
    counts = [each.count for layer in layers for each in _parts(layer) if isinstance(each, ExpertsConfig)]
    sizes = dict(_sizes(replace(config, layers=tuple(set(layers))) if isinstance(config, ModelConfig) else config))
    if (experts := sum(count for count in counts if count not in stacked)) > len(shapes):
        sizes[f"number of experts in {len(counts)} layers"] = max(experts, numbers + 1)
    for name, size in sizes.items():
        if size > numbers:
            raise CheckpointError(
                f"{source}: its {name} is {size:,} by its config, more than the file could have with {len(shapes):,} "
                f"tensors of up to {numbers:,} numbers. Fetch the model again"
            )


_NO_SIZES: Final = frozenset({"max_context", "original_context", "window", "ahead", "chunk", "offset", "of_images"})
"""Numbers of a config that no tensor has to be as large as."""


def _sizes(config: Any) -> Iterator[tuple[str, int]]:
    """Yield the sizes in a config by name, the largest of each name last."""
    largest = dict[str, int]()
    for part in _parts(config):
        own = {each.name: getattr(part, each.name) for each in fields(part)}
        sizes = {name: value for name, value in own.items() if type(value) is int and name not in _NO_SIZES}
        of_heads = [sizes[name] for name in ("head_dim", "head_size") if name in sizes]
        if "heads" in sizes and of_heads:
            sizes["size of all heads"] = sizes["heads"] * of_heads[0]
        for name, value in sizes.items():
            largest[name] = max(value, largest.get(name, 0))
    yield from largest.items()


def _parts(config: Any) -> Iterator[Any]:
    """Yield a config and all configs in it."""
    if isinstance(config, tuple | list):
        for each in config:
            yield from _parts(each)
    elif is_dataclass(config) and not isinstance(config, type):
        yield config
        for each in fields(config):
            yield from _parts(getattr(config, each.name))


def check_shapes(shapes: Shapes, config: ModelConfig, source: str, remedy: str = "Fetch the model again") -> None:
    """Compare the tensor shapes of a file with the shapes expected by its config. Extra tensors are ignored.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in shapes]
    if missing:
        if any(mark in name for name in shapes for mark in _ADAPTER_MARKS):
            raise CheckpointError(
                f"{source}: its weights have adapters (LoRA) not merged into the model. Merge them with PEFT's "
                "merge_and_unload(), and save the result with save_pretrained"
            )
        names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        hint = ""
        if missing == [f"{config.names.head}.weight"]:
            hint = "; its config says tie_word_embeddings is false"
            remedy = f"{remedy}, or set it to true if the model uses its embedding as its head"
        if len(missing) >= len(expected) - 1 and (similar := _similar(missing, shapes)):
            hint = f"; the file has {similar} instead, whose prefix is not known"
            remedy = "Rename its tensors, or save the text model alone with save_pretrained"
        raise CheckpointError(f"{source}: missing {names}{hint}. {remedy}")
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise CheckpointError(f"{source}: {name} must have the shape {shape} by its config, got {shapes[name]}")


def _similar(missing: Sequence[str], names: Iterable[str]) -> str:
    """Return the first missing name with another prefix; empty if there is no such name."""
    names = list(names)
    rest = missing[0].partition(".")[2]
    endings = [f".{missing[0]}", *([f".{rest}"] if "." in rest else ())]
    return next((name for ending in endings for name in names if name.endswith(ending)), "")


_ADAPTER_MARKS: Final = (".lora_A.", ".lora_B.", ".lora_magnitude_vector", ".base_layer.")
"""Parts of the names of PEFT's adapters beside the model."""
