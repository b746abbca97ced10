"""Models in the cache of the hub's library, and short questions to the hub."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from rekindle.core.concurrency.progress import silent
from rekindle.formats.checkpoints.hub.names import HubModel

_SETTINGS: Final = [
    "config.json",
    "modules.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "chat_template.*",
    "additional_chat_templates/*.jinja",
]
"""Small files about a model: its kind and its chat templates."""
PATIENCE: Final = 10.0
"""Seconds for the hub to answer a question."""


def is_cached(model: HubModel) -> bool:
    """Return True if the hub's cache has a model."""
    return cached_path(model) is not None


def cached_path(model: HubModel) -> Path | None:
    """Return the directory of a model in the hub's cache, or its GGUF file; None if the cache does not have it."""
    from huggingface_hub import snapshot_download

    with suppress(Exception):  # the library's errors differ between its versions
        directory = snapshot_download(model.name, revision=model.revision, local_files_only=True, **model.patterns)
        if Path(directory, model.file or "config.json").is_file():
            return Path(directory, model.file or "")
    return None


def fetch_settings(model: HubModel, directory: Path) -> bool:
    """Download the small files about a model into a directory, besides the hub's cache; return True on success."""
    from huggingface_hub import snapshot_download

    from rekindle.formats.checkpoints.hub.meter import Meter
    from rekindle.formats.checkpoints.hub.watch import watched

    meter = Meter(str(model), silent)
    fetch = partial(
        snapshot_download,
        model.name,
        revision=model.revision,
        local_dir=directory,
        allow_patterns=_SETTINGS,
        etag_timeout=PATIENCE,
        tqdm_class=meter.bar_class(),
    )
    with suppress(Exception):  # the library's errors differ between its versions
        watched(fetch, lambda: meter.here, meter.tell)
        return (directory / "config.json").is_file()
    return False


def is_reachable(model: HubModel) -> bool:
    """Return True if the hub answers that it has a model."""
    from huggingface_hub import model_info

    with suppress(Exception):  # the library's errors differ between its versions
        model_info(model.name, revision=model.revision, timeout=PATIENCE)
        return True
    return False
