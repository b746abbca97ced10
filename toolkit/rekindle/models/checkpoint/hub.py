"""Models on the Hugging Face hub, by `owner/name`, through the hub's own library and cache."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

from rekindle.concurrency.progress import Progress, Report
from rekindle.errors import ModelNotFound

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILES = ["*.json", "*.safetensors", "*.jinja"]
_NOT = ["*/*", "consolidated*"]  # copies of the weights in other formats


def is_hub_id(model: str) -> bool:
    """Whether this could be an `owner/name` of the hub."""
    return _ID.fullmatch(model) is not None


def download_snapshot(model: str, report: Report) -> Path:
    """The directory of a hub model in the hub library's cache, downloaded where it is not there yet.

    Without a network, or with HF_HUB_OFFLINE set, a model that is in the cache is used as it is.

    Args:
        model: `owner/name`.

    Raises:
        ModelNotFound: the hub does not have it or does not give it, or it cannot be reached and nothing is cached.
    """
    from huggingface_hub import snapshot_download
    from tqdm.std import tqdm

    try:
        place = snapshot_download(
            model, allow_patterns=_FILES, ignore_patterns=_NOT, tqdm_class=_reporting(tqdm, model, report)
        )
    except Exception as error:  # its HTTP client's own errors come through, and which client that is has changed
        cached = _cached(model)
        if cached is None:
            raise ModelNotFound(
                f"{model!r} is no directory here, could not be taken from the Hugging Face hub and is not in its cache "
                f"({type(error).__name__}: {error})\nCheck the name and the network, log in with `hf auth login` if "
                "the model is gated, or give the path of a model directory or GGUF file instead"
            ) from error
        place = cached
    return Path(place)


def _cached(model: str) -> str | None:
    """The library falls back to its cache by itself when a connection fails, but not behind a failing proxy."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return snapshot_download(model, allow_patterns=_FILES, ignore_patterns=_NOT, local_files_only=True)
    except (HFValidationError, OSError):
        return None


def _reporting(base: Any, model: str, report: Report) -> Any:
    """A progress bar that draws nothing and reports the bytes, of which the library counts several bars at once."""
    most = [0]

    class Bar(base):  # type: ignore[misc]  # tqdm has no types, and is imported only when a model is downloaded
        monitor_interval = 0  # no thread to redraw a bar that is never drawn

        def __init__(self, *args: Any, **kwargs: Any) -> None:  # tqdm's own signature
            super().__init__(*args, **{**kwargs, "file": StringIO()})

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            if self.unit == "B" and self.n >= most[0]:
                most[0] = int(self.n)
                report(Progress(f"downloading {model}", most[0], int(self.total) if self.total else None))
            return True

    return Bar
