"""Conversion of a GGUF file's metadata to the settings of a `config.json`, as input for the model families."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.gguf.file import GGUFFile
from rekindle.formats.families.keys import Keys

_NUMBERS: Final = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
}
"""Metadata keys of every architecture, by the equivalent key of `config.json`."""
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_weights_norm": (),
    "expert_weights_scale": (0.0, 1.0),
    "final_logit_softcapping": (0.0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "nextn_predict_layers": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.dimension_sections": ([0, 0, 0, 0],),
    "rope.scaling.alpha": (0.0,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.finetuned": (True, False),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
"""Metadata keys of some architectures, each with its neutral values for architectures without support."""
_WITHOUT_EFFECT: Final = frozenset(
    {
        "attention.layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window_pattern",
        "expert_feed_forward_length",
        "expert_group_used_count",
        "expert_used_count",
        "classifier.output_labels",
        "pooling_type",
        "rope.scaling.original_context_length",
        "use_parallel_residual",
        "vocab_size",
    }
)
"""Keys without an effect: they repeat information from the tensors, or depend on another key."""


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """A file's metadata about its model.

    Attributes:
        keys: the metadata below the architecture's name.
        file: the file with the tensors.
    """

    keys: Keys
    file: GGUFFile

    def has(self, part: str) -> bool:
        """Return True if the first block has a tensor with this name."""
        return f"blk.0.{part}" in self.file.shapes

    @property
    def attention_bias(self) -> bool:
        """True if the query projection, possibly fused with keys and values, has a bias in the first block."""
        return self.has("attn_q.bias") or self.has("attn_qkv.bias")

    @property
    def latent(self) -> bool:
        """True if keys and values are computed from latents."""
        return self.keys.has("attention.kv_lora_rank")

    @property
    def num_layers(self) -> int:
        """Number of layers without those of multi-token prediction, which are blocks after the others."""
        return self.keys.size("block_count") - int(self.keys.get("nextn_predict_layers", 0))

    @property
    def head_dim(self) -> int:
        """Size of a head's queries."""
        keys = self.keys
        return keys.size("attention.key_length", keys.size("embedding_length") // keys.size("attention.head_count"))


@dataclass(frozen=True, slots=True)
class Architecture:
    """A llama.cpp architecture, and the differences of its files from the corresponding model family.

    Attributes:
        name: the architecture's name in files, also the prefix of its metadata keys.
        family: the "model_type" of the family.
        special: function for additional `config.json` settings, besides the common numbers and rope.
        eps: the `config.json` key of the norm epsilon.
        permuted: whether query and key rows are stored for a rope over neighbouring pairs, although the family's rope
            pairs the two halves.
        shifted: whether stored norm weights include the offset of 1 that the family adds.
        parts: names of a block's tensors in files, such as "ffn_up", by the family's names unknown to the gguf
            library. Several tensors are concatenated along their outputs. A name with a dot is complete.
        truncated: whether the YaRN ramp is rounded to whole pairs. Files do not specify it.
        tiled: whether the first value heads of all key heads come first in delta nets, then the second ones.
        interleaved_sections: whether the sections of a rope by time, row and column take its pairs in turn.
        by_layer: metadata keys with a possibly different number for each layer; they are always lists.
        prefix: the start of the family's names that the gguf library leaves out.
    """

    name: str
    family: str
    special: Callable[[FileMetadata], Mapping[str, Any]] = lambda _: {}
    eps: str = "rms_norm_eps"
    permuted: bool = False
    shifted: bool = False
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    truncated: bool = True
    tiled: bool = False
    interleaved_sections: bool = False
    by_layer: frozenset[str] = frozenset()
    prefix: str = ""


def read_metadata(file: GGUFFile, architecture: Architecture, source: str) -> FileMetadata:
    """Read a file's metadata for its architecture.

    Raises:
        UnsupportedModel: a number differs between layers, although the architecture has a common one.
    """
    prefix = f"{architecture.name}."
    values = {key.removeprefix(prefix): plain(value) for key, value in file.metadata.items() if key.startswith(prefix)}
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_feed_forward_length"):
        value = values.get(key)
        if key in architecture.by_layer and value is not None:
            values[key] = value if isinstance(value, list) else [value] * values.get("block_count", 0)
        elif isinstance(value, list):  # a list with a number for each layer
            if len(set(value)) != 1:
                raise UnsupportedModel(f"{source}: {prefix}{key} differs between layers, which is not supported")
            values[key] = value[0]
    return FileMetadata(Keys(values, f"{source}: {architecture.name}"), file)


def settings_of(
    metadata: FileMetadata, architecture: Architecture, rope: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """Return the settings of an equivalent `config.json`.

    Args:
        metadata: the file's metadata.
        architecture: the architecture of the file.
        rope: the "rope_parameters" setting.
        source: path of the file, for error messages.

    Raises:
        UnsupportedModel: the file requires an unsupported feature.
        CheckpointError: a number is missing or wrong.
    """
    keys, shapes = metadata.keys, metadata.file.shapes
    if "token_embd.weight" not in shapes:
        raise CheckpointError(f"{source}: missing token_embd.weight. Fetch the file again")
    rms = architecture.eps == "rms_norm_eps"
    numbers = {key: keys.get(gguf_key) for key, gguf_key in _NUMBERS.items()}
    settings = {key: value for key, value in numbers.items() if value is not None} | {
        "model_type": architecture.family,
        "vocab_size": shapes["token_embd.weight"][0],
        "tie_word_embeddings": "output.weight" not in shapes,
        "rope_parameters": dict(rope),
        architecture.eps: keys.number(f"attention.layer_norm_{'rms_' if rms else ''}epsilon"),
    }
    if keys.get("attention.causal") is False:
        settings["is_causal"] = False
    settings |= architecture.special(metadata)
    _check_unread(metadata)
    return settings


def _check_unread(metadata: FileMetadata) -> None:
    """Reject unread keys with an effect on the results, and warn about unknown keys."""
    keys = metadata.keys
    neutral = {
        **_NEUTRAL,
        "attention.value_length": (metadata.head_dim,),
        "rope.freq_base_swa": (keys.get("rope.freq_base", 10_000.0),),
    }
    unread = [key for key in keys.unread() if key not in _WITHOUT_EFFECT]
    for key in unread:
        if key in neutral:
            keys.refuse(key, *neutral[key])
    if unknown := ", ".join(key for key in unread if key not in neutral):
        warn(f"{keys.source} has unknown keys that may change the results of the model: {unknown}")


def plain(value: Any) -> Any:
    """Return a metadata value. A float32 becomes its shortest decimal fraction, as its author wrote it."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if single == value else value
