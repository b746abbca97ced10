"""Models on the Hugging Face hub, by `owner/name` or `owner/name@revision`, through the hub's library and cache."""

import re
from contextlib import suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from rekindle.concurrency.progress import Progress, Report
from rekindle.errors import ModelNotFound

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?")
_FILES = ["*.json", "*.safetensors", "*.jinja"]
_IGNORED = ["*/*", "consolidated*"]  # copies of the weights in other formats


def is_hub_id(model: str) -> bool:
    """Return whether this could be an `owner/name` of the hub, with or without a revision."""
    return _ID.fullmatch(model) is not None


def download_snapshot(model: str, report: Report) -> Path:
    """Download a hub model, unless it is in the hub library's cache; return its directory there.

    A revision is a branch, a tag, or a commit, as in `owner/name@v1.0`. Without a network, or with HF_HUB_OFFLINE set,
    a cached model is used as it is.

    Raises:
        ModelNotFound: the hub does not have the model or denies access, or it cannot be reached and nothing is cached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError
    from tqdm.std import tqdm

    name, _, revision = model.partition("@")
    wanted = {"revision": revision or None, "allow_patterns": _FILES, "ignore_patterns": _IGNORED}
    snapshot = partial(snapshot_download, name, **wanted)
    try:
        return Path(snapshot(tqdm_class=_reporting(tqdm, model, report)))
    except Exception as error:  # the errors of the library's HTTP client, which differs between its versions
        with suppress(HFValidationError, OSError):  # the library itself does not look there when a proxy fails
            return Path(snapshot(local_files_only=True))
        raise ModelNotFound(
            f"{model!r} is no directory here, could not be downloaded from the Hugging Face hub, and is not cached "
            f"({type(error).__name__}: {error})\nCheck the name, the revision and the network, log in with "
            "`hf auth login` if the model is gated, or give the path of a model directory or GGUF file instead"
        ) from error


def _reporting(base: Any, model: str, report: Report) -> Any:
    """Return a progress bar class that draws nothing, and reports the bytes of the bar that counts the most."""
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
