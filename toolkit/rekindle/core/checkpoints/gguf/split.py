"""A model that was split into several files, each of which has some of its tensors."""

import re
from pathlib import Path

from rekindle.core.checkpoints.gguf.file import GGUFFile, open_gguf_file
from rekindle.core.errors import CheckpointError

_NAME = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def open_gguf_files(path: Path) -> GGUFFile:
    """Map a file, and all others of its model if it was split.

    Args:
        path: of the file, or of any of the files.

    Raises:
        CheckpointError: a file is missing, truncated or corrupt, or they are not of one model.
        UnsupportedModel: a file is big-endian, or of an unknown version.
    """
    opened = open_gguf_file(path)
    count = opened.metadata.get("split.count", 0)
    if count <= 1:
        return opened
    found = _NAME.fullmatch(path.name)
    if found is None or int(found["count"]) != count:
        raise CheckpointError(
            f"{path}: it is one of {count} files of a model, and the others are found by its name, which must be "
            f"NAME-00001-of-{count:05}.gguf: rename all of them"
        )
    paths = [path.with_name(f"{found['name']}-{place + 1:05}-of-{count:05}{path.suffix}") for place in range(count)]
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        raise CheckpointError(f"{path}: the model was split into {count} files. Missing are {', '.join(missing)}")
    files = [opened if each == path else open_gguf_file(each) for each in paths]
    for place, file in enumerate(files):
        number, of = (file.metadata.get(f"split.{key}") for key in ("no", "count"))
        if (number, of) != (place, count):
            raise CheckpointError(
                f"{paths[place]}: expected part {place} of {count} by its name, it is {number} of {of}. Fetch it again"
            )
    whole = files[0].joined(files[1:])
    expected = whole.metadata.get("split.tensors.count", len(whole.shapes))
    if len(whole.shapes) != expected:
        raise CheckpointError(
            f"{path}: the {count} files have {len(whole.shapes)} tensors of {expected}. Fetch them again"
        )
    return whole
