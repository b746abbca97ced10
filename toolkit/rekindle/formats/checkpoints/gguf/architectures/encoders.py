"""Settings of encoders, which read texts in both directions."""

from typing import Any

from rekindle.formats.checkpoints.gguf.architecture import FileMetadata


def bert(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a BERT, a RoBERTa or a DistilBERT; the rows of its positions begin with the first one."""
    return _encoder(metadata) | {"hidden_act": "gelu", "rope_parameters": None}


def jina_bert(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Jina BERT with gated layers."""
    own = {"hidden_act": "gelu", "position_embedding_type": "alibi", "feed_forward_type": "geglu"}
    return _encoder(metadata) | own | {"rope_parameters": None}


def nomic_bert(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a NomicBERT without experts."""
    return _encoder(metadata) | {"hidden_act": "silu"}


def modern_bert(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a ModernBERT. Every n-th layer, from the first on, is without a window."""
    keys = metadata.keys
    return _encoder(metadata, types=False) | {
        "rope_parameters": None,
        "global_rope_theta": keys.number("rope.freq_base", 160_000.0),
        "local_rope_theta": keys.number("rope.freq_base_swa", 10_000.0),
        "local_attention": keys.size("attention.sliding_window", 128),
        "global_attn_every_n_layers": keys.size("attention.sliding_window_pattern", 3),
        "hidden_activation": "gelu",
        "norm_bias": metadata.has("ffn_norm.bias"),
        "attention_bias": metadata.attention_bias,
        "mlp_bias": metadata.has("ffn_up.bias"),
    }


def _encoder(metadata: FileMetadata, *, types: bool = True) -> dict[str, Any]:
    """Return the settings of all encoders: their families read texts in both directions without a key."""
    rows = metadata.file.shapes.get("token_types.weight", (0,))[0]
    return {"is_causal": None, "head_dim": None} | ({"type_vocab_size": rows} if types else {})
