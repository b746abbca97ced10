"""Tiny models for text, and the command line in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import rekindle
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


def writing_model(families: Path, directory: Path) -> str:
    """Make the tiny model with a chat template and a tokenizer of bytes, and of words for the rest of its tokens."""
    shutil.copytree(families / "llama-tied", directory)
    tokens = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [f"w{place}" for place in range(len(tokens), 512)]
    backend = Backend(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=[]))
    backend.add_special_tokens(tokens[:3])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(directory / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return str(directory)


def patient_model(families: Path, directory: Path) -> str:
    """Make the same model with a context so long that an answer takes seconds, and cannot end before it is stopped."""
    writing_model(families, directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").unlink()  # it may be a link into the fixtures
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1 << 14}), encoding="utf-8")
    return str(directory)


def fake_opening(byte_tokenizer: Tokenizer, template: str | None = TEMPLATE) -> Any:
    """Return a stand-in for `open_sync`: it opens the fake device, writing bytes, for every model."""
    writing = Tokenizer(byte_tokenizer.backend, template)

    def open_fake(
        model: str,
        *,
        progress: bool = True,
        show_restored: bool | None = None,
        revision: str | None = None,
        chat_template: str | None = None,
        adapters: Mapping[str, Any] = MappingProxyType({}),
        **settings: Any,
    ) -> Session:
        own = writing if chat_template is None else writing.with_chat_template(chat_template)
        session = fake_session(fake_loaded_engine(fake_limits(**settings), tokenizer=own))
        for name, path in adapters.items():
            session.add_adapter_sync(name, path)
        return session

    return open_fake


def environment() -> dict[str, str]:
    """Return the environment of a process with the command line."""
    path = os.pathsep.join([str(Path(rekindle.__file__).parents[1]), *sys.path])
    return {**os.environ, "PYTHONPATH": path}


@contextmanager
def running(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "rekindle", *arguments]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment(), **{**pipes, **options}) as process:
        try:
            yield process
        finally:
            process.kill()
