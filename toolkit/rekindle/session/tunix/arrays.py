"""Arrays of a trainer's model by their names in Hugging Face checkpoints, in the layout of these."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Final

import jax
import numpy as np
from tunix.generate.mappings import MappingConfig

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes

LORA: Final = re.compile(r"_lora_[ab]$")
"""The end of the name of a LoRA matrix in tunix's models."""
_OF_VLLM: Final = {"model.embed": "model.embed_tokens", "model.lm_head": "lm_head"}
"""Modules of vLLM's JAX models by other names than in checkpoints."""
_LEAF: Final = re.compile(r"\.(kernel|scale|embedding)$")


@dataclass(frozen=True, slots=True)
class TrainerArrays:
    """Translation of the parameters of a trainer's model, by tunix's own table for rollouts.

    Attributes:
        config: config of the session's model.
        mapping: tunix's table of names in vLLM's JAX models, with its transpositions and hooks.
    """

    config: ModelConfig
    mapping: MappingConfig

    def tensors(self, params: Any) -> dict[str, Any]:
        """Return all parameters except LoRA matrices by checkpoint name; matrices are (out, in).

        On CPUs, no array is copied: transposed matrices are views. On other devices, they are copies.

        Args:
            params: an `nnx.State` of the model, or a tree of arrays like it.

        Raises:
            UnsupportedModel: the table lacks a parameter, or the session's model has no tensor of its name or size.
        """
        expected = expected_shapes(self.config)
        names = dict(self._names(self.mapping.to_hf_mappings))
        tensors = {}
        for own, array in arrays_of(self._prepared(params)):
            if LORA.search(own):
                continue
            name = self._checkpoint_name(self._find(names, own), expected)
            tensors[name] = self._laid_out(own, name, array, expected[name])
        return tensors

    def adapter(self, params: Any) -> dict[str, Any]:
        """Return the LoRA matrices among the parameters by their names in PEFT's files: A is (rank, in), B (out, rank).

        Raises:
            UnsupportedModel: the table lacks a matrix, or the session's model has no projection of its name.
        """
        expected = expected_shapes(self.config)
        names = dict(self._names(self.mapping.lora_to_hf_mappings))
        tensors = {}
        for own, array in arrays_of(params):
            if not LORA.search(own):
                continue
            target = self._find(names, own)
            name = self._checkpoint_name(LORA.sub("", target), expected)
            numbers = _on_host_if_shared(array)
            first = target.endswith("a")
            matrix = numbers.reshape(-1, array.shape[-1]) if first else numbers.reshape(array.shape[0], -1)
            tensors[f"{name.removesuffix('.weight')}.lora_{'A' if first else 'B'}.weight"] = matrix.T
        return tensors

    def _prepared(self, params: Any) -> Any:
        return params if self.mapping.preprocess_src_state is None else self.mapping.preprocess_src_state(params)

    def _names(self, table: Mapping[str, Any] | None) -> Iterator[tuple[re.Pattern[str], str]]:
        for own, entry in (table or {}).items():
            target = entry if isinstance(entry, str) else entry[0]
            yield re.compile(re.escape(own).replace(r"\*", r"(\d+)") + "$"), target

    def _find(self, names: Mapping[re.Pattern[str], str], own: str) -> str:
        """Return the name in vLLM's model of a parameter."""
        for pattern, target in names.items():
            if match := pattern.match(own):
                return "".join(chain(*zip_longest(target.split("*"), match.groups(), fillvalue="")))
        raise UnsupportedModel(
            f"tunix's table of names for rollouts has no {own}: give RolloutConfig a rollout_mapping_config with it, "
            "as for vLLM's JAX models"
        )

    def _checkpoint_name(self, name: str, expected: Mapping[str, Any]) -> str:
        """Return the name in checkpoints of a tensor of vLLM's model."""
        if name in expected:
            return name
        module = _LEAF.sub("", name.removesuffix(".weight"))
        tensor = f"{_OF_VLLM.get(module, module)}.weight"
        if tensor not in expected:
            raise UnsupportedModel(
                f"the session's model has no tensor {tensor}: open the model that the trainer trains"
            )
        return tensor

    def _laid_out(self, own: str, name: str, array: jax.Array, shape: tuple[int, ...]) -> Any:
        """Return a parameter in the layout of checkpoints.

        Raises:
            UnsupportedModel: the sizes differ.
        """
        array = self._converted(own, array)
        if array.size != int(np.prod(shape)):
            raise UnsupportedModel(
                f"{own} is {array.shape} in the trainer, and {name} is {shape} in the session: open the model that the "
                "trainer trains"
            )
        if len(shape) != 2 or name == f"{self.config.names.embedding}.weight":
            return array if array.shape == shape else array.reshape(shape)
        outputs, inputs = shape
        return _on_host_if_shared(array).reshape(inputs, outputs).T

    def _converted(self, own: str, array: Any) -> Any:
        """Apply the transposition and the hook of tunix's table."""
        last = own.rpartition(".")[2]
        for key, axes in (self.mapping.to_hf_transpose_keys or {}).items():
            pattern = re.escape(key).replace(r"\*", ".*") + "$"
            if key == last or re.match(pattern, own):
                array = array.transpose(axes)
                break
        hook = (self.mapping.to_hf_hook_fns or {}).get(own)
        return array if hook is None else hook(array)


def arrays_of(params: Any) -> Iterator[tuple[str, jax.Array]]:
    """Yield the arrays of a tree with their paths, joined by dots as in tunix's tables."""
    for path, array in jax.tree_util.tree_flatten_with_path(params)[0]:
        yield ".".join(str(part.key) for part in path if isinstance(part, jax.tree_util.DictKey)), array


def _on_host_if_shared(array: Any) -> Any:
    """Return an array of a CPU as one of NumPy over the same memory; others as they are."""
    is_here = isinstance(array, jax.Array) and all(device.platform == "cpu" for device in array.devices())
    return np.asarray(array) if is_here and array.is_fully_addressable else array
