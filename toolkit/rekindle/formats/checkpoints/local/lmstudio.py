"""The models of LM Studio: folders publisher/model, with GGUF files or safetensors."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from rekindle.formats.checkpoints.local.model import LocalModel, bytes_of, first_parts, home_directory, missing

PREFIX: Final = "lmstudio:"


def models_directory() -> Path:
    """Return LM Studio's directory of models: from the settings, or else in the home directory."""
    home = _home()
    with suppress(OSError, ValueError, AttributeError, RecursionError, RuntimeError):
        if folder := json.loads((home / "settings.json").read_bytes()).get("downloadsFolder"):
            return Path(str(folder)).expanduser()
    return home / "models"


def lmstudio_models() -> Iterator[LocalModel]:
    """Yield LM Studio's models."""
    root = models_directory()
    for folder in sorted(each for each in root.glob("*/*") if each.is_dir()):
        name = PREFIX + folder.relative_to(root).as_posix()
        files = first_parts([each for each in folder.iterdir() if each.suffix.lower() == ".gguf"])
        paths = {name if len(files) == 1 else f"{name}/{file.name}": file for file in files}
        if (folder / "config.json").is_file():
            paths = {**{f"{name}/{file.name}": file for file in files}, name: folder}
        for each, path in sorted(paths.items()):
            yield LocalModel(each, path, bytes_of(path))


def find_in_lmstudio(name: str) -> Path:
    """Return the GGUF file or the directory of a model of LM Studio, by publisher/model or publisher/model/file.gguf.

    Raises:
        ModelNotFound: LM Studio has no such model, or several files in its folder.
    """
    models = list(lmstudio_models())
    target = f"{PREFIX}{name}".casefold()
    for model in models:
        if target in (model.name.casefold(), f"{model.name}/{model.path.name}".casefold()):
            return model.path
    remedy = "`lms get` downloads models into folders of this form: publisher/model/file.gguf"
    raise missing(PREFIX + name, "LM Studio", [models_directory()], [model.name for model in models], remedy)


def _home() -> Path:
    """Return LM Studio's home directory: from the pointer file, or else the first existing one."""
    with suppress(OSError, ValueError):
        pointed = (home_directory() / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip()
        if pointed and Path(pointed).is_dir():
            return Path(pointed)
    own, former = home_directory() / ".lmstudio", home_directory() / ".cache" / "lm-studio"
    return former if former.is_dir() and not own.is_dir() else own
