"""Models on the Hugging Face hub, downloaded by name and revision through the hub's library and cache."""

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final

from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.errors import ConfigError, ModelNotFound
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.formats.checkpoints.name_hints import WEIGHT_SUFFIXES

_NAME: Final = r"(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+)"
_GGUF: Final = r"(?P<file>(?:[\w.+-]+/)*[\w.+-]+\.gguf)"
_PATTERN: Final = re.compile(rf"{_NAME}(?:/{_GGUF})?(?:@(?P<revision>[\w./-]+))?", re.IGNORECASE)
_SPLIT: Final = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)
_FILES: Final = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_EMBEDDED: Final = f"huggingfacetb/{NAME}"
_IGNORED: Final = ["*/[!c]*.json", "*/*.safetensors", "*/tokenizer.model", "consolidated*"]
"""Weights in other formats, and files in folders, except 1_Pooling/config.json and chat templates."""
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
"""Seconds for the hub to answer whether it has a model."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the hub.

    Attributes:
        name: `owner/name` of the repository.
        file: path of a GGUF file in the repository, or None for the whole directory.
        revision: a branch, a tag, or a commit; None for the default branch.
    """

    name: str
    file: str | None
    revision: str | None

    @classmethod
    def of(cls, model: str, revision: str | None = None) -> "HubModel | None":
        """Parse `owner/name` or `owner/name/file.gguf`, with an optional `@revision`.

        Return None if the text does not have this form.

        Raises:
            ConfigError: the text contains a revision, and `revision` is a different one.
        """
        match = _PATTERN.fullmatch(model)
        if match is None or (match["file"] is None and match["name"].lower().endswith(WEIGHT_SUFFIXES)):
            return None
        if revision is not None and match["revision"] not in (None, revision):
            raise ConfigError(f"{model!r} names a revision, and revision={revision!r} another one: omit one of them")
        return cls(match["name"], match["file"], revision or match["revision"])

    def __str__(self) -> str:
        return "/".join(filter(None, (self.name, self.file))) + (f"@{self.revision}" if self.revision else "")

    @property
    def patterns(self) -> dict[str, Any]:
        """Download filters for the hub library. For a split GGUF file they match all of its parts."""
        if self.file is None:
            return {"allow_patterns": _FILES, "ignore_patterns": _IGNORED}
        return {"allow_patterns": [_SPLIT.sub(r"-*-of-\1.gguf", self.file)]}


def download(model: HubModel, report: Report) -> Path:
    """Download a model unless it is cached. Return its directory in the hub cache, or its GGUF file.

    Without a network, or with HF_HUB_OFFLINE set, the cached model is used without a check for updates.

    Raises:
        ModelNotFound: the hub does not have the model or denies access, or it is unreachable and nothing is cached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
    from tqdm.std import tqdm

    report(Progress(f"asking the Hugging Face hub for {model}", 0, None, "files"))
    snapshot = partial(snapshot_download, model.name, revision=model.revision, **model.patterns)
    try:
        return _requested_path(model, Path(snapshot(tqdm_class=_progress_bar(tqdm, str(model), report))))
    except ModelNotFound:
        raise
    except Exception as error:  # the library's HTTP errors differ between its versions
        with suppress(HFValidationError, OSError):  # the library does not try its cache if a proxy fails
            return _requested_path(model, Path(snapshot(local_files_only=True)))
        first_line = str(error).partition("\n")[0]  # later lines repeat the advice below
        offline = isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled))
        reason = _offline_reason() if offline else f"{type(error).__name__}: {first_line}"
        here = (
            f"\n- or open {NAME!r}, this model quantized, which needs no hub" if model.name.lower() == _EMBEDDED else ""
        )
        raise ModelNotFound(
            f"{str(model)!r} could not be downloaded from the Hugging Face hub, and is not cached.\n"
            f"{reason}\n"
            "- Check the name, the revision and the network\n"
            "- log in with `hf auth login` if the model is gated\n"
            f"- or open the path of a model directory or of a GGUF file{_beside(model)}{here}"
        ) from error


def _offline_reason() -> str:
    """Return the reason for a hub that was not asked, or did not answer, as a sentence."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return "HF_HUB_OFFLINE is set, so the hub was not asked." if HF_HUB_OFFLINE else "The hub did not answer."


def _beside(model: HubModel) -> str:
    """Return a remark if the name may be meant as a path, since its first part is a folder here."""
    folder = Path(model.name).parent
    return f": the folder {folder.absolute()} has no {Path(model.name).name!r}" if folder.is_dir() else ""


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
    from tqdm.std import tqdm

    with suppress(Exception):  # the library's errors differ between its versions
        snapshot_download(
            model.name,
            revision=model.revision,
            local_dir=directory,
            allow_patterns=_SETTINGS,
            etag_timeout=PATIENCE,
            tqdm_class=_progress_bar(tqdm, str(model), lambda _: None),
        )
        return (directory / "config.json").is_file()
    return False


def is_reachable(model: HubModel) -> bool:
    """Return True if the hub answers that it has a model."""
    from huggingface_hub import model_info

    with suppress(Exception):  # the library's errors differ between its versions
        model_info(model.name, revision=model.revision, timeout=PATIENCE)
        return True
    return False


def _requested_path(model: HubModel, directory: Path) -> Path:
    """Return the requested path in a downloaded directory.

    Raises:
        ModelNotFound: the file does not exist.
    """
    path = directory / (model.file or "config.json")
    if not path.is_file():
        from rekindle.formats.checkpoints.huggingface.foreign import advice_for

        if model.file is None and (advice := advice_for(directory)):
            raise ModelNotFound(f"{model} has no config.json; {advice}")
        files = ", ".join(_gguf_files(model)) or "none that can be listed now"
        raise ModelNotFound(
            f"{model} has no {model.file or 'config.json'}. Open a GGUF file by its name, as in "
            f"{model.name}/FILE.gguf; the repository has: {files}"
        )
    return path if model.file else directory


def _gguf_files(model: HubModel) -> list[str]:
    """Return the names of a repository's GGUF files; empty if the hub is unreachable."""
    from huggingface_hub import list_repo_files

    with suppress(Exception):  # the library's HTTP errors differ between its versions
        return sorted(file for file in list_repo_files(model.name, revision=model.revision) if file.endswith(".gguf"))
    return []


def _progress_bar(base: Any, model: str, report: Report) -> Any:
    """Return an invisible progress bar class. It reports the byte count of the furthest bar."""
    furthest = [0]

    class DownloadBar(base):  # type: ignore[misc]  # tqdm has no types, and is imported only for downloads
        monitor_interval = 0  # no redrawing thread

        def __init__(self, *args: Any, **kwargs: Any) -> None:  # tqdm's signature
            super().__init__(*args, **{**kwargs, "file": StringIO()})

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            if self.unit == "B" and self.n >= furthest[0]:
                furthest[0] = int(self.n)
                report(Progress(f"downloading {model}", furthest[0], int(self.total) if self.total else None))
            return True

    return DownloadBar
