"""Saving of a model with the codes that `quantize=` makes of its matrices."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from rekindle.core.concurrency.progress import Report
from rekindle.core.errors import ConfigError, StorageError
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.saving.gguf import save_gguf
from rekindle.formats.saving.safetensors import save_safetensors
from rekindle.formats.weight_file import check_unchanged

SavedFormat = Literal["gguf", "safetensors"]
"""The formats of saved models."""
_SAVERS: Final = {"gguf": save_gguf, "safetensors": save_safetensors}


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A saved model.

    Attributes:
        path: the file or the directory.
        format: its format.
        bytes_before: the bytes of the weight files of the original model.
        bytes_after: the bytes of the new weight file.
    """

    path: Path
    format: SavedFormat
    bytes_before: int
    bytes_after: int


def format_of(path: Path, style: str | None) -> SavedFormat:
    """Return the format of a path: GGUF for a name that ends in .gguf, else safetensors.

    Raises:
        ConfigError: another format was chosen for the path, or an unknown one.
    """
    if style is not None and style not in get_args(SavedFormat):
        raise ConfigError(f"format must be one of {', '.join(get_args(SavedFormat))}, got {style!r}")
    by_name: SavedFormat = "gguf" if path.suffix.lower() == ".gguf" else "safetensors"
    if style is not None and style != by_name:
        rule = "a file, whose name ends in .gguf" if style == "gguf" else "a directory, whose name has no .gguf"
        raise ConfigError(f"a model in the format {style} is {rule}, got {path}")
    return by_name


def save_model(
    checkpoint: Checkpoint,
    kinds: Mapping[str, str],
    path: Path,
    report: Report,
    *,
    style: str | None = None,
    overwrite: bool = False,
) -> SavedModel:
    """Write a model with quantized weights. Its weights are read from its files, a piece at a time.

    Args:
        checkpoint: the model.
        kinds: the kinds of codes to make of its matrices, by Hugging Face name.
        path: the new file or directory. It appears complete or not at all.
        report: called on this thread after each piece; it may raise to end the writing.
        style: the format; None for the one of the path's name.
        overwrite: whether to replace a model at the path.

    Raises:
        ConfigError: the format does not fit the path.
        UnsupportedModel: the format has no form for the model.
        CheckpointError: the files of the model have changed since they were opened.
        StorageError: the path exists, cannot be written, or the disk is full.
    """
    path = path.expanduser().absolute()
    file_format = format_of(path, style)
    sources = {file.resolve() for file in checkpoint.files}
    if path.resolve() in {*sources, *(file.parent for file in sources if file_format == "safetensors")}:
        raise StorageError(f"{path} is the model itself: choose another name for the new one")
    check_unchanged(checkpoint.stamps, "open it again to save what they are now")
    before = sum(file.stat().st_size for file in checkpoint.files)
    try:
        after = _SAVERS[file_format](checkpoint, kinds, path, report, overwrite=overwrite)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}): choose another folder") from error
    return SavedModel(path, file_format, before, after)
