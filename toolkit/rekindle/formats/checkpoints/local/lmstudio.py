"""The models of LM Studio: folders publisher/model, with GGUF files or safetensors."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from rekindle.formats.checkpoints.local.folders import models_of
from rekindle.formats.checkpoints.local.listing import Listing, is_folder
from rekindle.formats.checkpoints.local.model import StoredModel, home_directory, missing

PREFIX: Final = "lmstudio:"


def models_directory() -> Path:
    """Return LM Studio's directory of models: from the settings, or else in the home directory."""
    home = _home()
    with suppress(OSError, ValueError, AttributeError, RecursionError, RuntimeError):
        if folder := json.loads((home / "settings.json").read_bytes()).get("downloadsFolder"):
            return Path(str(folder)).expanduser()
    return home / "models"


def lmstudio_models(listing: Listing) -> Iterator[StoredModel]:
    """Yield LM Studio's models."""
    root = models_directory()
    for folder in filter(is_folder, listing.at_depth(root, 2)):
        path = Path(folder.path)
        yield from models_of(path, listing.entries(path), PREFIX + path.relative_to(root).as_posix())


def find_in_lmstudio(name: str) -> Path:
    """Return the GGUF file or the directory of a model of LM Studio, by publisher/model or publisher/model/file.gguf.

    Raises:
        ModelNotFound: LM Studio has no such model, or several files in its folder.
    """
    listing = Listing()
    models = list(lmstudio_models(listing))
    target = f"{PREFIX}{name}".casefold()
    for model in models:
        if target in (model.name.casefold(), f"{model.name}/{model.path.name}".casefold()):
            return model.path
    remedy = "`lms get` downloads models into folders of this form: publisher/model/file.gguf"
    raise missing(
        PREFIX + name, "LM Studio", [models_directory()], [model.name for model in models], remedy, listing.skipped
    )


def _home() -> Path:
    """Return LM Studio's home directory: from the pointer file, or else the first existing one."""
    with suppress(OSError, ValueError):
        pointed = (home_directory() / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip()
        if pointed and os.path.isdir(pointed):
            return Path(pointed)
    own, former = home_directory() / ".lmstudio", home_directory() / ".cache" / "lm-studio"
    return former if os.path.isdir(former) and not os.path.isdir(own) else own
