"""The nearest supported models for architectures without support, with their usual sizes."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Final

SIZES: Final[Mapping[str, str]] = {
    "cohere2": "Command R7B (7B) and Command A (111B)",
    "deepseek_v2": "DeepSeek-V2-Lite (16B)",
    "deepseek_v3": "DeepSeek-R1's distilled Qwen2.5 and Llama 3 (1.5B to 70B), Moonlight (16B) and DeepSeek-V3 (671B)",
    "ernie4_5": "Ernie 4.5 (0.3B)",
    "gemma3_text": "Gemma 3 (270M to 27B)",
    "glm4": "GLM-4 (9B and 32B)",
    "gpt_oss": "gpt-oss (20B and 120B)",
    "granite": "Granite 3 (2B and 8B)",
    "hunyuan_v1_dense": "Hunyuan (0.5B to 7B)",
    "llama": "Llama 3 (1B to 70B)",
    "ministral3": "Ministral 3 (3B to 14B)",
    "mistral": "Mistral (7B) and Mistral Small 3 (24B)",
    "mixtral": "Mixtral (8x7B and 8x22B)",
    "nemotron": "Nemotron and Minitron (4B and 8B)",
    "olmo2": "OLMo 2 (1B to 32B)",
    "phi3": "Phi-4-mini (3.8B) and Phi-4 (14B)",
    "qwen2": "Qwen2.5 (0.5B to 72B)",
    "qwen3": "Qwen3 (0.6B to 32B)",
    "qwen3_moe": "Qwen3 with experts (30B-A3B and 235B-A22B)",
    "seed_oss": "Seed-OSS (36B)",
    "smollm3": "SmolLM3 (3B)",
    "stablelm": "StableLM 2 (1.6B and 12B)",
    "starcoder2": "StarCoder2 (3B to 15B)",
}
"""Sizes of families, by "model_type"."""
EMBEDDING: Final = "Qwen3-Embedding (0.6B to 8B), for embeddings"
SMALL: Final = "SmolLM2 (135M to 1.7B)"
_BY_NAME: Final = (
    (r"bert|electra|nomic|^e5|^gte|bidirectional|clip|siglip|maskedlm", EMBEDDING),
    (r"gpt|^opt|bloom|pythia|mpt|codegen|xglm|biogpt", SMALL),
    (r"qwen.*moe|qwen3_?next", "qwen3_moe"),
    (r"qwen", "qwen3"),
    (r"gemma", "gemma3_text"),
    (r"llama|^mllama|arcee|afm", "llama"),
    (r"kimi|deepseek|longcat", "deepseek_v3"),
    (r"glm", "glm4"),
    (r"^phi", "phi3"),
    (r"granite|bamba", "granite"),
    (r"nemotron", "nemotron"),
    (r"olmo", "olmo2"),
    (r"mixtral|jamba", "mixtral"),
    (r"mistral|pixtral|mamba|zamba|falcon", "mistral"),
    (r"cohere|command", "cohere2"),
    (r"hunyuan|hy_?v", "hunyuan_v1_dense"),
    (r"ernie", "ernie4_5"),
    (r"starcoder|santacoder", "starcoder2"),
    (r"minimax|dots", "qwen3_moe"),
    (r"lfm|smollm", "smollm3"),
    (r"stablelm", "stablelm"),
)
"""Families by a pattern in the name of an architecture without support, and two models by their names."""


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
