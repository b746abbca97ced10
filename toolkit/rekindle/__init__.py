"""Rekindle: async, notebook-first LLM inference in JAX.

session = await rekindle.open("smollm2-135m-instruct")
print(await session.generate("Once upon a time"))
"""

from rekindle.config import Settings
from rekindle.device.sampling.processing import LogitsRow
from rekindle.engine.handled import Handled
from rekindle.engine.hosts.hosts import Hosts
from rekindle.errors import (
    BatchFailed,
    CheckpointError,
    ConfigError,
    EngineFailed,
    HostLost,
    HostRefused,
    InvalidBatch,
    InvalidData,
    InvalidRequest,
    ModelError,
    ModelNotFound,
    ModelTooLarge,
    NotRestored,
    ParametersIgnored,
    PromptTooLong,
    QueueFull,
    RekindleError,
    RequestCancelled,
    SessionClosed,
    SessionError,
    StorageError,
    UnsafeStorage,
    UnsupportedModel,
    WeightsChanged,
)
from rekindle.models.families.reading import Family
from rekindle.policy import Candidate
from rekindle.request import SamplingParams
from rekindle.results.answers import Answers
from rekindle.results.figures import CachedTokens, Timings, Usage
from rekindle.results.generation import Generation
from rekindle.results.tokens import Piece, TokenLogprob
from rekindle.scheduler.stats import Stats
from rekindle.session.calls.handle import Handle, Stream
from rekindle.session.opening import open, open_sync
from rekindle.session.prefix import Prefix
from rekindle.session.session import Session
from rekindle.views.cache.view import CachedPath, CacheView

__version__ = "0.1.0"

__all__ = [
    "Answers",
    "BatchFailed",
    "CacheView",
    "CachedPath",
    "CachedTokens",
    "Candidate",
    "CheckpointError",
    "ConfigError",
    "EngineFailed",
    "Family",
    "Generation",
    "Handle",
    "Handled",
    "HostLost",
    "HostRefused",
    "Hosts",
    "InvalidBatch",
    "InvalidData",
    "InvalidRequest",
    "LogitsRow",
    "ModelError",
    "ModelNotFound",
    "ModelTooLarge",
    "NotRestored",
    "ParametersIgnored",
    "Piece",
    "Prefix",
    "PromptTooLong",
    "QueueFull",
    "RekindleError",
    "RequestCancelled",
    "SamplingParams",
    "Session",
    "SessionClosed",
    "SessionError",
    "Settings",
    "Stats",
    "StorageError",
    "Stream",
    "Timings",
    "TokenLogprob",
    "UnsafeStorage",
    "UnsupportedModel",
    "Usage",
    "WeightsChanged",
    "open",
    "open_sync",
]


def __dir__() -> list[str]:
    """Return the public names alone: completion would list every module that was imported."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
