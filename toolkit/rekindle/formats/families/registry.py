"""Registry of the supported model families, and the reader of `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import CheckpointError, RekindleError, UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.directions import in_its_directions, with_whole_prompts
from rekindle.formats.families.keys import WITHOUT_EFFECT, Keys
from rekindle.formats.families.quantization import KEYS as QUANTIZATION_KEYS
from rekindle.formats.families.quantization import check_method
from rekindle.formats.families.reading import Family
from rekindle.formats.families.refusals import architecture_refusal
from rekindle.formats.families.wrapped import PREFIX_ATTENTION, TextConfig, text_config_of

_READERS: Final[Mapping[str, tuple[str, str]]] = {
    "afmoe": ("AfmoeForCausalLM", "afmoe.read"),
    "apertus": ("ApertusForCausalLM", "apertus.read"),
    "arcee": ("ArceeForCausalLM", "arcee.read"),
    "bamba": ("BambaForCausalLM", "bamba.read"),
    "bert": ("BertModel", "bert.read"),
    "camembert": ("CamembertModel", "bert.read_roberta"),
    "cohere": ("CohereForCausalLM", "cohere.read"),
    "cohere2": ("Cohere2ForCausalLM", "cohere2.read"),
    "cohere2_moe": ("Cohere2MoeForCausalLM", "cohere2_moe.read"),
    "deepseek_v2": ("DeepseekV2ForCausalLM", "deepseek_v2.read"),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "deepseek_v3.read"),
    "distilbert": ("DistilBertModel", "distilbert.read"),
    "dots1": ("Dots1ForCausalLM", "dots1.read"),
    "electra": ("ElectraModel", "bert.read_electra"),
    "ernie4_5": ("Ernie4_5ForCausalLM", "ernie4_5.read"),
    "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe.read"),
    "exaone4": ("Exaone4ForCausalLM", "exaone4.read"),
    "exaone_moe": ("ExaoneMoeForCausalLM", "exaone_moe.read"),
    "falcon_h1": ("FalconH1ForCausalLM", "falcon_h1.read"),
    "flex_olmo": ("FlexOlmoForCausalLM", "flex_olmo.read"),
    "gemma": ("GemmaForCausalLM", "gemma.read"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2.read"),
    "gemma3_text": ("Gemma3ForCausalLM", "gemma3.read"),
    "gemma3n_text": ("Gemma3nForCausalLM", "gemma3n.read"),
    "gemma4_text": ("Gemma4ForCausalLM", "gemma4.read"),
    "glm": ("GlmForCausalLM", "glm.read"),
    "glm4": ("Glm4ForCausalLM", "glm4.read"),
    "glm4_moe": ("Glm4MoeForCausalLM", "glm4_moe.read"),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", "deepseek_v3.read_glm4_moe_lite"),
    "gpt2": ("GPT2LMHeadModel", "gpt2.read"),
    "gpt_neox": ("GPTNeoXForCausalLM", "gpt_neox.read"),
    "gpt_oss": ("GptOssForCausalLM", "gpt_oss.read"),
    "gptj": ("GPTJForCausalLM", "gptj.read"),
    "granite": ("GraniteForCausalLM", "granite.read"),
    "granitemoe": ("GraniteMoeForCausalLM", "granitemoe.read"),
    "granitemoehybrid": ("GraniteMoeHybridForCausalLM", "granitemoehybrid.read"),
    "granitemoeshared": ("GraniteMoeSharedForCausalLM", "granitemoe.read_shared"),
    "helium": ("HeliumForCausalLM", "helium.read"),
    "hunyuan_v1_dense": ("HunYuanDenseV1ForCausalLM", "hunyuan.read"),
    "hunyuan_v1_moe": ("HunYuanMoEV1ForCausalLM", "hunyuan_moe.read"),
    "jina_bert": ("JinaBertModel", "jina_bert.read"),
    "lfm2": ("Lfm2ForCausalLM", "lfm2.read"),
    "lfm2_moe": ("Lfm2MoeForCausalLM", "lfm2.read_moe"),
    "llama": ("LlamaForCausalLM", "llama.read"),
    "llama4_text": ("Llama4ForCausalLM", "llama4.read"),
    "minimax_m2": ("MiniMaxM2ForCausalLM", "minimax_m2.read"),
    "ministral3": ("Ministral3ForCausalLM", "ministral3.read"),
    "mistral": ("MistralForCausalLM", "mistral.read"),
    "mistral4": ("Mistral4ForCausalLM", "mistral4.read"),
    "mixtral": ("MixtralForCausalLM", "mixtral.read"),
    "modernbert": ("ModernBertModel", "modernbert.read"),
    "mpnet": ("MPNetModel", "mpnet.read"),
    "nemotron": ("NemotronForCausalLM", "nemotron.read"),
    "nemotron_h": ("NemotronHForCausalLM", "nemotron_h.read"),
    "nomic_bert": ("NomicBertModel", "nomic_bert.read"),
    "olmo": ("OlmoForCausalLM", "olmo.read"),
    "olmo2": ("Olmo2ForCausalLM", "olmo2.read"),
    "olmo3": ("Olmo3ForCausalLM", "olmo3.read"),
    "olmoe": ("OlmoeForCausalLM", "olmoe.read"),
    "opt": ("OPTForCausalLM", "opt.read"),
    "phi": ("PhiForCausalLM", "phi.read"),
    "phi3": ("Phi3ForCausalLM", "phi3.read"),
    "phimoe": ("PhimoeForCausalLM", "phimoe.read"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2.read"),
    "qwen2_moe": ("Qwen2MoeForCausalLM", "qwen2_moe.read"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3.read"),
    "qwen3_5_moe_text": ("Qwen3_5MoeForCausalLM", "qwen3_next.read_moe"),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", "qwen3_next.read"),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "qwen3_moe.read"),
    "qwen3_next": ("Qwen3NextForCausalLM", "qwen3_next.read_next"),
    "qwen3_vl_moe_text": ("Qwen3VLMoeForCausalLM", "qwen3_vl_moe.read"),
    "roberta": ("RobertaModel", "bert.read_roberta"),
    "seed_oss": ("SeedOssForCausalLM", "seed_oss.read"),
    "smollm3": ("SmolLM3ForCausalLM", "smollm3.read"),
    "solar_open": ("SolarOpenForCausalLM", "dots1.read_solar_open"),
    "stablelm": ("StableLmForCausalLM", "stablelm.read"),
    "starcoder2": ("Starcoder2ForCausalLM", "starcoder2.read"),
    "xlm-roberta": ("XLMRobertaModel", "bert.read_roberta"),
}
"""The architecture and the reader of each family, by "model_type"; a reader as its module and its function."""


@dataclass(frozen=True, slots=True)
class _FamilyReader:
    """Reader of a family's config, whose module is imported at its first use."""

    place: str

    def __call__(self, keys: Keys) -> ModelConfig:
        module, _, name = self.place.partition(".")
        config: ModelConfig = getattr(import_module(f"rekindle.formats.families.{module}"), name)(keys)
        return config


FAMILIES: Final[Mapping[str, Family]] = {
    name: Family(architecture, _FamilyReader(place), name) for name, (architecture, place) in _READERS.items()
}
"""The supported families by "model_type"."""
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
ENCODER_HEADS: Final = (
    "Model",
    "ForMaskedLM",
    "ForPreTraining",
    "ForSequenceClassification",
    "ForTokenClassification",
)
"""Ends of the names of an encoder's architectures, with each possible head and without one."""
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
    if architecture.endswith("Model"):
        return {f"{architecture.removesuffix('Model')}{head}".lower() for head in ENCODER_HEADS}
    stem = architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    names = architecture, f"{stem}Model", f"{stem}TextModel", f"{stem}ForSequenceClassification"
    return {name.lower() for name in names}
