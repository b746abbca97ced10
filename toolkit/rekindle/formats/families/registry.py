"""Registry of the supported model families, and the reader of `config.json`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import CheckpointError, RekindleError, UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.afmoe import AFMOE
from rekindle.formats.families.apertus import APERTUS
from rekindle.formats.families.arcee import ARCEE
from rekindle.formats.families.bamba import BAMBA
from rekindle.formats.families.cohere import COHERE
from rekindle.formats.families.cohere2 import COHERE2
from rekindle.formats.families.cohere2_moe import COHERE2_MOE
from rekindle.formats.families.deepseek_v2 import DEEPSEEK_V2
from rekindle.formats.families.deepseek_v3 import DEEPSEEK_V3, GLM4_MOE_LITE
from rekindle.formats.families.directions import in_its_directions, with_whole_prompts
from rekindle.formats.families.dots1 import DOTS1, SOLAR_OPEN
from rekindle.formats.families.ernie4_5 import ERNIE4_5
from rekindle.formats.families.ernie4_5_moe import ERNIE4_5_MOE
from rekindle.formats.families.exaone4 import EXAONE4
from rekindle.formats.families.exaone_moe import EXAONE_MOE
from rekindle.formats.families.falcon_h1 import FALCON_H1
from rekindle.formats.families.flex_olmo import FLEX_OLMO
from rekindle.formats.families.gemma import GEMMA
from rekindle.formats.families.gemma2 import GEMMA2
from rekindle.formats.families.gemma3 import GEMMA3
from rekindle.formats.families.gemma3n import GEMMA3N
from rekindle.formats.families.gemma4 import GEMMA4
from rekindle.formats.families.glm import GLM
from rekindle.formats.families.glm4 import GLM4
from rekindle.formats.families.glm4_moe import GLM4_MOE
from rekindle.formats.families.gpt2 import GPT2
from rekindle.formats.families.gpt_neox import GPT_NEOX
from rekindle.formats.families.gpt_oss import GPT_OSS
from rekindle.formats.families.gptj import GPTJ
from rekindle.formats.families.granite import GRANITE
from rekindle.formats.families.granitemoe import GRANITEMOE, GRANITEMOE_SHARED
from rekindle.formats.families.granitemoehybrid import GRANITEMOE_HYBRID
from rekindle.formats.families.helium import HELIUM
from rekindle.formats.families.hunyuan import HUNYUAN
from rekindle.formats.families.hunyuan_moe import HUNYUAN_MOE
from rekindle.formats.families.keys import WITHOUT_EFFECT, Keys
from rekindle.formats.families.lfm2 import LFM2, LFM2_MOE
from rekindle.formats.families.llama import LLAMA
from rekindle.formats.families.llama4 import LLAMA4
from rekindle.formats.families.minimax_m2 import MINIMAX_M2
from rekindle.formats.families.ministral3 import MINISTRAL3
from rekindle.formats.families.mistral import MISTRAL
from rekindle.formats.families.mistral4 import MISTRAL4
from rekindle.formats.families.mixtral import MIXTRAL
from rekindle.formats.families.nemotron import NEMOTRON
from rekindle.formats.families.nemotron_h import NEMOTRON_H
from rekindle.formats.families.olmo import OLMO
from rekindle.formats.families.olmo2 import OLMO2
from rekindle.formats.families.olmo3 import OLMO3
from rekindle.formats.families.olmoe import OLMOE
from rekindle.formats.families.opt import OPT
from rekindle.formats.families.phi import PHI
from rekindle.formats.families.phi3 import PHI3
from rekindle.formats.families.phimoe import PHIMOE
from rekindle.formats.families.quantization import KEYS as QUANTIZATION_KEYS
from rekindle.formats.families.quantization import check_method
from rekindle.formats.families.qwen2 import QWEN2
from rekindle.formats.families.qwen2_moe import QWEN2_MOE
from rekindle.formats.families.qwen3 import QWEN3
from rekindle.formats.families.qwen3_moe import QWEN3_MOE
from rekindle.formats.families.qwen3_next import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from rekindle.formats.families.qwen3_vl_moe import QWEN3_VL_MOE
from rekindle.formats.families.reading import Family
from rekindle.formats.families.refusals import architecture_refusal
from rekindle.formats.families.seed_oss import SEED_OSS
from rekindle.formats.families.smollm3 import SMOLLM3
from rekindle.formats.families.stablelm import STABLELM
from rekindle.formats.families.starcoder2 import STARCODER2
from rekindle.formats.families.wrapped import PREFIX_ATTENTION, TextConfig, text_config_of

FAMILIES: Final[Mapping[str, Family]] = {
    family.model_type: family
    for family in (
        AFMOE,
        APERTUS,
        ARCEE,
        BAMBA,
        COHERE,
        COHERE2,
        COHERE2_MOE,
        DEEPSEEK_V2,
        DEEPSEEK_V3,
        DOTS1,
        ERNIE4_5,
        ERNIE4_5_MOE,
        EXAONE4,
        EXAONE_MOE,
        FALCON_H1,
        FLEX_OLMO,
        GEMMA,
        GEMMA2,
        GEMMA3,
        GEMMA3N,
        GEMMA4,
        GLM,
        GLM4,
        GLM4_MOE,
        GLM4_MOE_LITE,
        GPT2,
        GPTJ,
        GPT_NEOX,
        GPT_OSS,
        GRANITE,
        GRANITEMOE,
        GRANITEMOE_HYBRID,
        GRANITEMOE_SHARED,
        HELIUM,
        HUNYUAN,
        HUNYUAN_MOE,
        LFM2,
        LFM2_MOE,
        LLAMA,
        LLAMA4,
        MINIMAX_M2,
        MINISTRAL3,
        MISTRAL,
        MISTRAL4,
        MIXTRAL,
        NEMOTRON,
        NEMOTRON_H,
        OLMO,
        OLMO2,
        OLMO3,
        OLMOE,
        OPT,
        PHI,
        PHI3,
        PHIMOE,
        QWEN2,
        QWEN2_MOE,
        QWEN3,
        QWEN3_5,
        QWEN3_5_MOE,
        QWEN3_MOE,
        QWEN3_NEXT,
        QWEN3_VL_MOE,
        SEED_OSS,
        SMOLLM3,
        SOLAR_OPEN,
        STABLELM,
        STARCODER2,
    )
}

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "attention_bias": (False,),
    "attention_multiplier": (),
    "attention_out_bias": (False,),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (),
    "full_attn_mod": (1,),
    "hidden_activation": ("silu",),
    "interpolate_factor": (1,),
    "kv_lora_rank": (),
    "layer_norm_eps": (),
    "lm_head_bias": (False,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "n_routed_experts": (0,),
    "norm_eps": (),
    "norm_epsilon": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "per_layer_config": ({},),
    "qk_layernorm": (False,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "rope_interleave": (False,),
    "rope_interleaved": (False,),
    "rope_local_base_freq": (),
    "rotary_pct": (1,),
    "scale_attn_weights": (True,),
    "sliding_window": (0,),
    "use_bias": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "use_qkv_bias": (False,),
    "use_sliding_window": (False,),
}
"""Keys of some families, each with its neutral values besides null. Families refuse other values of unread keys."""
LAYER_LISTS: Final[Mapping[str, Any]] = {"layer_types": "full_attention", "no_rope_layers": 1}
"""Keys with a list over layers, each with its neutral entry."""
_MALFORMED: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of readers for values of another kind than expected."""


