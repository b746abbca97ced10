"""Models on the Hugging Face hub, by name and revision, through the hub's library and cache."""

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final

from rekindle.core.checkpoints.embedded import NAME
from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.errors import ConfigError, ModelNotFound

_NAME: Final = r"(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+)"
_GGUF: Final = r"(?P<file>(?:[\w.+-]+/)*[\w.+-]+\.gguf)"
_PATTERN: Final = re.compile(rf"{_NAME}(?:/{_GGUF})?(?:@(?P<revision>[\w./-]+))?", re.IGNORECASE)
_SPLIT: Final = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)
_FILES: Final = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_EMBEDDED: Final = f"huggingfacetb/{NAME}"
_IGNORED: Final = ["*/[!c]*", "*/*.safetensors", "consolidated*"]
"""Copies of the weights in other formats; of what is in folders, small files such as 1_Pooling/config.json stay."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub.

    Attributes:
        name: `owner/name` of the repository.
        file: the GGUF file in it that is meant; None for the directory that the repository is.
        revision: a branch, a tag, or a commit; None for the default branch.
    """

    name: str
    file: str | None
    revision: str | None

    @classmethod
    def of(cls, model: str, revision: str | None = None) -> "HubModel | None":
        """Return the model that is meant by `owner/name` or `owner/name/file.gguf`, either with or without `@revision`.

        Return None for what cannot be one.

        Raises:
            ConfigError: the model names a revision itself, and another one is given.
        """
        found = _PATTERN.fullmatch(model)
        if found is None or (found["file"] is None and found["name"].lower().endswith(".gguf")):
            return None
        if revision is not None and found["revision"] not in (None, revision):
            raise ConfigError(f"{model!r} names a revision, and revision={revision!r} another one: leave one out")
        return cls(found["name"], found["file"], revision or found["revision"])

    def __str__(self) -> str:
        return "/".join(filter(None, (self.name, self.file))) + (f"@{self.revision}" if self.revision else "")

    @property
    def patterns(self) -> dict[str, Any]:
        """The files to download, as the library takes them: of a GGUF file that was split, all of its files."""
        if self.file is None:
            return {"allow_patterns": _FILES, "ignore_patterns": _IGNORED}
        return {"allow_patterns": [_SPLIT.sub(r"-*-of-\1.gguf", self.file)]}


def download(model: HubModel, report: Report) -> Path:
    """Download a model, unless it is in the hub library's cache; return its directory there, or its GGUF file.

    Without a network, or with HF_HUB_OFFLINE set, a cached model is used as it is.

    Raises:
        ModelNotFound: the hub does not have the model or denies access, or it cannot be reached and nothing is cached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError
    from tqdm.std import tqdm

    report(Progress(f"asking the Hugging Face hub for {model}", 0, None, "files"))
    snapshot = partial(snapshot_download, model.name, revision=model.revision, **model.patterns)
    try:
        return _there(model, Path(snapshot(tqdm_class=_reporting(tqdm, str(model), report))))
    except ModelNotFound:
        raise
    except Exception as error:  # the errors of the library's HTTP client, which differs between its versions
        with suppress(HFValidationError, OSError):  # the library itself does not look there when a proxy fails
            return _there(model, Path(snapshot(local_files_only=True)))
        why = str(error).partition("\n")[0]  # what follows repeats the words below
        here = f". {NAME!r} is this model, quantized, and needs no hub" if model.name.lower() == _EMBEDDED else ""
        raise ModelNotFound(
            f"{str(model)!r} is no directory here, could not be downloaded from the Hugging Face hub, and is not "
            f"cached ({type(error).__name__}: {why})\nCheck the name, the revision and the network, log in with "
            f"`hf auth login` if the model is gated, or give the path of a model directory or GGUF file instead{here}"
        ) from error


def _there(model: HubModel, directory: Path) -> Path:
    """Return the path in a downloaded directory that was asked for.

    Raises:
        ModelNotFound: it is not in there.
    """
    path = directory / (model.file or "config.json")
    if not path.is_file():
        held = ", ".join(_gguf_files(model)) or "none that can be listed now"
        raise ModelNotFound(
            f"{model} has no {model.file or 'config.json'}. GGUF files are opened by their names, as in "
            f"{model.name}/FILE.gguf; its files are: {held}"
        )
    return path if model.file else directory


def _gguf_files(model: HubModel) -> list[str]:
    """Return the GGUF files of a repository; none if the hub cannot be asked."""
    from huggingface_hub import list_repo_files

    with suppress(Exception):  # the errors of the library's HTTP client, which differs between its versions
        return sorted(file for file in list_repo_files(model.name, revision=model.revision) if file.endswith(".gguf"))
    return []


def _reporting(base: Any, model: str, report: Report) -> Any:
    """Return a progress bar class that draws nothing, and reports the bytes of the bar that counts the most."""
    most = [0]

    class DownloadBar(base):  # type: ignore[misc]  # tqdm has no types, and is imported only when a model is downloaded
        monitor_interval = 0  # no thread to redraw a bar that is never drawn

        def __init__(self, *args: Any, **kwargs: Any) -> None:  # tqdm's own signature
            super().__init__(*args, **{**kwargs, "file": StringIO()})

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            if self.unit == "B" and self.n >= most[0]:
                most[0] = int(self.n)
                report(Progress(f"downloading {model}", most[0], int(self.total) if self.total else None))
            return True

    return DownloadBar
