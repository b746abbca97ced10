"""A file's metadata, turned into what a `config.json` says, which the families read."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rekindle.core.checkpoints.gguf.file import GGUFFile
from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.families.keys import Keys

_NUMBERS: Final = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
}
"""Keys of every architecture, by the key of `config.json` that says the same."""
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "attention.causal": (True,),
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
"""Keys that some architectures have, each with the values that change nothing where it is not read."""
_WITHOUT_EFFECT: Final = frozenset(
    {
        "attention.layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window_pattern",
        "expert_feed_forward_length",
        "expert_group_used_count",
        "expert_used_count",
        "pooling_type",
        "rope.scaling.original_context_length",
        "use_parallel_residual",
        "vocab_size",
    }
)
"""Keys that say what the tensors say too, or that count only where another one does."""


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """The words of a file about its model.

    Attributes:
        keys: its metadata below the architecture's name.
        file: its tensors.
    """

    keys: Keys
    file: GGUFFile

    def has(self, part: str) -> bool:
        """Tell whether the first block has a tensor."""
        return f"blk.0.{part}" in self.file.shapes

    @property
    def attention_bias(self) -> bool:
        """Tell whether queries, which may be joined with keys and values, have a bias in the first block."""
        return self.has("attn_q.bias") or self.has("attn_qkv.bias")

    @property
    def latent(self) -> bool:
        """Tell whether keys and values are made of latents."""
        return self.keys.has("attention.kv_lora_rank")

    @property
    def head_dim(self) -> int:
        """The numbers of a head's queries."""
        keys = self.keys
        return keys.size("attention.key_length", keys.size("embedding_length") // keys.size("attention.head_count"))


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of llama.cpp's architectures, and what tells its files from those of a family of ours.

    Attributes:
        name: in files, of the architecture and before the keys of its metadata.
        family: the "model_type" of the family.
        special: returns what `config.json` says besides the numbers and the rope, which all have.
        eps: the key of `config.json` for what norms add.
        permuted: whether rows of queries and keys are stored in the order of a rope that turns neighbours, though the
            family's rope turns halves.
        shifted: whether the weights of norms are stored with the 1 that the family adds.
        parts: names in a block, such as "ffn_up", for the names in a layer that the gguf library does not know; tensors
            of several parts are joined along their outputs.
        truncated: whether the ramp of YaRN, of which files say nothing, begins and ends at whole pairs.
    """

    name: str
    family: str
    special: Callable[[FileMetadata], Mapping[str, Any]] = lambda _: {}
    eps: str = "rms_norm_eps"
    permuted: bool = False
    shifted: bool = False
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    truncated: bool = True


def said_by(file: GGUFFile, architecture: str, source: str) -> FileMetadata:
    """Return what a file says of its architecture.

    Raises:
        UnsupportedModel: layers have different numbers of something.
    """
    prefix = f"{architecture}."
    values = {key.removeprefix(prefix): _plain(value) for key, value in file.metadata.items() if key.startswith(prefix)}
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_feed_forward_length"):
        value = values.get(key)
        if isinstance(value, list):  # one number for each layer
            if len(set(value)) != 1:
                raise UnsupportedModel(f"{source}: {prefix}{key} differs between layers, which is not supported")
            values[key] = value[0]
    return FileMetadata(Keys(values, f"{source}: {architecture}"), file)


def settings_of(said: FileMetadata, architecture: Architecture, rope: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return what the model's `config.json` would say.

    Args:
        rope: its "rope_parameters".

    Raises:
        UnsupportedModel: the file asks for something that is not implemented.
        CheckpointError: a number is missing or wrong.
    """
    keys, shapes = said.keys, said.file.shapes
    if "token_embd.weight" not in shapes:
        raise CheckpointError(f"{source}: missing token_embd.weight. Fetch the file again")
    rms = architecture.eps == "rms_norm_eps"
    numbers = {key: keys.get(own) for key, own in _NUMBERS.items()}
    settings = {key: value for key, value in numbers.items() if value is not None} | {
        "model_type": architecture.family,
        "vocab_size": shapes["token_embd.weight"][0],
        "tie_word_embeddings": "output.weight" not in shapes,
        "rope_parameters": dict(rope),
        architecture.eps: keys.number(f"attention.layer_norm_{'rms_' if rms else ''}epsilon"),
    }
    settings |= architecture.special(said)
    _refuse_others(said)
    return settings


def _refuse_others(said: FileMetadata) -> None:
    """Refuse what was not read and would change what the model computes; warn of keys that are not known."""
    keys = said.keys
    neutral = {
        **_NEUTRAL,
        "attention.value_length": (said.head_dim,),
        "rope.freq_base_swa": (keys.get("rope.freq_base", 10_000.0),),
    }
    unread = [key for key in keys.unread() if key not in _WITHOUT_EFFECT]
    for key in unread:
        if key in neutral:
            keys.refuse(key, *neutral[key])
    if unknown := ", ".join(key for key in unread if key not in neutral):
        warn(f"{keys.source} has keys that are not known, and may change what the model computes: {unknown}")


def _plain(value: Any) -> Any:
    """Return a value; for a float32 number the shortest decimal fraction, which is what its author wrote."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if single == value else value
