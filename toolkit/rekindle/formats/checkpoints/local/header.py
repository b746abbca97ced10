"""Facts about a model from the beginnings of its files: enough for a list, and little enough for a long one."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rekindle.core.concurrency.warning import hold
from rekindle.core.errors import CheckpointError, RekindleError, UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.vision.config import VisionConfig
from rekindle.formats.checkpoints.gguf.architectures.table import ARCHITECTURES
from rekindle.formats.checkpoints.gguf.file import read_beginning
from rekindle.formats.checkpoints.huggingface.foreign import mistral_settings
from rekindle.formats.checkpoints.huggingface.weight_files import check_complete
from rekindle.formats.checkpoints.local.model import StoredModel
from rekindle.formats.families.quantization import method_of
from rekindle.formats.families.refusals import gguf_refusal
from rekindle.formats.families.registry import parse_config
from rekindle.formats.families.towers import tower_config
from rekindle.formats.model_file import damage, is_present, read_json

SAFETENSORS: Final = "safetensors"
GGUF: Final = "GGUF"
_NUMBERS: Final = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d|TQ\d|BF16|F16|F32|FP16|FP32|MXFP4|NVFP4)\w*)(?=$|[-.])", re.IGNORECASE
)
"""The kind of most numbers in the name of a GGUF file."""
_PART: Final = re.compile(r"(?P<stem>.*)-\d{5}-of-(?P<count>\d{5})$")


@dataclass(frozen=True, slots=True)
class Header:
    """Facts about a model and its files.

    Attributes:
        format: "GGUF" or "safetensors".
        architecture: the name of its architecture in the files; "" if they name none.
        numbers: the kind of most numbers, such as "Q4_K_M"; "" if it is unknown.
        numbers_per_token: the keys and values of a token in all layers.
        config: the structure of the model; None for a GGUF file, and for a refused model.
        tower: the vision tower of this structure; None without one.
        refusal: the reason why the model does not open, in one line; "" if its header has none.
    """

    format: str
    architecture: str = ""
    numbers: str = ""
    numbers_per_token: int = 0
    config: ModelConfig | None = None
    tower: VisionConfig | None = None
    refusal: str = ""


def header_of(model: StoredModel) -> Header:
    """Return the facts about a model: of the first bytes of a GGUF file, or of the config of a directory."""
    if model.problem:
        return Header("", refusal=model.problem)
    is_directory = os.path.isdir(model.path)
    warnings: list[str] = []  # `open` gives them
    try:
        with damage(model.path), hold(warnings):
            return _of_directory(model.path) if is_directory else _of_file(model)
    except RekindleError as error:
        return Header(SAFETENSORS if is_directory else GGUF, refusal=str(error).partition("\n")[0])


def _of_file(model: StoredModel) -> Header:
    path = model.path
    if not is_present(path):
        raise CheckpointError(f"{path} is missing")
    metadata = read_beginning(path)
    _check_parts(path)
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        refusal = gguf_refusal(str(path), name).partition("\n")[0]
        return Header(GGUF, str(name or ""), refusal=refusal)
    numbers = model.numbers or _file_type(metadata.get("general.file_type")) or _in_name(path)
    keys = {key.removeprefix(f"{name}."): value for key, value in metadata.items()}
    return Header(GGUF, name, numbers, _numbers_per_token(keys))


def _check_parts(path: Path) -> None:
    """Reject a split model without all of its files.

    Raises:
        CheckpointError: a file is missing.
    """
    if (match := _PART.fullmatch(path.stem)) is None:
        return
    count = int(match["count"])
    names = (f"{match['stem']}-{part:05}-of-{count:05}{path.suffix}" for part in range(1, count + 1))
    if gap := next((name for name in names if not is_present(path.with_name(name))), None):
        raise CheckpointError(f"{path}: the model was split into {count} files. Missing is {gap}")


def _numbers_per_token(keys: Mapping[str, Any]) -> int:
    """Return the keys and values of a token, by the metadata below an architecture's name; windows are not counted."""
    layers, heads = _whole(keys.get("block_count")), keys.get("attention.head_count")
    kv_heads = keys.get("attention.head_count_kv", heads)
    count = sum(map(_whole, kv_heads)) if isinstance(kv_heads, list) else layers * _whole(kv_heads)
    most = max(map(_whole, heads), default=0) if isinstance(heads, list) else _whole(heads)
    each = _whole(keys.get("embedding_length")) // most if most else 0
    return count * sum(_whole(keys.get(f"attention.{part}_length", each)) for part in ("key", "value"))


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _file_type(code: Any) -> str:
    """Return the kind for llama.cpp's number of it; "" for an unknown number."""
    import gguf

    try:
        return gguf.LlamaFileType(code).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return ""


def _in_name(path: Path) -> str:
    match = _NUMBERS.search(_PART.sub(r"\g<stem>", path.stem))
    return match[1].upper() if match else ""


def _of_directory(directory: Path) -> Header:
    is_mistral = not is_present(directory / "config.json")
    settings = mistral_settings(directory) if is_mistral else read_json(directory / "config.json")
    architecture = _architecture(settings)
    try:
        config = parse_config(settings, f"{directory}/config.json")
        tower = tower_config(settings, config.hidden_size, str(directory))
        _check_weights(directory)
    except (UnsupportedModel, CheckpointError) as error:
        return Header(SAFETENSORS, architecture, refusal=str(error).partition("\n")[0])
    method = method_of(settings)
    numbers = str(settings.get("dtype") or settings.get("torch_dtype") or "") if method is None else method.name
    return Header(SAFETENSORS, architecture, numbers, config.numbers_per_token, config, tower)


def _architecture(settings: Mapping[str, Any]) -> str:
    names: Sequence[Any] = settings.get("architectures") or []
    return str(settings.get("model_type") or next(iter(names), ""))


def _check_weights(directory: Path) -> None:
    """Reject weights that are links to lost files, pointers of git-lfs, or without a shard.

    Raises:
        CheckpointError: a file is missing.
    """
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    for name in names:
        is_present(directory / name)
    check_complete(directory, [name for name in names if name.startswith("model")] or names)
