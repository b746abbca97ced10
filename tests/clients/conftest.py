"""A tiny model that is served, with a tokenizer of bytes and a chat template that has tools."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import rekindle
from rekindle.server.listening.running import Server
from tests.sentence_models import chat_model

NAME = "tiny"


@pytest.fixture(scope="session")
def checkpoint(families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(families, tmp_path_factory.mktemp("models") / NAME)


def opened(checkpoint: Path, context: int, running: int, tokens: int) -> rekindle.Session:
    """Open a tiny model with pages of 16 tokens, for so many requests, and so many tokens of prompts in a tick."""
    return rekindle.open_sync(
        checkpoint,
        progress=False,
        page_size=16,
        max_context=context,
        max_running=running,
        max_prefill_tokens=tokens,
        prefill_chunk=tokens,
        prefill_buckets=(tokens,),
        decode_buckets=(running,),
        dtype="float32",
        precompile="lazy",
    )


@pytest.fixture(scope="module")
def session(checkpoint: Path) -> Iterator[rekindle.Session]:
    with opened(checkpoint, context=512, running=8, tokens=128) as session:
        yield session


@pytest.fixture(scope="module")
def big_server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve the model with a context for the prompts of coding agents, whose tokens are bytes here."""
    big = tmp_path_factory.mktemp("big") / NAME
    shutil.copytree(checkpoint, big)
    config = json.loads((big / "config.json").read_text(encoding="utf-8"))
    (big / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 32_768}), encoding="utf-8")
    with opened(big, context=32_768, running=4, tokens=512) as session, session.serve_sync(port=0) as server:
        yield server


@pytest.fixture(scope="module")
def server(session: rekindle.Session) -> Iterator[Server]:
    with session.serve_sync(port=0) as server:
        yield server
