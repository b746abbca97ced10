"""The command `quantize`: write a model with codes of its weights, without an engine."""

from argparse import Namespace
from collections import Counter
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import Final

from rekindle.assembly.loading.choosing import AUTO
from rekindle.assembly.loading.kinds import quantized_kinds
from rekindle.cli.units import broken
from rekindle.core.errors import ConfigError
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.shard import WHOLE
from rekindle.core.models.weights.form import Quantize
from rekindle.core.words import percent, quantity, seconds, size_text
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.saving.saving import SavedModel, format_of, save_model
from rekindle.notebook.progress.bars import ProgressBars

_NAMES: Final = 9
"""The width of the names of lines."""
_CODES: Final[dict[int, Quantize]] = {4: "int4", 8: "int8"}


def quantize(arguments: Namespace) -> int:
    """Write the model, and print its sizes and how to open it."""
    path, began = Path(arguments.out), monotonic()
    format_of(path, arguments.format)  # before a download
    if arguments.model == AUTO:
        raise ConfigError("quantize takes the name or the path of a model; `rekindle models` lists those that fit")
    with ProgressBars(not arguments.quiet) as bars:
        checkpoint = open_checkpoint(arguments.model, bars.show, revision=arguments.revision)
        kinds = _kinds(checkpoint, _CODES[arguments.bits], requantize=arguments.requantize)
        saved = save_model(checkpoint, kinds, path, bars.show, style=arguments.format, overwrite=arguments.overwrite)
    for name, value in _lines(checkpoint, kinds, saved, monotonic() - began):
        print(*broken(value, " " * _NAMES, name.ljust(_NAMES)), sep="\n", flush=True)
    return 0


def _kinds(checkpoint: Checkpoint, quantize: Quantize, *, requantize: bool) -> dict[str, str]:
    """Return the kinds of codes for the matrices, by name."""
    if checkpoint.formats and not requantize:
        raise ConfigError(
            f"{checkpoint.source} is quantized already ({', '.join(checkpoint.formats)}), and its numbers would be "
            "rounded once more: take the model in full precision, or add --requantize"
        )
    kinds = dict(quantized_kinds(checkpoint.config, quantize, [WHOLE], is_accelerator=False))
    if not kinds:
        raise ConfigError(f"codes are made in groups of 32 numbers, and no matrix of {checkpoint.source} has them")
    return kinds


def _lines(checkpoint: Checkpoint, kinds: dict[str, str], saved: SavedModel, duration: float) -> list[tuple[str, str]]:
    share = percent(saved.bytes_after / saved.bytes_before)
    tables = _tables(checkpoint.config)
    counts = Counter(kind for name, kind in kinds.items() if saved.format == "gguf" or name not in tables)
    codes = ", ".join(f"{quantity(count, 'matrix', 'matrices')} of {kind}" for kind, count in counts.most_common())
    is_gguf = saved.format == "gguf"
    how = f"rekindle chat {quote(str(saved.path))}" if is_gguf else f'rekindle.open("{saved.path}", weights="packed")'
    return [
        ("model", f"{checkpoint.source}, {size_text(saved.bytes_before)}"),
        ("written", f"{saved.path}, {size_text(saved.bytes_after)} ({share}), in {seconds(duration)}"),
        ("codes", codes),
        ("open", how),
    ]


def _tables(config: ModelConfig) -> set[str]:
    return {f"{config.names.embedding}.weight", f"{config.names.head}.weight"}
