"""Opening of split models, with tensors in several files."""

import re
from pathlib import Path

from rekindle.core.errors import CheckpointError
from rekindle.formats.checkpoints.gguf.file import GGUFFile, open_gguf_file
from rekindle.formats.model_file import is_present

_NAME = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def open_gguf_files(path: Path) -> GGUFFile:
    """Map a file, and all other files of a split model.

    Args:
        path: path of the file, or of any part of the model.

    Raises:
        CheckpointError: a file is missing, truncated or corrupt, or the files belong to different models.
        UnsupportedModel: a file is big-endian, or has an unsupported version.
    """
    file = open_gguf_file(path)
    count = file.metadata.get("split.count", 0)
    if count <= 1:
        return file
    match = _NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise CheckpointError(
            f"{path}: it is one of {count} files of a model. The other files are found by name, which must be "
            f"NAME-00001-of-{count:05}.gguf: rename all files"
        )
    paths = [path.with_name(f"{match['name']}-{place + 1:05}-of-{count:05}{path.suffix}") for place in range(count)]
    missing = [each.name for each in paths if not is_present(each)]
    if missing:
        raise CheckpointError(f"{path}: the model was split into {count} files. Missing are {', '.join(missing)}")
    files = [file if each == path else open_gguf_file(each) for each in paths]
    for place, part_file in enumerate(files):
        number, total = (part_file.metadata.get(f"split.{key}") for key in ("no", "count"))
        if (number, total) != (place, count):
            raise CheckpointError(
                f"{paths[place]}: by its name it must be part {place} of {count}, but it is part {number} of {total}. "
                "Fetch it again"
            )
    whole = files[0].join(files[1:])
    expected = whole.metadata.get("split.tensors.count", len(whole.shapes))
    if len(whole.shapes) != expected:
        raise CheckpointError(
            f"{path}: the {count} files have {len(whole.shapes)} tensors of {expected}. Fetch them again"
        )
    return whole
