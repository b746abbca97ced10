"""The tiny models of all families, as `tests/goldens/README.md` describes them."""

# fmt: off
MODELS = [
    "cohere", "cohere2", "deepseek-v2", "deepseek-v2-group", "deepseek-v3", "deepseek-v3-noq", "ernie4_5", "gemma",
    "gemma2", "gemma2-nocap", "gemma3", "gemma3-cap", "glm4", "gpt-oss", "granite", "granitemoe", "hunyuan-dense",
    "llama-bf16", "llama-bias", "llama-dynamic", "llama-embed", "llama-linear", "llama-sharded", "llama-tied",
    "llama-yarn", "llama3-rope", "mistral", "mistral-full", "mixtral", "mixtral-window", "nemotron", "olmo2",
    "olmo3", "phi3", "phi3-longrope", "phi3-partial", "qwen2", "qwen2-moe", "qwen2-sharded", "qwen2-window",
    "qwen3", "qwen3-embed", "qwen3-moe", "qwen3-moe-sparse", "seed-oss", "smollm3", "smollm3-window", "stablelm",
    "stablelm-parallel", "starcoder2",
]
# fmt: on
"""Models whose logits and greedy tokens are known."""
COVERING = [
    "cohere2",
    "deepseek-v3",
    "gemma2",
    "gpt-oss",
    "llama-dynamic",
    "llama-tied",
    "llama3-rope",
    "olmo3",
    "phi3-longrope",
    "qwen2",
    "qwen2-moe",
    "qwen3",
    "stablelm",
]
"""Models that have each part of a decoder at least once."""
