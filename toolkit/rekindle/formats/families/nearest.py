"""The nearest supported models for architectures without support, with their usual sizes."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Final

from rekindle.formats.families.special import EMBEDS, ENCODERS

SIZES: Final[Mapping[str, str]] = {
    "afmoe": "Arcee Trinity (6B and 26B)",
    "cohere2": "Command R7B (7B) and Command A (111B)",
    "deepseek_v2": "DeepSeek-V2-Lite (16B)",
    "deepseek_v3": "DeepSeek-R1's distilled Qwen2.5 and Llama 3 (1.5B to 70B), Moonlight (16B) and DeepSeek-V3 (671B)",
    "dots1": "dots.llm1 (142B)",
    "ernie4_5": "Ernie 4.5 (0.3B)",
    "ernie4_5_moe": "Ernie 4.5 with experts (21B-A3B)",
    "exaone4": "EXAONE 4 (1.2B and 32B)",
    "falcon_h1": "Falcon-H1 (0.5B to 34B)",
    "gemma3_text": "Gemma 3 (270M to 27B)",
    "gemma4_text": "Gemma 4 (E2B to 31B)",
    "glm4": "GLM-4 (9B and 32B)",
    "glm4_moe": "GLM-4.5-Air (106B) and GLM-4.5 to 4.7 (355B)",
    "gpt2": "GPT-2 (124M to 1.5B)",
    "gpt_neox": "Pythia (160M to 12B) and GPT-NeoX (20B)",
    "gpt_oss": "gpt-oss (20B and 120B)",
    "gptj": "GPT-J (6B)",
    "granite": "Granite 3 (2B and 8B)",
    "granitemoe": "Granite with experts (1B-A400M and 3B-A800M)",
    "granitemoehybrid": "Granite 4 (3B to 32B)",
    "hunyuan_v1_dense": "Hunyuan (0.5B to 7B)",
    "hunyuan_v1_moe": "Hunyuan A13B (80B)",
    "lfm2": "LFM2 (350M to 1.2B)",
    "lfm2_moe": "LFM2 with experts (8B-A1B)",
    "llama": "Llama 3 (1B to 70B)",
    "llama4_text": "Llama 4 Scout (109B) and Maverick (400B)",
    "minimax_m2": "MiniMax-M2 (230B)",
    "ministral3": "Ministral 3 (3B to 14B)",
    "mistral": "Mistral (7B) and Mistral Small 3 (24B)",
    "mixtral": "Mixtral (8x7B and 8x22B)",
    "nemotron": "Nemotron and Minitron (4B and 8B)",
    "nemotron_h": "Nemotron-H (8B and 9B) and Nemotron 3 Nano (30B-A3B)",
    "olmo2": "OLMo 2 (1B to 32B)",
    "olmoe": "OLMoE (7B)",
    "opt": "OPT (125M to 66B)",
    "phi3": "Phi-4-mini (3.8B) and Phi-4 (14B)",
    "phimoe": "Phi-3.5-MoE (42B)",
    "qwen2": "Qwen2.5 (0.5B to 72B)",
    "qwen3": "Qwen3 (0.6B to 32B)",
    "qwen3_5_moe_text": "Qwen3.5 with experts (35B-A3B to 397B-A17B)",
    "qwen3_5_text": "Qwen3.5 (0.8B to 27B)",
    "qwen3_moe": "Qwen3 with experts (30B-A3B and 235B-A22B)",
    "qwen3_next": "Qwen3-Next (80B-A3B)",
    "seed_oss": "Seed-OSS (36B)",
    "smollm3": "SmolLM3 (3B)",
    "stablelm": "StableLM 2 (1.6B and 12B)",
    "starcoder2": "StarCoder2 (3B to 15B)",
}
"""Sizes of families, by "model_type"."""
EMBEDDING: Final = "Qwen3-Embedding (0.6B to 8B), for embeddings, or encoders such as all-MiniLM and bge"
_BY_NAME: Final = (
    (f"{EMBEDS}|{ENCODERS}|nomic|^e5|clip|siglip", EMBEDDING),
    (r"gpt_?oss", "gpt_oss"),
    (r"codegen|gpt_?j", "gptj"),
    (r"falcon_?h\d", "falcon_h1"),
    (r"gpt_?neo|pythia|bloom|^mpt|persimmon|falcon(?!.*(h1|mamba|3))", "gpt_neox"),
    (r"^opt|xglm|biogpt", "opt"),
    (r"gpt", "gpt2"),
    (r"qwen3_?next", "qwen3_next"),
    (r"qwen3_?[5-9].*moe", "qwen3_5_moe_text"),
    (r"qwen3_?[5-9]", "qwen3_5_text"),
    (r"qwen.*moe|grove|step3|smallthinker", "qwen3_moe"),
    (r"mimo", "qwen2"),
    (r"qwen", "qwen3"),
    (r"gemma_?(3n|[4-9])", "gemma4_text"),
    (r"gemma", "gemma3_text"),
    (r"afmoe", "afmoe"),
    (r"llama_?4", "llama4_text"),
    (r"llama|^mllama|arcee|afm|internlm|baichuan|deci|nemotron_?nas|falcon3", "llama"),
    (r"kimi|deepseek|longcat|axk", "deepseek_v3"),
    (r"glm.*(moe|5)|bailing", "glm4_moe"),
    (r"glm", "glm4"),
    (r"phi.*moe", "phimoe"),
    (r"^phi", "phi3"),
    (r"granite.*hybrid|bamba|mamba|zamba", "granitemoehybrid"),
    (r"granite.*moe", "granitemoe"),
    (r"granite", "granite"),
    (r"nemotron_?h", "nemotron_h"),
    (r"nemotron", "nemotron"),
    (r"olmo.*moe|olmoe", "olmoe"),
    (r"olmo", "olmo2"),
    (r"mixtral|jamba|dbrx|jetmoe", "mixtral"),
    (r"mistral|pixtral|falcon", "mistral"),
    (r"cohere|command", "cohere2"),
    (r"hunyuan.*moe|hy_?v", "hunyuan_v1_moe"),
    (r"hunyuan", "hunyuan_v1_dense"),
    (r"ernie.*moe", "ernie4_5_moe"),
    (r"ernie", "ernie4_5"),
    (r"exaone", "exaone4"),
    (r"starcoder|santacoder", "starcoder2"),
    (r"minimax", "minimax_m2"),
    (r"dots", "dots1"),
    (r"lfm.*moe", "lfm2_moe"),
    (r"lfm", "lfm2"),
    (r"smollm", "smollm3"),
    (r"stablelm", "stablelm"),
)
"""Families by a pattern in the name of an architecture without support, and one model by its name."""


def nearest(names: Iterable[str]) -> str:
    """Return the nearest supported model, with its sizes.

    Args:
        names: names of the architecture in any spelling, by descending importance.
    """
    lowered = [name.lower().replace("-", "_") for name in names]
    by_name = (family for name in lowered for pattern, family in _BY_NAME if re.search(pattern, name))
    stems = [re.sub(r"(for.*|model|lmhead.*)$", "", name) for name in lowered]
    similar = (match for stem in stems for match in get_close_matches(stem, SIZES, n=1))
    family = next(chain(by_name, similar), "qwen3")
    return SIZES.get(family, family)
