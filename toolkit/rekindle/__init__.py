"""Rekindle: async, notebook-first LLM inference in JAX.

session = await rekindle.open()  # a small model; others by name or path
await session.chat().show("What is the capital of France?")
"""

import sys
from dis import opmap
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rekindle.namesake import warn_of_namesake

if TYPE_CHECKING:
    from rekindle.chats.chat import Chat
    from rekindle.client.handle import Handle, Stream
    from rekindle.core.device.sampling.processing import LogitsRow
    from rekindle.core.errors import (
        BatchFailed,
        CheckpointError,
        ConfigError,
        ConstraintFailed,
        EngineFailed,
        HostLost,
        HostRefused,
        InvalidBatch,
        InvalidData,
        InvalidRequest,
        LogitsNotFinite,
        ModelError,
        ModelNotFound,
        ModelTooLarge,
        NotRestored,
        NoWeights,
        OutOfMemory,
        ParametersIgnored,
        PromptTooLong,
        QueueFull,
        RekindleError,
        ReplicaLost,
        RequestCancelled,
        SessionClosed,
        SessionError,
        StepTimeout,
        StorageError,
        UnsafeStorage,
        UnsupportedModel,
        WeightsChanged,
    )
    from rekindle.core.messages.record import MessageRecord
    from rekindle.core.policy import Candidate
    from rekindle.core.request.activations.steering import Patch, Steering
    from rekindle.core.request.figures import CachedTokens
    from rekindle.core.request.repetition import RepetitionLimit
    from rekindle.core.request.tokens import Piece, TokenLogprob
    from rekindle.formats.families.reading import Family
    from rekindle.formats.response import Part, ToolCall
    from rekindle.hosts.hosts import Hosts
    from rekindle.mapping.results import MapDecisions, MapResults
    from rekindle.replicas.ray import Ray
    from rekindle.results.answers import Answers
    from rekindle.results.bench import Bench
    from rekindle.results.comparison import Comparison
    from rekindle.results.facts.figures import Timings, Usage
    from rekindle.results.facts.settings import SamplingParams, Settings
    from rekindle.results.facts.stats import Stats
    from rekindle.results.generation import Generation
    from rekindle.results.inspection.activations import Activations
    from rekindle.results.inspection.attention import ImageAttention
    from rekindle.results.inspection.lens import LogitLens
    from rekindle.results.local_models import LocalModel, LocalModels
    from rekindle.results.scores.classes import Classification
    from rekindle.results.scores.decision import Decision, Decisions
    from rekindle.results.scores.masked_words import MaskedWords
    from rekindle.results.scores.options import Scores
    from rekindle.results.scores.perplexity import Perplexity
    from rekindle.results.scores.questions import Choice, Score, YesNo
    from rekindle.results.scores.ranking import Ranking
    from rekindle.results.scores.spans import Spans
    from rekindle.results.tool_run import ToolResult, ToolRun, ToolStep
    from rekindle.session.models import models
    from rekindle.session.opening import open, open_sync
    from rekindle.session.prefix import Prefix
    from rekindle.session.serving import serve, serve_sync
    from rekindle.session.session import Session
    from rekindle.settings.route import LaneLoad
    from rekindle.settings.server import ServerSettings
    from rekindle.views.cache.view import CachedPath, CacheView
    from rekindle.views.explanation import Explanation

__version__ = "0.1.0"
warn_of_namesake(Path(__file__).parent)

