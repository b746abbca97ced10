"""all-MiniLM-L6-v2 as published has the vectors of sentence-transformers, the same bits alone and after a restart."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from tests.real.minilm import minilm

GOLDENS = Path(__file__).parents[1] / "goldens" / "real"
TEXTS: list[str] = json.loads((GOLDENS / "minilm.json").read_text(encoding="utf-8"))
"""Texts in ten scripts, from one character to more than the longest."""
EXPECTED: np.ndarray[Any, np.dtype[np.float32]] = np.load(GOLDENS / "minilm.npy")
"""Their vectors by sentence-transformers 6.2.0 with torch 2.14, each alone."""


def vectors(session: rekindle.Session, *, alone: bool) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.stack([session.embed_sync(text) for text in TEXTS]) if alone else session.embed_sync(TEXTS)


def test_vectors_alone_in_a_batch_and_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path))
    settings: Any = {"progress": False, "precompile": "all", "host_cache_bytes": 0, "disk_cache_bytes": 0}
    with rekindle.open_sync(minilm(), **settings) as session:
        together = vectors(session, alone=False)
        np.testing.assert_allclose(together, EXPECTED, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(vectors(session, alone=True), together)
    with rekindle.open_sync(minilm(), **settings) as session:
        np.testing.assert_array_equal(vectors(session, alone=False), together)
        assert session.stats.compilations == 0
