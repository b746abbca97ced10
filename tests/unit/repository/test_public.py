"""Users may rely on the names of the package, and on one order of options wherever they are listed."""

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle import Chat, SamplingParams, ServerSettings, Settings
from rekindle.core import errors
from rekindle.core.request.accepted import CHECKS
from rekindle.core.request.params import SamplingOptions
from rekindle.settings.engine import SettingsOptions
from rekindle.settings.server import ServerOptions
from rekindle.vllm import LLM

PUBLIC = """
Activations Answers BatchFailed Bench CacheView CachedPath CachedTokens Candidate Chat CheckpointError Choice
Classification Comparison ConfigError ConstraintFailed Decision Decisions EngineFailed Explanation Family Generation
Handle HostLost HostRefused Hosts ImageAttention InvalidBatch InvalidData InvalidRequest LaneLoad LocalModel LocalModels
LogitLens LogitsNotFinite LogitsRow MapDecisions MapResults MaskedWords MessageRecord ModelError ModelNotFound
ModelTooLarge NoWeights NotRestored OutOfMemory ParametersIgnored Part Patch Perplexity Piece Prefix PromptTooLong
QueueFull Ranking Ray RekindleError RepetitionLimit ReplicaLost RequestCancelled SamplingParams Score Scores
ServerSettings Session SessionClosed SessionError Settings Spans Stats Steering StepTimeout StorageError Stream Timings
TokenLogprob ToolCall ToolResult ToolRun ToolStep UnsafeStorage UnsupportedModel Usage WeightsChanged YesNo models open
open_sync serve serve_sync
"""


def test_these_names_are_public() -> None:
    assert rekindle.__all__ == PUBLIC.split()
    assert sorted(rekindle.__all__) == rekindle.__all__
    assert all(hasattr(rekindle, name) for name in rekindle.__all__)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'rekindle' has no attribute 'Handed'"):
        rekindle.Handed  # noqa: B018


def test_each_public_name_has_one_home() -> None:
    """Type checkers read the imports of `rekindle`, and its table of homes is used at run time."""
    tree = ast.parse(Path(rekindle.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: node.module for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == rekindle._HOME_OF
    assert sorted(typed) == sorted(rekindle.__all__)
    assert all(hasattr(rekindle, name) for name in rekindle.__all__)


def test_every_error_is_public_and_in_the_tree_of_its_module() -> None:
    tree = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    raised = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert {*tree, "RekindleError", "ParametersIgnored"} == set(raised)
    assert set(raised) <= set(rekindle.__all__)


def test_classes_show_no_hook_of_attributes() -> None:
    """IPython completes no keyword of an object whose class shows a `__getattr__`; those of cures are on objects."""
    kinds = [value for name in rekindle.__all__ if inspect.isclass(value := getattr(rekindle, name))]
    assert [kind for kind in (*kinds, LLM) if getattr(kind, "__getattr__", None) is not None] == []
    with pytest.raises(AttributeError, match="'Chat' object has no attribute 'clear'; "):
        Chat.__new__(Chat).clear  # type: ignore[attr-defined]  # noqa: B018


def test_keywords_of_public_methods_are_spelled_out() -> None:
    """Completion, help and the site's builder read each keyword; `**options: Unpack[...]` ends the builder."""
    owners = [value for name in rekindle.__all__ if inspect.isclass(value := getattr(rekindle, name))]
    functions = {
        f"{owner.__name__}.{name}": value
        for owner in owners
        for name, value in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_")
    }
    assert len(functions) > 100
    bundled = [
        name
        for name, function in functions.items()
        if any("Options" in str(each.annotation) for each in inspect.signature(function).parameters.values())
    ]
    assert bundled == []


def documented(record: type[Any]) -> list[str]:
    """Return the names in the `Attributes:` of a docstring."""
    attributes = (record.__doc__ or "").partition("Attributes:")[2].partition("Raises:")[0]
    return re.findall(r"^        (\w+): ", attributes, re.MULTILINE)


def test_sampling_parameters_are_listed_alike_where_they_are_typed_kept_checked_and_explained() -> None:
    names = [field.name for field in fields(SamplingParams)]
    assert list(SamplingOptions.__annotations__) == list(CHECKS) == documented(SamplingParams) == names


def test_settings_are_listed_alike_where_they_are_typed_kept_and_explained() -> None:
    for settings, options in ((Settings, SettingsOptions), (ServerSettings, ServerOptions)):
        names = [field.name for field in fields(settings)]
        assert list(options.__annotations__) == documented(settings) == names