def parse_config(config: Mapping[str, Any], source: str, custom: Family | None = None) -> ModelConfig:
    """Read a Hugging Face `config.json`, with older or newer names of keys.

    A nested text model is read in place of the model around it. Keys unknown to the family cause a warning if they may
    affect the model's computation.

    Args:
        config: the decoded JSON object.
        source: the origin of the config, for error messages.
        custom: a family to use instead of the supported families.

    Raises:
        UnsupportedModel: the architecture is not supported, or is not the one of `custom`, or a part of the config is
            not implemented.
        CheckpointError: a value is missing or wrong.
    """
    try:
        return _parse(config, source, custom)
    except RekindleError:
        raise
    except _MALFORMED as error:
        if custom is not None:  # the fault may be in the caller's own reader
            raise
        raise CheckpointError(
            f"{source}: a value is of a wrong type, size or length ({error}); compare the file with the one in the "
            "model's repository"
        ) from error


def _parse(config: Mapping[str, Any], source: str, custom: Family | None) -> ModelConfig:
    text = text_config_of(config)
    keys = Keys(text.settings, f"{source}: {text.place}" if text.place else source)
    name, family = _family(keys, text, source, custom)
    in_directions = with_whole_prompts if text.model_type in PREFIX_ATTENTION else in_its_directions
    model = in_directions(replace(family.read(keys), family=name), keys)
    check_method(text.settings, source)
    unread = keys.unread()
    for key in unread:
        if key in LAYER_LISTS and any(each != LAYER_LISTS[key] for each in keys.get(key) or ()):
            raise UnsupportedModel(f"{source}: {key} {keys.get(key)!r:.80} is not supported in this family")
        if key in NEUTRAL:
            keys.refuse(key, *NEUTRAL[key])
    unknown_keys = [
        key for key in unread if key not in NEUTRAL and key not in LAYER_LISTS and key not in QUANTIZATION_KEYS
    ]
    unknown_keys += [key for key in text.unknown if key not in WITHOUT_EFFECT and not keys.was_read(key)]
    if unknown := ", ".join(unknown_keys):
        warn(f"{source} has unknown keys that may change the results of the model: {unknown}")
    return model


def _family(keys: Keys, text: TextConfig, source: str, custom: Family | None) -> tuple[str, Family]:
    own = keys.get("architectures") or []
    architectures = [*text.architectures, *(name for name in own if name not in text.architectures)]
    names = ", ".join(map(str, architectures)) or "none named"
    if custom is not None:
        if custom.architecture in architectures:
            return custom.architecture, custom
        raise UnsupportedModel(
            f"{source}: the architecture is {names}, but the given family is for {custom.architecture}; pass a family "
            "for this architecture, or none if it is supported"
        )
    lowered = {str(each).lower() for each in own}  # published files of one family may differ in case
    for name, family in FAMILIES.items():
        if not _head_variants(family.architecture).isdisjoint(lowered) or (
            (not own or text.place) and keys.get("model_type") == name
        ):
            return name, family
    raise UnsupportedModel(architecture_refusal(source, list(map(str, architectures)), text.configs))


def _head_variants(architecture: str) -> set[str]:
    """Return an architecture's names in lower case, with each possible head: for tokens, for classes, and none."""
    stem = architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    names = architecture, f"{stem}Model", f"{stem}TextModel", f"{stem}ForSequenceClassification"
    return {name.lower() for name in names}
