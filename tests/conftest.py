"""Fixtures that every kind of test shares."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import settings
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from rekindle.checkpoint.checkpoint import Checkpoint
from rekindle.checkpoint.embedded import embedded_path
from rekindle.checkpoint.gguf import open_gguf
from rekindle.text.tokenizer import Tokenizer

# The same examples in every run: a failure is the change's, never the day's. Deep tests draw fresh ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

GOLDENS = Path(__file__).parent / "goldens"

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose tokens are the 256 bytes, for sessions on the fake device."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, chat_template="{% for message in messages %}{{ message.content }}{% endfor %}")


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
