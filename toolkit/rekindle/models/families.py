"""The supported families, each as data, and how a Hugging Face config is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.errors import CheckpointError, UnsupportedModel
from rekindle.models.config import Llama3Scaling, ModelConfig, Rope


@dataclass(frozen=True, slots=True)
class Family:
    """The differences between one family and the others.

    Attributes:
        architecture: its name in "architectures" of `config.json`.
        qkv_bias: whether the query, key and value projections add a bias; None reads "attention_bias".
        qk_norm: whether queries and keys are normalised per head.
    """

    architecture: str
    qkv_bias: bool | None = None
    qk_norm: bool = False


FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM"),
    "qwen2": Family("Qwen2ForCausalLM", qkv_bias=True),
    "qwen3": Family("Qwen3ForCausalLM", qk_norm=True),
}


UNSERVED: Mapping[str, tuple[Any, ...]] = {
    "attention_multiplier": (None,),
    "attention_out_bias": (None, False),
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "embedding_multiplier": (None, 1),
    "final_logit_softcapping": (None,),
    "hidden_activation": (None, "silu"),
    "kv_lora_rank": (None,),
    "layer_norm_eps": (None,),
    "logit_scale": (None, 1),
    "logits_scaling": (None, 1),
    "n_routed_experts": (None, 0),
    "norm_eps": (None,),
    "norm_epsilon": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "qk_layernorm": (None, False),
    "query_pre_attn_scalar": (None,),
    "residual_multiplier": (None, 1),
    "rope_interleave": (None, False),
    "rope_local_base_freq": (None,),
    "use_bias": (None, False),
    "use_bidirectional_attention": (None, False),
    "use_parallel_residual": (None, False),
    "use_qk_norm": (None, False),
    "use_qkv_bias": (None, False),
}
"""Keys of configs that change what a model computes and that no family here has, each with the values that do not."""


def parse_config(config: Mapping[str, Any], source: str, another: Family | None = None) -> ModelConfig:
    """Read a Hugging Face `config.json`, with the older or the newer names of its rope parameters.

    Args:
        config: the decoded JSON object.
        source: where it came from, for error messages.
        another: the family to read it as, instead of the supported ones.

    Raises:
        UnsupportedModel: the architecture, activation, rope type or attention is not implemented, or the architecture
            differs from that of `another`.
        CheckpointError: a required number is missing or is not a positive number.
    """
    name, family = _family(config, source, another)
    _reject_unsupported(config, family, source)
    hidden, heads = _positive(config, "hidden_size", source), _positive(config, "num_attention_heads", source)
    kv_heads = _positive(config, "num_key_value_heads", source) if config.get("num_key_value_heads") else heads
    if heads % kv_heads:
        raise CheckpointError(f"{source}: {heads} attention heads cannot share {kv_heads} key-value heads evenly")
    return ModelConfig(
        family=name,
        vocab_size=_positive(config, "vocab_size", source),
        hidden_size=hidden,
        intermediate_size=_positive(config, "intermediate_size", source),
        num_layers=_positive(config, "num_hidden_layers", source),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_positive(config, "head_dim", source) if config.get("head_dim") else hidden // heads,
        max_context=_positive(config, "max_position_embeddings", source),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config, source),
        qkv_bias=bool(config.get("attention_bias", False)) if family.qkv_bias is None else family.qkv_bias,
        qk_norm=family.qk_norm,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _family(config: Mapping[str, Any], source: str, another: Family | None) -> tuple[str, Family]:
    architectures = config.get("architectures") or []
    came = ", ".join(map(str, architectures)) or "none named"
    if another is not None:
        if another.architecture in architectures:
            return another.architecture, another
        raise UnsupportedModel(
            f"{source}: the architecture is {came}, but the given family is for {another.architecture}; give a family "
            "for this architecture, or none if it is supported"
        )
    for name, family in FAMILIES.items():
        if family.architecture in architectures or (not architectures and config.get("model_type") == name):
            return name, family
    supported = ", ".join(family.architecture for family in FAMILIES.values())
    raise UnsupportedModel(
        f"{source}: the architecture ({came}) is not supported. Supported are: {supported}. Another one that "
        "differs from these only in what a Family can say can be opened with open(..., family=Family(...))"
    )


def _reject_unsupported(config: Mapping[str, Any], family: Family, source: str) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f'{source}: hidden_act {activation!r} is not supported, only "silu"')
    if config.get("mlp_bias"):
        raise UnsupportedModel(f"{source}: mlp_bias is not supported")
    if family.qkv_bias is None and config.get("attention_bias"):
        # Llama and Qwen3 then add a bias to the output projection too, which the decoder cannot do.
        raise UnsupportedModel(f"{source}: attention_bias is not supported")
    if config.get("quantization_config"):
        raise UnsupportedModel(
            f"{source}: quantized safetensors are not supported; open the unquantized model or a GGUF file"
        )
    window = config.get("use_sliding_window", config.get("sliding_window") is not None)
    if window or set(config.get("layer_types") or ()) - {"full_attention"}:
        raise UnsupportedModel(f"{source}: sliding-window attention is not supported, only full attention")
    if not all(config.get("no_rope_layers") or ()):
        raise UnsupportedModel(f"{source}: no_rope_layers is not supported; every layer has rotary positions")
    for key, neutral in UNSERVED.items():
        if key in config and config[key] not in neutral:
            raise UnsupportedModel(
                f"{source}: {key} {config[key]!r:.80} is not supported; the decoder has no such part"
            )


def _rope(config: Mapping[str, Any], source: str) -> Rope:
    """Read the rope numbers: newer configs have all of them in "rope_parameters", older ones have theta apart."""
    parameters = config.get("rope_parameters") or {**(config.get("rope_scaling") or {})}
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    if parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) not in (1, None):
        raise UnsupportedModel(f"{source}: partial_rotary_factor is not supported, only rope over the whole head")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return Rope(theta)
    if kind != "llama3":
        raise UnsupportedModel(f'{source}: rope type {kind!r} is not supported, only "default" and "llama3"')
    try:
        return Rope(
            theta,
            Llama3Scaling(
                factor=float(parameters["factor"]),
                low_freq_factor=float(parameters["low_freq_factor"]),
                high_freq_factor=float(parameters["high_freq_factor"]),
                original_context=int(parameters["original_max_position_embeddings"]),
            ),
        )
    except KeyError as missing:
        raise CheckpointError(f"{source}: rope type llama3 needs {missing}, which is missing") from None


def _positive(config: Mapping[str, Any], key: str, source: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise CheckpointError(f"{source}: {key} must be a positive integer, got {value!r}")
    return value