__all__ = [
    "Activations",
    "Answers",
    "BatchFailed",
    "Bench",
    "CacheView",
    "CachedPath",
    "CachedTokens",
    "Candidate",
    "Chat",
    "CheckpointError",
    "Choice",
    "Classification",
    "Comparison",
    "ConfigError",
    "ConstraintFailed",
    "Decision",
    "Decisions",
    "EngineFailed",
    "Explanation",
    "Family",
    "Generation",
    "Handle",
    "HostLost",
    "HostRefused",
    "Hosts",
    "ImageAttention",
    "InvalidBatch",
    "InvalidData",
    "InvalidRequest",
    "LaneLoad",
    "LocalModel",
    "LocalModels",
    "LogitLens",
    "LogitsNotFinite",
    "LogitsRow",
    "MapDecisions",
    "MapResults",
    "MaskedWords",
    "MessageRecord",
    "ModelError",
    "ModelNotFound",
    "ModelTooLarge",
    "NoWeights",
    "NotRestored",
    "OutOfMemory",
    "ParametersIgnored",
    "Part",
    "Patch",
    "Perplexity",
    "Piece",
    "Prefix",
    "PromptTooLong",
    "QueueFull",
    "Ranking",
    "Ray",
    "RekindleError",
    "RepetitionLimit",
    "ReplicaLost",
    "RequestCancelled",
    "SamplingParams",
    "Score",
    "Scores",
    "ServerSettings",
    "Session",
    "SessionClosed",
    "SessionError",
    "Settings",
    "Spans",
    "Stats",
    "Steering",
    "StepTimeout",
    "StorageError",
    "Stream",
    "Timings",
    "TokenLogprob",
    "ToolCall",
    "ToolResult",
    "ToolRun",
    "ToolStep",
    "UnsafeStorage",
    "UnsupportedModel",
    "Usage",
    "WeightsChanged",
    "YesNo",
    "models",
    "open",
    "open_sync",
    "serve",
    "serve_sync",
]

