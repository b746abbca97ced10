"""Files of models in the directories of Ollama, LM Studio and the hub's cache, as these programs lay them out."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from rekindle.formats.checkpoints.local import ollama

KIND = "application/vnd.ollama.image."


def make_home(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home directory without models, and an empty cache of the hub."""
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.setenv("USERPROFILE", str(directory))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setattr(ollama, "_SERVICE", directory / "no-service")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(directory / "hub"))
    return directory


def add_blob(directory: Path, content: bytes, kind: str) -> dict[str, Any]:
    """Store a blob as Ollama does, and return its layer."""
    digest = hashlib.sha256(content).hexdigest()
    (directory / "blobs").mkdir(parents=True, exist_ok=True)
    (directory / "blobs" / f"sha256-{digest}").write_bytes(content)
    return {"mediaType": KIND + kind, "digest": f"sha256:{digest}", "size": len(content)}


def add_manifest(directory: Path, path: str, content: Mapping[str, Any]) -> Path:
    """Store a manifest under `manifests` or `manifests-v2`."""
    manifest = directory / path
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, **content}))
    return manifest


def add_to_ollama(directory: Path, path: str, gguf: Path) -> None:
    """Store a model in Ollama's directory, with a template and parameters beside its GGUF file."""
    layers = [add_blob(directory, b"{{ .Prompt }}", "template"), add_blob(directory, gguf.read_bytes(), "model")]
    layers.append(add_blob(directory, b'{"temperature": 0}', "params"))
    add_manifest(directory, f"manifests/{path}", {"layers": layers})


def cache_snapshot(home: Path, name: str, commit: str, ref: str, source: Path) -> Path:
    """Lay a model out as the hub's library does."""
    repository = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / ref).write_text(commit)
    if source.is_dir():
        shutil.copytree(source, snapshot)
    else:
        snapshot.mkdir(parents=True)
        shutil.copy(source, snapshot)
    return snapshot
