"""Gemma 3 for text: normalised queries and keys, and a separate rope in windowed layers."""

from dataclasses import replace

from rekindle.core.models.config import HeadNorm, ModelConfig
from rekindle.formats.families.gemma import gemma_norm, read_gemma
from rekindle.formats.families.gemma2 import NAMES
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_heads, with_windows
from rekindle.formats.families.rope import ropes_of


def read(keys: Keys) -> ModelConfig:
    """Read a Gemma 3. The last of each `sliding_window_pattern` layers has full attention."""
    heads = read_heads(keys)
    rope, local = ropes_of(keys, heads.head_dim, 1_000_000.0, "rope_local_base_freq", 10_000.0)
    pattern = keys.get("sliding_window_pattern", keys.get("_sliding_window_pattern", 6))
    keys.get("attn_logit_softcapping")  # unused by the model
    scale = keys.number("query_pre_attn_scalar", 256) ** -0.5
    heads = replace(heads, rope=rope, scale=scale, head_norm=HeadNorm(gemma_norm(keys)), ahead=None)
    model = read_gemma(keys, heads)
    return replace(
        model,
        layers=with_windows(keys, model.layers, lambda i: (i + 1) % pattern > 0, rope=local),
        logit_cap=keys.number_or_none("final_logit_softcapping"),
        names=NAMES,
    )
