"""Embedding settings of a sentence-transformers directory."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import CheckpointError
from rekindle.core.request.request import Pooling
from rekindle.formats.checkpoints.huggingface.json_file import read_json
from rekindle.formats.checkpoints.uses import Embedding

_MODULES: Final = "modules.json"
_POOLINGS: Final[Mapping[str, Pooling]] = {
    "pooling_mode_lasttoken": "last",
    "lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "mean": "mean",
}
_MODE_PREFIX: Final = "pooling_mode_"


def read_embedding(directory: Path) -> Embedding:
    """Read modules.json, its pooling config, and config_sentence_transformers.json. Missing files are skipped.

    Raises:
        CheckpointError: a file is not valid JSON, or does not have the library's format.
    """
    options = read_json(directory / "config_sentence_transformers.json")
    prompts, default = options.get("prompts") or {}, options.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{directory}/config_sentence_transformers.json: prompts must be texts by name")
    if not (directory / _MODULES).is_file():
        pooling, unsupported_reason = _pooling(read_json(directory / "1_Pooling" / "config.json"))
        return Embedding(pooling, None, prompts, default, unsupported_reason)
    kinds = dict(_modules(directory / _MODULES))
    settings = read_json(directory / kinds["Pooling"] / "config.json") if "Pooling" in kinds else {}
    pooling, unsupported_reason = _pooling(settings)
    extra_layers = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if extra_layers:
        unsupported_reason = f"{_MODULES} has further layers after the model: {', '.join(extra_layers)}"
    return Embedding(pooling, "Normalize" in kinds, prompts, default, unsupported_reason)


def _modules(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the type and folder of each module, in order."""
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        for module in modules:
            yield module["type"].rsplit(".", 1)[-1], module["path"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: expected a list of modules, each with a type and a path") from error


def _pooling(settings: Mapping[str, Any]) -> tuple[Pooling | None, str]:
    """Return the pooling of a config, and the reason if it is not supported."""
    mode = settings.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else list(mode or ())
    modes += [key for key, on in settings.items() if key.startswith(_MODE_PREFIX) and on is True]
    if not modes:
        return None, ""
    names = ", ".join(mode.removeprefix(_MODE_PREFIX) for mode in modes)
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        return None, f"its pooling is {names}; supported are lasttoken and mean_tokens"
    if settings.get("include_prompt", True) is False:
        return _POOLINGS[modes[0]], "its pooling leaves the instruction's tokens out (include_prompt is false)"
    return _POOLINGS[modes[0]], ""
