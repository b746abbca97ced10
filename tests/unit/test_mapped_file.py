"""A mapped file that was written anew or cut is an error, never the end of the process."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import save_file

from rekindle.core.errors import CheckpointError
from rekindle.core.store.mapped_file import check_unchanged, stamps_of
from rekindle.formats.checkpoints.gguf.file import open_gguf_file
from rekindle.formats.checkpoints.huggingface.safetensors_file import open_safetensors

NUMBERS = np.arange(1 << 16, dtype=np.float32)


def safetensors(path: Path) -> Callable[[], object]:
    save_file({"a": NUMBERS}, path)
    return open_safetensors(path).loader("a")


def gguf(path: Path) -> Callable[[], object]:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("a", NUMBERS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf_file(path)
    return lambda: file.read("a")


@pytest.mark.parametrize("kind", [safetensors, gguf])
@pytest.mark.parametrize("size", [0, 4096, None])
def test_a_file_that_is_cut_or_written_in_place_is_not_read(
    tmp_path: Path, kind: Callable[[Path], Callable[[], object]], size: int | None
) -> None:
    path = tmp_path / "file"
    read = kind(path)
    np.testing.assert_array_equal(read(), NUMBERS)
    if size is None:
        before = path.read_bytes()
        with path.open("r+b") as file:
            file.write(before)
        os.utime(path, ns=(1, 1))
    else:
        os.truncate(path, size)
    with pytest.raises(CheckpointError, match="written anew since it was opened"):
        read()


@pytest.mark.parametrize("kind", [safetensors, gguf])
def test_a_file_moved_in_place_of_a_mapped_one_changes_nothing(
    tmp_path: Path, kind: Callable[[Path], Callable[[], object]]
) -> None:
    path = tmp_path / "file"
    read, stamps = kind(path), stamps_of([path])
    check_unchanged(stamps, "")
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / "other").replace(path)
    np.testing.assert_array_equal(read(), NUMBERS)
    with pytest.raises(CheckpointError, match=r"\(file\): do this"):
        check_unchanged(stamps, "do this")
