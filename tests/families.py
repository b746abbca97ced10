"""The tiny models of all families, as `tests/goldens/README.md` describes them."""

from collections.abc import Container
from pathlib import Path
from typing import Any, Final

import pytest

MODELS: Final = sorted(path.name for path in (Path(__file__).parent / "goldens" / "families").iterdir())
"""Models with goldens of their logits and greedy tokens."""
COVERING = [
    "afmoe",
    "apertus",
    "cohere2",
    "deepseek-v3",
    "falcon-h1-norm",
    "gemma2",
    "gemma3n",
    "gemma4-e",
    "gemma4-moe",
    "gpt-neox",
    "gpt-oss",
    "gpt2",
    "lfm2",
    "llama-dynamic",
    "llama-tied",
    "llama3-rope",
    "llama4",
    "nemotron-h-moe",
    "olmo",
    "olmo3",
    "opt-350m",
    "phi",
    "phi3-longrope",
    "phimoe",
    "qwen2",
    "qwen2-moe",
    "qwen3",
    "qwen3-next",
    "qwen3_5",
    "stablelm",
]
"""A few models with each part of a decoder at least once."""


def families_by_tier(always: Container[str]) -> list[Any]:
    """Return the parameters of a test for all models: some always, the covering ones wide, and the others deep."""
    wide, deep = pytest.mark.wide, pytest.mark.deep
    return [pytest.param(name, marks=() if name in always else wide if name in COVERING else deep) for name in MODELS]
