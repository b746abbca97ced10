"""Plugin of the package `llm`: its commands and its API with models of Rekindle, in this process."""

from collections.abc import Callable
from typing import Any

import llm

from llm_rekindle.commands import add_commands
from llm_rekindle.embedding import RekindleEmbedding
from llm_rekindle.models import AsyncRekindleModel, RekindleModel
from llm_rekindle.registry import added_models

# Every command of `llm` imports this package, so Rekindle itself is imported at the first prompt.


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register the models for text, each for blocking and for async callers."""
    for entry in added_models():
        if not entry.embeds:
            register(RekindleModel(entry), AsyncRekindleModel(entry), aliases=entry.aliases)


@llm.hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    """Register the models for embeddings."""
    for entry in added_models():
        if entry.embeds:
            register(RekindleEmbedding(entry), aliases=entry.aliases)


@llm.hookimpl
def register_commands(cli: Any) -> None:
    """Register `llm rekindle`."""
    add_commands(cli)
