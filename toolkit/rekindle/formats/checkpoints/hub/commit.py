"""A commit of a model on the hub: its files, and the missing ones in the hub's cache."""

import glob
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

from rekindle.core.concurrency.progress import Progress, Report
from rekindle.formats.checkpoints.hub.cached import PATIENCE, is_cached
from rekindle.formats.checkpoints.hub.names import HubModel

_T = TypeVar("_T")
_TRIES: Final = 3
"""Most attempts of a question to a busy hub."""
_LONGEST_WAIT: Final = 60
"""Most seconds to wait before a question is asked again."""
_QUESTIONS: Final = 8
"""Questions about files at a time."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A missing file of a commit in the hub's cache.

    Attributes:
        path: its path in the repository.
        size: its bytes; None if the hub does not tell.
        blob: its place in the cache, named by a digest of its content.
        by_xet: whether the hub's library transfers it by xet.
    """

    path: str
    size: int | None
    blob: Path
    by_xet: bool

    @property
    def here(self) -> int:
        """The received bytes of the file."""
        if self.blob.exists():
            return self.blob.stat().st_size
        return max((path.stat().st_size for path in self.blob.parent.glob(f"{self.blob.name}*.incomplete")), default=0)


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a model on the hub.

    Attributes:
        model: the model.
        digest: the commit's digest.
        paths: the paths in the repository for a session.
        gguf_paths: the paths of all GGUF files in the repository.
        numbers: the count of numbers in its safetensors files by data type, as in {"BF16": 135}; empty if unknown.
        repository: the repository's directory in the hub's cache.
        token: a token for the hub; None for the one of the hub's library.
    """

    model: HubModel
    digest: str
    paths: Sequence[str]
    gguf_paths: Sequence[str]
    numbers: Mapping[str, int]
    repository: Path
    token: str | None = field(repr=False)

    @property
    def directory(self) -> Path:
        """The directory with the files of the commit."""
        return self.repository / "snapshots" / self.digest

    @property
    def is_cached(self) -> bool:
        """True if the cache has all files, and knows the commit by the name of its branch or tag."""
        revision = self.model.revision or "main"
        ref = self.repository / "refs" / revision
        is_known = revision == self.digest or (ref.is_file() and ref.read_text(encoding="utf-8") == self.digest)
        return is_known and not self.absent

    @property
    def absent(self) -> list[str]:
        """The missing paths in the cache."""
        return [path for path in self.paths if not (self.directory / path).exists()]

    def snapshot(self, bars: Any) -> None:
        """Download the missing files by the hub's library, with a class of progress bars, and link all files."""
        from huggingface_hub import snapshot_download

        patterns = [glob.escape(path) for path in self.paths]
        revision, token = self.model.revision, self.token
        snapshot_download(self.model.name, revision=revision, token=token, allow_patterns=patterns, tqdm_class=bars)


def find_commit(model: HubModel, token: str | None, report: Report) -> Commit:
    """Ask the hub for the newest commit of a model; raises errors of the hub's library."""
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]  # a public name

    ask = partial(HfApi().model_info, model.name, revision=model.revision, timeout=PATIENCE, token=token)
    info = ask() if is_cached(model) else with_waits(ask, report)
    names = [file.rfilename for file in info.siblings or ()]
    paths = list(filter_repo_objects(names, **model.patterns))
    if model.file is None and "config.json" not in names:  # the weights are for another program
        paths = [path for path in paths if not path.endswith(".safetensors")]
    repository = Path(HF_HUB_CACHE) / f"models--{model.name.replace('/', '--')}"
    gguf_paths = sorted(name for name in names if name.endswith(".gguf"))
    numbers = getattr(info.safetensors, "parameters", None) or {}
    return Commit(model, str(info.sha), paths, gguf_paths, numbers, repository, token)


def absent_files(commit: Commit, report: Report) -> list[HubFile]:
    """Ask the hub for the sizes and digests of the missing files; raises errors of the hub's library."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils._runtime import is_xet_available

    def describe(path: str) -> HubFile:
        url = hf_hub_url(commit.model.name, path, revision=commit.digest)
        facts = with_waits(partial(get_hf_file_metadata, url, token=commit.token, timeout=PATIENCE), report)
        by_xet = facts.xet_file_data is not None and is_xet_available()
        return HubFile(path, facts.size, commit.repository / "blobs" / str(facts.etag), by_xet)

    with ThreadPoolExecutor(_QUESTIONS) as pool:
        return [file for file in pool.map(describe, commit.absent) if not file.blob.exists()]


def response_of(error: BaseException | None) -> Any:
    """Return the hub's answer behind an error or one of its causes; None without one."""
    while error is not None and getattr(error, "response", None) is None:
        error = error.__cause__
    return getattr(error, "response", None)


def retry_after(error: BaseException) -> int | None:
    """Return the seconds after which a busy hub wants to be asked again; None for another error of its library.

    A hub that limits requests (429), or is out of order (5xx), is busy.
    """
    response = response_of(error)
    status = 0 if response is None else response.status_code
    if status not in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS) and status < 500:
        return None
    text = str(response.headers.get("Retry-After", ""))
    return int(text) if text.isdecimal() else 1


def with_waits(ask: Callable[[], _T], report: Report) -> _T:
    """Return the answer to a question, asked again when a busy hub says so, if that is soon."""
    for rest in range(_TRIES - 1, -1, -1):
        try:
            return ask()
        except OSError as error:
            seconds = retry_after(error)
            if not rest or seconds is None or seconds > _LONGEST_WAIT:
                raise
        for passed in range(seconds):
            report(Progress("waiting, as the Hugging Face hub is busy", passed, seconds, "s"))
            time.sleep(1)
    raise AssertionError("the last try returns or raises")
