"""An opened model, whatever format it was stored in."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rekindle.core.checkpoints.uses import Uses
from rekindle.core.errors import CheckpointError, ConfigError
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.core.models.layers import Shapes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle_kernels.blocks import Tensor


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by their Hugging Face names, each read when it is looked up and not kept.

    Several threads may look up tensors at once.
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
class Checkpoint:
    """One opened model: all that is needed to build it, with the weights still on disk.

    Attributes:
        source: where it was opened, for error messages.
        tensors: exactly those of `expected_shapes(config)`; projections are (out, in). Stored floats come in the
            file's dtype (float32, float16, ml_dtypes.bfloat16), as read-only views of the file; quantized numbers come
            in blocks, which numpy.asarray reads as float32, and those of MXFP4 as bfloat16.
        eos_ids: the tokens that end an answer; empty when the model names none.
        tokenizer: None when the model came without one and is served by token ids alone.
        generation_config: the unchanged content of its generation_config.json; empty when there is none.
        files: the files that hold the weights.
        uses: what it can be used for, and how.
    """

    source: str
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    eos_ids: frozenset[int]
    tokenizer: Tokenizer | None
    generation_config: Mapping[str, Any]
    files: tuple[Path, ...]
    uses: Uses = field(default_factory=Uses)

    def with_chat_template(self, chat_template: str) -> "Checkpoint":
        """Return the same model with another chat template.

        Raises:
            ConfigError: it has no tokenizer, and so no text.
        """
        if self.tokenizer is None:
            raise ConfigError(f"{self.source} has no tokenizer, so a chat_template does nothing: leave it out")
        return replace(self, tokenizer=self.tokenizer.with_chat_template(chat_template))


def check_shapes(found: Shapes, config: ModelConfig, source: str, remedy: str = "Fetch the model again") -> None:
    """Compare the shapes in a file's header with those that its config asks for. Further tensors are ignored.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in found]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        hint = "; its config says tie_word_embeddings is false" if missing == ["lm_head.weight"] else ""
        if wrapped := next((name for name in found if name.endswith(f".{missing[0]}")), None):
            prefix = wrapped.removesuffix(missing[0]).removeprefix("model.")
            hint = f"; all names begin with {prefix!r}, as that of a model inside of another does"
            remedy = "Save the model inside: of torch.compile its _orig_mod, of PEFT what merge_and_unload() returns"
        raise CheckpointError(f"{source}: missing {shown}{hint}. {remedy}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise CheckpointError(f"{source}: {name} must have the shape {shape} by its config, got {found[name]}")
