"""The names and shapes of a model's tensors, in the one place that knows them."""

from collections.abc import Mapping

from rekindle.errors import CheckpointError
from rekindle.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this config has, by its Hugging Face name; projections are (out, in)."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        for name, shape in _layer_shapes(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        shapes[OUTPUT] = (config.vocab_size, hidden)
    return shapes


def check_layout(
    found: Mapping[str, tuple[int, ...]], config: ModelConfig, source: str, remedy: str = "Fetch the model again"
) -> None:
    """Compare the shapes in a file's header with those that its config asks for. More tensors than those are fine.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in found]
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        hint = "; its config says tie_word_embeddings is false" if missing == [OUTPUT] else ""
        raise CheckpointError(f"{source}: missing {shown}{hint}. {remedy}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise CheckpointError(f"{source}: {name} must have the shape {shape} by its config, got {found[name]}")


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        shapes |= {
            "self_attn.q_proj.bias": (query,),
            "self_attn.k_proj.bias": (key,),
            "self_attn.v_proj.bias": (key,),
        }
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes
