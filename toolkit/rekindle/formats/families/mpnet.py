"""MPNet: a BERT without types of tokens, with summands of scores by distance besides its positions."""

from dataclasses import replace
from typing import Final

from rekindle.core.models.config import DistanceBias, ModelConfig
from rekindle.formats.families.bert import names_of, read_encoder, with_skipped
from rekindle.formats.families.keys import Keys

NAMES = replace(
    names_of("mpnet"),
    distances="mpnet.encoder.relative_attention_bias",
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    out="attention.attn.o",
    after_attention="attention.LayerNorm",
)
SKIPPED: Final = 1
"""The token that counts as no position, whatever the padding token is."""


def read(keys: Keys) -> ModelConfig:
    """Read an MPNet."""
    model = with_skipped(read_encoder(keys, NAMES), SKIPPED)
    return replace(model, token_types=0, distances=DistanceBias(keys.size("relative_attention_num_buckets", 32)))
