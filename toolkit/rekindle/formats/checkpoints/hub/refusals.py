"""Errors for failed downloads, with their reason and a remedy."""

from pathlib import Path
from typing import Final

from rekindle.core.errors import ModelNotFound, RekindleError, StorageError
from rekindle.core.words import size_text
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.formats.checkpoints.hub.commit import response_of, retry_after
from rekindle.formats.checkpoints.hub.names import HubModel
from rekindle.formats.checkpoints.hub.resuming import FULL, Interrupted
from rekindle.formats.checkpoints.hub.tokens import SECRET, has_token, notebook_token
from rekindle.formats.checkpoints.hub.watch import Stalled

_EMBEDDED: Final = f"huggingfacetb/{NAME}"
_PAGE: Final = "https://huggingface.co/settings/tokens"


class DiskTooSmall(Exception):
    """The files of a model need more bytes than are free.

    Attributes:
        needed, free: the bytes.
    """

    def __init__(self, needed: int, free: int):
        super().__init__(f"{needed} bytes needed, {free} free")
        self.needed, self.free = needed, free


def refusal(model: HubModel, error: Exception) -> RekindleError:
    """Return the error for a model neither downloaded nor in the hub's cache."""
    if isinstance(error, DiskTooSmall):
        return _disk(model, f"It needs {size_text(error.needed)} more, and {size_text(error.free)} are free")
    cause = error.__cause__ if isinstance(error, Interrupted) and error.__cause__ else error
    if isinstance(cause, OSError) and cause.errno in FULL:
        return _disk(model, f"The disk is full{_where(error)}")
    reason, remedies = _reason(model, cause)
    if isinstance(error, Interrupted):
        reason = f"{error.file.path} stopped{_where(error)}: {reason}"
        remedies = ["Open the model again: the download goes on from there", *remedies]
    remedies.append(f"or open the path of a model directory or of a GGUF file{_beside(model)}")
    if model.name.lower() == _EMBEDDED:
        remedies.append(f"or open {NAME!r}, this model quantized, which needs no hub")
    return ModelNotFound(
        "\n- ".join(
            [
                f"{str(model)!r} could not be downloaded from the Hugging Face hub, and is not cached.\n{reason}",
                *remedies,
            ]
        )
    )


def _reason(model: HubModel, error: BaseException) -> tuple[str, list[str]]:
    """Return the reason of an error as a sentence, and its remedy."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status = getattr(response_of(error), "status_code", None)
    if isinstance(error, Stalled):
        return f"{error}.", _of_stall(error)
    if isinstance(error, GatedRepoError):
        return _gated(model)
    if isinstance(error, RevisionNotFoundError):
        return f"It has no revision {model.revision!r}.", ["Check the revision: a branch, a tag or a commit"]
    if isinstance(error, RepositoryNotFoundError):
        return f"There is no {model.name!r}, or it is private ({status}).", ["Check the name", *_token_remedies()]
    if status in (401, 403):
        token = "the token" if _sends_token() else "a request without a token"
        return f"The hub refused {token} ({status}{_server_words(error)}).", _token_remedies()
    if (seconds := retry_after(error)) is not None:
        return _busy(error, status, seconds)
    if isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
        return _offline_reason(error), ["Check the name, the revision and the network"]
    first_line = str(error).partition("\n")[0]  # later lines repeat the advice
    return f"{type(error).__name__}: {first_line}", ["Check the name, the revision and the network"]


def _gated(model: HubModel) -> tuple[str, list[str]]:
    from huggingface_hub.constants import ENDPOINT

    page = f"{ENDPOINT}/{model.name}"
    if _sends_token():
        remedy = f"Ask for access at {page}, with the account of the token; a fine-grained one must allow gated models"
        return "The model is gated, and the account of the token has no access to it.", [remedy]
    return "The model is gated, and no token was found.", [f"Accept its conditions at {page}", *_token_remedies()]


def _busy(error: BaseException, status: int | None, seconds: int) -> tuple[str, list[str]]:
    if status == 429:
        again = (
            f"Open the model again in {seconds} s" if "Retry-After" in response_of(error).headers else "Try again later"
        )
        return "The hub limits requests from here (429).", [again, *([] if _sends_token() else _token_remedies())]
    return f"The hub is out of order ({status}{_server_words(error)}).", ["Try again later"]


def _token_remedies() -> list[str]:
    """Return the ways to give a token."""
    return [
        f"Make a token that may read at {_PAGE}, and log in with `hf auth login`, or set {SECRET}",
        f"on Colab, add it under Secrets (the key at the left) as {SECRET}, and allow this notebook to read it",
        f"on Kaggle, add it under Add-ons, Secrets as {SECRET}, and attach it to this notebook",
    ]


def _sends_token() -> bool:
    return has_token() or notebook_token() is not None


def _server_words(error: BaseException) -> str:
    """Return the message of the hub after a comma; empty without one."""
    words = str(getattr(error, "server_message", None) or "").partition("\n")[0]
    return f", {words}" if words else ""


def _of_stall(error: Stalled) -> list[str]:
    if error.goes_on:
        return [
            "Restart the kernel, and set HF_HUB_DISABLE_XET=1 first: this version of huggingface_hub cannot be ended"
        ]
    return ["Check the network"]


def _offline_reason(error: BaseException) -> str:
    """Return the reason for a hub that was not asked, or did not answer, as a sentence."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    return "HF_HUB_OFFLINE is set, so the hub was not asked." if HF_HUB_OFFLINE else "The hub did not answer."


def _where(error: Exception) -> str:
    """Return the bytes of a file until its transfer stopped."""
    if not isinstance(error, Interrupted):
        return ""
    size = "an unknown size" if error.file.size is None else size_text(error.file.size)
    return f" at {size_text(error.file.here)} of {size}"


def _disk(model: HubModel, reason: str) -> StorageError:
    from huggingface_hub.constants import HF_HUB_CACHE

    return StorageError(
        f"{str(model)!r} could not be downloaded from the Hugging Face hub, and is not cached.\n"
        f"{reason} at {HF_HUB_CACHE}\n"
        "- Make room there: `hf cache` lists and deletes models\n"
        "- or set HF_HUB_CACHE to a directory on a larger disk before Python starts\n"
        "- or open a smaller model, or a GGUF file with fewer bits: owner/name/file.gguf"
    )


def _beside(model: HubModel) -> str:
    """Return a remark if the name may be meant as a path, since its first part is a folder here."""
    folder = Path(model.name).parent
    return f": the folder {folder.absolute()} has no {Path(model.name).name!r}" if folder.is_dir() else ""
