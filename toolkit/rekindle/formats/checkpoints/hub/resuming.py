"""Transfers by HTTP from the last byte of an earlier one, also of another process.

The hub's library resumes within one call alone since its version 1.18, and discards what it has when the call ends.
"""

import errno
import hashlib
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from rekindle.core.errors import RekindleError
from rekindle.formats.checkpoints.hub.commit import Commit, HubFile, response_of, retry_after
from rekindle.formats.checkpoints.hub.meter import Abandoned, Meter

_LARGE: Final = 1 << 20
"""Fewest bytes of a resumed file."""
_TRANSFERS: Final = 4
"""Files at a time."""
_PAUSE_SECONDS: Final = 4.0
"""Seconds since the last byte after which the library has tried again: it waits a second before each try."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_DIGEST: Final = re.compile(r"[\w-]{16,128}")
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Numbers of errors of a full disk."""


class Interrupted(Exception):
    """The transfer of a file stopped, and its error is the cause.

    Attributes:
        file: the file.
    """

    def __init__(self, file: HubFile):
        super().__init__(file.path)
        self.file = file


def resumable(files: Sequence[HubFile]) -> list[HubFile]:
    """Return the large files with a digest of their content."""
    return [file for file in files if (file.size or 0) >= _LARGE and _DIGEST.fullmatch(file.blob.name)]


def transfer(commit: Commit, files: Sequence[HubFile], meter: Meter) -> None:
    """Transfer files into the hub's cache, where its library finds their content; raises Interrupted."""
    with ThreadPoolExecutor(_TRANSFERS) as pool:
        for each in as_completed([pool.submit(_transfer, commit, file, meter) for file in files]):
            each.result()


def _transfer(commit: Commit, file: HubFile, meter: Meter) -> None:
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # a public name

    lock = commit.repository.parent / ".locks" / commit.repository.name / f"{file.blob.name}.lock"
    partial = file.blob.with_name(f"{file.blob.name}.incomplete")  # the library's name before 1.18
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file.blob.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            if not file.blob.exists():
                _complete(commit, file, partial, meter)
                os.replace(partial, file.blob)
    except (Abandoned, RekindleError):
        raise
    except Exception as error:
        meter.closed = True  # ends the transfers of the other files
        raise Interrupted(file) from error


def _complete(commit: Commit, file: HubFile, partial: Path, meter: Meter) -> None:
    """Append the missing bytes of a file, and begin it once more if its parts do not have the announced digest.

    Raises:
        OSError: the content is not the one that the hub announced.
        Others: errors of the hub's library.
    """
    for _ in range(2):
        parts = _append_parts(commit, file, partial, meter)
        if parts == 1 or not _SHA256.fullmatch(file.blob.name) or _digest(partial) == file.blob.name:
            return
        _discard(partial, meter)
    raise OSError("the bytes have another SHA-256 than the hub announced, and were discarded")


def _append_parts(commit: Commit, file: HubFile, partial: Path, meter: Meter) -> int:
    """Append the missing bytes of a file, as long as any come; return the number of parts, the first included."""
    assert file.size is not None, "only files of a known size are resumed"
    if _length(partial) > file.size:
        _discard(partial, meter)
    here, parts = _length(partial), 1 if _length(partial) else 0
    while here < file.size:
        parts, before = parts + 1, here
        try:
            _append(commit, file, partial, here, meter)
        except (Abandoned, RekindleError):
            raise
        except Exception as error:
            has_stopped = _length(partial) <= before or time.monotonic() - meter.moved > _PAUSE_SECONDS
            if has_stopped or is_final(error):
                raise
        here = _length(partial)
    return parts


def _append(commit: Commit, file: HubFile, partial: Path, here: int, meter: Meter) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # a public name

    url = hf_hub_url(commit.model.name, file.path, revision=commit.digest)
    headers = build_hf_headers(token=commit.token)
    with partial.open("ab") as stream:
        http_get(url, stream, resume_size=here, headers=headers, expected_size=file.size, _tqdm_bar=meter)  # type: ignore[arg-type]


def is_final(error: BaseException) -> bool:
    """Return True for an error of each further attempt: a refusal of the hub, or a full disk."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    return response_of(error) is not None and retry_after(error) is None


def _discard(partial: Path, meter: Meter) -> None:
    meter.update(-_length(partial))
    partial.unlink()


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