_HOMES = {
    "rekindle.chats.chat": ("Chat",),
    "rekindle.client.handle": ("Handle", "Stream"),
    "rekindle.core.device.sampling.processing": ("LogitsRow",),
    "rekindle.core.errors": (
        "BatchFailed",
        "CheckpointError",
        "ConfigError",
        "ConstraintFailed",
        "EngineFailed",
        "HostLost",
        "HostRefused",
        "InvalidBatch",
        "InvalidData",
        "InvalidRequest",
        "LogitsNotFinite",
        "ModelError",
        "ModelNotFound",
        "ModelTooLarge",
        "NotRestored",
        "NoWeights",
        "OutOfMemory",
        "ParametersIgnored",
        "PromptTooLong",
        "QueueFull",
        "RekindleError",
        "ReplicaLost",
        "RequestCancelled",
        "SessionClosed",
        "SessionError",
        "StepTimeout",
        "StorageError",
        "UnsafeStorage",
        "UnsupportedModel",
        "WeightsChanged",
    ),
    "rekindle.core.messages.record": ("MessageRecord",),
    "rekindle.core.policy": ("Candidate",),
    "rekindle.core.request.activations.steering": ("Patch", "Steering"),
    "rekindle.core.request.figures": ("CachedTokens",),
    "rekindle.core.request.repetition": ("RepetitionLimit",),
    "rekindle.core.request.tokens": ("Piece", "TokenLogprob"),
    "rekindle.formats.families.reading": ("Family",),
    "rekindle.formats.response": ("Part", "ToolCall"),
    "rekindle.hosts.hosts": ("Hosts",),
    "rekindle.mapping.results": ("MapDecisions", "MapResults"),
    "rekindle.replicas.ray": ("Ray",),
    "rekindle.results.answers": ("Answers",),
    "rekindle.results.bench": ("Bench",),
    "rekindle.results.comparison": ("Comparison",),
    "rekindle.results.facts.figures": ("Timings", "Usage"),
    "rekindle.results.facts.settings": ("SamplingParams", "Settings"),
    "rekindle.results.facts.stats": ("Stats",),
    "rekindle.results.generation": ("Generation",),
    "rekindle.results.inspection.activations": ("Activations",),
    "rekindle.results.inspection.attention": ("ImageAttention",),
    "rekindle.results.inspection.lens": ("LogitLens",),
    "rekindle.results.local_models": ("LocalModel", "LocalModels"),
    "rekindle.results.scores.classes": ("Classification",),
    "rekindle.results.scores.decision": ("Decision", "Decisions"),
    "rekindle.results.scores.masked_words": ("MaskedWords",),
    "rekindle.results.scores.options": ("Scores",),
    "rekindle.results.scores.perplexity": ("Perplexity",),
    "rekindle.results.scores.questions": ("Choice", "Score", "YesNo"),
    "rekindle.results.scores.ranking": ("Ranking",),
    "rekindle.results.scores.spans": ("Spans",),
    "rekindle.results.tool_run": ("ToolResult", "ToolRun", "ToolStep"),
    "rekindle.session.models": ("models",),
    "rekindle.session.opening": ("open", "open_sync"),
    "rekindle.session.prefix": ("Prefix",),
    "rekindle.session.serving": ("serve", "serve_sync"),
    "rekindle.session.session": ("Session",),
    "rekindle.settings.route": ("LaneLoad",),
    "rekindle.settings.server": ("ServerSettings",),
    "rekindle.views.cache.view": ("CachedPath", "CacheView"),
    "rekindle.views.explanation": ("Explanation",),
}
"""The public names by module, which the first use of one of its names imports."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

_OPENING = "a model is opened by session = await rekindle.open(model)"
_OF_VLLM = "scripts of vLLM run with `from rekindle.vllm import LLM, SamplingParams`"
_CURES = {
    ("AsyncLLM", "AsyncLLMEngine", "LLM", "LLMEngine"): f"{_OPENING}; {_OF_VLLM}",
    ("AutoModel", "AutoModelForCausalLM", "Engine", "Llama", "Model", "from_pretrained", "load", "load_model",
     "pipeline"): _OPENING,
    ("AutoTokenizer", "Tokenizer"): "session.tokenizer is the tokenizer of an open model",
    ("Client", "AsyncClient", "OpenAI", "AsyncOpenAI"): (
        "session = await rekindle.open() answers in this process; session.serve() serves clients of OpenAI's API"
    ),
    ("list", "list_models", "local_models", "ls"): (
        "rekindle.models() lists the models of this machine, and the command `rekindle models` those that fit it"
    ),
    ("download", "pull", "snapshot_download"): (
        'await rekindle.open("owner/name") downloads a model; rekindle.models() lists those that are here'
    ),
    ("delete", "ps", "rm"): "the command `rekindle cache` lists and removes stored files",
    ("version", "VERSION"): "it is rekindle.__version__",
}  # fmt: skip
"""Names of other libraries, with the ways here."""


def __getattr__(name: str) -> Any:
    """Import the module of a public name at its first use, or raise AttributeError with a cure."""
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    if (home := _HOME_OF.get(name)) is not None:
        from rekindle.cli.starting import imported

        value = globals()[name] = getattr(imported(home), name)
        return value
    if name.startswith("_"):
        raise AttributeError(f"module 'rekindle' has no attribute {name!r}", name=name)
    from rekindle.core.tracebacks import with_short_traceback

    text = f"module 'rekindle' has no attribute {name!r}{_cure(name)}"
    caller = sys._getframe(1)
    if caller.f_code.co_code[caller.f_lasti] == opmap["IMPORT_FROM"]:  # which would drop the text of an AttributeError
        raise with_short_traceback(ImportError(f"cannot import {name!r} from 'rekindle'{_cure(name)}", name="rekindle"))
    raise with_short_traceback(AttributeError(text, name=name))


def _cure(name: str) -> str:
    """Return the end of a message about an unknown name of the package."""
    for names, cure in _CURES.items():
        if name in names:
            return f"; {cure}"
    if find_spec(f"{__name__}.{name}") is not None:  # also at `from rekindle import module`, which looks here first
        return f"; it is a module: import {__name__}.{name}"
    from rekindle.core.keywords import likely

    if hasattr(__getattr__("Session"), name):
        return f"; it belongs to a session: session = await rekindle.open(), then session.{name}"
    hint = likely(name, __all__)
    return hint and f"; {hint}"


def load_ipython_extension(ipython: Any) -> None:
    """Add the cell magic `%%rekindle` to IPython; called by `%load_ext rekindle`."""
    import_module("rekindle.session.magic").register(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Remove the cell magic; called by `%unload_ext rekindle`."""
    import_module("rekindle.session.magic").unregister(ipython)


def __dir__() -> list[str]:
    """Return the public names only; completion would otherwise list all imported modules."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
