"""Fixtures that every kind of test shares."""

import json
from pathlib import Path
from typing import Any

import pytest

from rekindle.checkpoint.checkpoint import Checkpoint
from rekindle.checkpoint.embedded import embedded_path
from rekindle.checkpoint.gguf import open_gguf
from rekindle.text.tokenizer import Tokenizer

GOLDENS = Path(__file__).parent / "goldens"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The embedded default model's GGUF file, downloaded into the cache directory once per machine."""
    return embedded_path()


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Checkpoint:
    return open_gguf(smollm2_path)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: Checkpoint) -> Tokenizer:
    assert smollm2.tokenizer is not None
    return smollm2.tokenizer


@pytest.fixture(scope="session")
def smollm2_goldens() -> list[dict[str, Any]]:
    """The entries of goldens/smollm2.json; goldens/README.md says what is in them."""
    goldens: list[dict[str, Any]] = json.loads((GOLDENS / "smollm2.json").read_text(encoding="utf-8"))
    return goldens


@pytest.fixture(scope="session")
def families() -> Path:
    """The directory of the tiny models, each with its golden.npz."""
    return GOLDENS / "families"
