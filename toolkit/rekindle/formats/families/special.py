"""Special parts of architectures without support, by their names and by the keys of their configs."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

EMBEDS: Final = r"bidirectional|(^|[-_])embed(ding)?s?$|nv_?embed|embed(ding)?s?(v\d+)?model$"
"""Pattern in the names of architectures for embeddings of the layers of chat models."""
ENCODERS: Final = r"bert|electra|mpnet|^gte|^newmodel|maskedlm"
"""Pattern in the names of encoders."""
_STATE: Final = ", which keep a state"
_ATTENTION_TYPES: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_BY_KEY: Final[Mapping[str, str]] = {
    "linear_attn_config": f"has layers of linear attention{_STATE}",
    "attn_type_list": f"has layers of linear attention{_STATE}",
    "mamba_dt_rank": f"has Mamba-1 layers{_STATE}",
    "time_step_rank": f"has Mamba-1 layers{_STATE}",
    "recurrent": f"has recurrent layers{_STATE}",
    "index_topk": "has sparse attention with an indexer",
    "index_n_heads": "has sparse attention with an indexer",
    "cross_attention_layers": "has cross attention to images",
    "alibi": "has ALiBi positions",
    "is_encoder_decoder": "has an encoder beside its decoder",
}
"""Parts by a type of layers or a key of a config."""
_BY_NAME: Final = (
    (r"diffusion|llada|^dream|sdar|mdlm", "generates by diffusion instead of token by token"),
    (r"t5|bart|pegasus|marian|whisper|m2m|encoderdecoder|seq2seq", "has an encoder beside its decoder"),
    (EMBEDS, "reads its text in both directions"),
    (
        f"{ENCODERS}|tokenclassification|questionanswering",
        "is an encoder, for text in both directions, of another kind or with another head than those that open",
    ),
    (r"^clip|siglip|^vit|dinov", "is a model for images"),
    (r"rwkv", f"has recurrent layers in place of attention{_STATE}"),
    (r"^mamba(?!2)|falcon_?mamba|jamba", f"has Mamba-1 layers{_STATE}"),
    (r"zamba", "shares a layer of attention between several layers"),
    (r"recurrent_?gemma|griffin", f"has recurrent layers{_STATE}"),
    (r"kimi_?linear|bailing.*linear|minimax_?text", f"has layers of linear attention{_STATE}"),
    (r"deepseek_?v?(32|4)|deepseekv(32|4)|_dsa", "has sparse attention with an indexer"),
    (r"bloom|^mpt", "has ALiBi positions"),
    (r"mllama", "has cross attention to images"),
)
"""Parts by a pattern in the name of an architecture."""


def special_part(names: Iterable[str], configs: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return a clause about a part without support, for a sentence after "it"; empty for no known part.

    Args:
        names: names of the architecture, in any spelling.
        configs: its configs, outer and inner.
    """
    clauses = [_BY_KEY[key] for config in configs for key in _marks(config)]
    clauses += [clause for pattern, clause in _BY_NAME for name in names if name and re.search(pattern, name.lower())]
    return clauses[0] if clauses else ""


def _marks(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of `_BY_KEY` in a config, and its types of layers among them."""
    kinds = [str(kind) for key in ("layer_types", "layers_block_type") for kind in config.get(key) or ()]
    yield from (kind for kind in kinds if kind not in _ATTENTION_TYPES and kind in _BY_KEY)
    attention = config.get("attn_config")
    flat = {**(attention if isinstance(attention, Mapping) else {}), **config}
    yield from (key for key in _BY_KEY if flat.get(key) not in (None, False, 0, "", [], {}))
    if config.get("position_embedding_type") == "alibi":
        yield "alibi"
