"""Download of a model: by xet where the hub has it, else by HTTP, from the last byte on."""

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.errors import ModelNotFound, RekindleError
from rekindle.formats.checkpoints.hub.commit import Commit, HubFile, absent_files, find_commit, response_of, with_waits
from rekindle.formats.checkpoints.hub.meter import Meter
from rekindle.formats.checkpoints.hub.names import HubModel
from rekindle.formats.checkpoints.hub.refusals import DiskTooSmall, refusal
from rekindle.formats.checkpoints.hub.resuming import Interrupted, is_final, resumable, transfer
from rekindle.formats.checkpoints.hub.stored import Admission, StoredWeights
from rekindle.formats.checkpoints.hub.tokens import has_token, notebook_token
from rekindle.formats.checkpoints.hub.watch import Stalled, watched
from rekindle.formats.checkpoints.name_hints import WEIGHT_SUFFIXES


def download(model: HubModel, report: Report, admit: Admission | None = None) -> Path:
    """Download a model unless it is cached. Return its directory in the hub cache, or its GGUF file.

    Without a network, or with HF_HUB_OFFLINE set, the cached model is used without a check for updates.

    Raises:
        ModelNotFound: the hub does not have the model or denies access, or it is unreachable and nothing is cached.
        StorageError: the disk of the hub's cache is too small.
        Others: errors of `admit`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    report(Progress(f"asking the Hugging Face hub for {model}", 0, None, "files"))
    try:
        commit = _with_token(model, report, admit)
    except RekindleError:
        raise
    except Interrupted as error:  # what the cache has of this commit is incomplete
        raise refusal(model, error) from error
    except Exception as error:  # the library's HTTP errors differ between its versions
        with suppress(HFValidationError, OSError):  # the library does not try its cache if a proxy fails
            local = snapshot_download(model.name, revision=model.revision, local_files_only=True, **model.patterns)
            return _requested_path(model, Path(local), ())
        raise refusal(model, error) from error
    return _requested_path(model, commit.directory, commit.gguf_paths)


def _with_token(model: HubModel, report: Report, admit: Admission | None) -> Commit:
    """Download a model, again with the token of a notebook's secrets if the hub denies access without one."""
    try:
        return _download(model, None, report, admit)
    except Exception as error:
        denied = getattr(response_of(error), "status_code", None) in (401, 403)
        if denied and not has_token() and (token := notebook_token()) is not None:
            return _download(model, token, report, admit)
        raise


def _download(model: HubModel, token: str | None, report: Report, admit: Admission | None) -> Commit:
    """Download the missing files of a model.

    Raises:
        DiskTooSmall: they need more bytes than are free.
        Interrupted: a transfer stopped.
        Others: errors of `admit`, and of the hub's library by questions before the transfers.
    """
    commit = find_commit(model, token, report)
    if commit.is_cached:
        return commit
    files = absent_files(commit, report)
    if admit is not None:
        weights = [file for file in files if file.path.endswith(WEIGHT_SUFFIXES)]
        admit(StoredWeights(model, _total(weights), commit.numbers))
    _check_disk(commit, files)
    total = _total(files)
    meter = Meter(f"downloading {model}", report, sum(file.here for file in files), total)
    meter.tell()
    try:
        _transfer(commit, files, meter)
    finally:
        meter.closed = True
    return commit


def _total(files: Iterable[HubFile]) -> int | None:
    """Return the bytes of files together; None if the hub does not tell one of them."""
    sizes = [file.size for file in files]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _check_disk(commit: Commit, files: Sequence[HubFile]) -> None:
    """Raise DiskTooSmall if the files need more bytes than are free."""
    needed = sum(max(0, (file.size or 0) - file.here) for file in files)
    place = next(path for path in (commit.repository, *commit.repository.parents) if path.is_dir())
    with suppress(OSError):  # some file systems do not tell
        if needed > (free := shutil.disk_usage(place).free):
            raise DiskTooSmall(needed, free)


def _transfer(commit: Commit, files: Sequence[HubFile], meter: Meter) -> None:
    """Transfer files, those of xet once more by HTTP if xet fails."""
    by_xet = [file for file in files if file.by_xet]
    _resume([file for file in files if not file.by_xet], commit, meter)
    try:
        _snapshot(commit, files, meter)
    except Interrupted as error:
        cause = error.__cause__
        if not by_xet or cause is None or is_final(cause) or (isinstance(cause, Stalled) and cause.goes_on):
            raise
        meter.stage = f"downloading {commit.model} without xet ({cause})"
        meter.here = sum(file.here for file in files)
        _resume(by_xet, commit, meter)
        _snapshot(commit, files, meter)


def _resume(files: Sequence[HubFile], commit: Commit, meter: Meter) -> None:
    """Transfer large files by HTTP, with its own time limits."""
    if large := resumable(files):
        watched(lambda: transfer(commit, large, meter), lambda: None, meter.tell)


def _snapshot(commit: Commit, files: Sequence[HubFile], meter: Meter) -> None:
    """Have the hub's library transfer all other files; raises Interrupted."""
    blobs = commit.repository / "blobs"

    def sign() -> object:
        """Return the bytes of this transfer, and of those by other processes that it may wait for."""
        return meter.here, sorted(path.stat().st_size for path in blobs.glob("*.incomplete"))

    bars = meter.bar_class()
    try:
        with_waits(lambda: watched(lambda: commit.snapshot(bars), sign, meter.tell), meter.report)
    except RekindleError:
        raise
    except Exception as error:
        absent = set(commit.absent)
        if stopped := [file for file in files if file.path in absent]:
            raise Interrupted(max(stopped, key=lambda file: (file.here, file.size or 0))) from error
        raise


def _requested_path(model: HubModel, directory: Path, gguf_paths: Sequence[str]) -> Path:
    """Return the requested path in a downloaded directory.

    Raises:
        ModelNotFound: the file does not exist.
    """
    path = directory / (model.file or "config.json")
    if path.is_file():
        return path if model.file else directory
    from rekindle.formats.checkpoints.huggingface.foreign import advice_for

    if model.file is None and (advice := advice_for(directory)):
        raise ModelNotFound(f"{model} has no config.json; {advice}")
    raise ModelNotFound(
        f"{model} has no {model.file or 'config.json'}. Open a GGUF file by its name, as in {model.name}/FILE.gguf; "
        f"the repository has: {', '.join(gguf_paths) or 'none that can be listed now'}"
    )
