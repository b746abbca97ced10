"""A file of weights that was written anew or cut is an error, never the end of the process."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import save_file

from rekindle.core.errors import CheckpointError
from rekindle.formats import weight_file
from rekindle.formats.checkpoints.gguf.file import open_gguf_file
from rekindle.formats.checkpoints.huggingface.safetensors_file import open_safetensors
from rekindle.formats.weight_file import WeightFile, check_unchanged, stamps_of
from tests.waiting import PATIENCE

NUMBERS = np.arange(1 << 16, dtype=np.float32)


def safetensors(path: Path) -> Callable[[], object]:
    save_file({"a": NUMBERS}, path)
    load = open_safetensors(path).loader("a")
    return lambda: np.asarray(load())


def gguf(path: Path) -> Callable[[], object]:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("a", NUMBERS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf_file(path)
    return lambda: np.asarray(file.read("a"))


@pytest.mark.parametrize("kind", [safetensors, gguf])
@pytest.mark.parametrize("size", [0, 4096, None])
def test_a_file_that_is_cut_or_written_in_place_is_not_read(
    tmp_path: Path, kind: Callable[[Path], Callable[[], object]], size: int | None
) -> None:
    path = tmp_path / "file"
    read_array = kind(path)
    np.testing.assert_array_equal(read_array(), NUMBERS)
    if size is None:
        before = path.read_bytes()
        with path.open("r+b") as file:
            file.write(before)
        os.utime(path, ns=(1, 1))
    else:
        os.truncate(path, size)
    with pytest.raises(CheckpointError, match="written anew since it was opened"):
        read_array()


@pytest.mark.parametrize("kind", [safetensors, gguf])
def test_a_file_moved_in_place_of_an_open_one_changes_nothing(
    tmp_path: Path, kind: Callable[[Path], Callable[[], object]]
) -> None:
    path = tmp_path / "file"
    read_array, stamps = kind(path), stamps_of([path])
    check_unchanged(stamps, "")
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / "other").replace(path)
    np.testing.assert_array_equal(read_array(), NUMBERS)
    with pytest.raises(CheckpointError, match=r"\(file\): do this"):
        check_unchanged(stamps, "do this")


CHILD = """
import os, sys
from pathlib import Path
import numpy as np
from rekindle.formats.checkpoints.gguf.file import open_gguf_file
from rekindle.formats.checkpoints.huggingface.safetensors_file import open_safetensors
from rekindle.core.errors import CheckpointError

tensors = open_safetensors(Path(sys.argv[1])).loader("a")(), open_gguf_file(Path(sys.argv[2])).read("a")
for path, tensor in zip(sys.argv[1:], tensors):
    os.truncate(path, 0)
    try:
        np.array(tensor)
    except CheckpointError as error:
        print(error)
"""


@pytest.mark.wide
def test_a_file_that_is_cut_between_opening_a_tensor_and_copying_it_does_not_end_the_process(tmp_path: Path) -> None:
    paths = tmp_path / "one.safetensors", tmp_path / "one.gguf"
    for kind, path in zip((safetensors, gguf), paths, strict=True):
        kind(path)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, paths)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert [line.partition(" was written anew")[0] for line in child.stdout.splitlines()] == [*map(str, paths)]


@pytest.mark.parametrize("kind", [safetensors, gguf])
def test_a_file_that_is_cut_during_a_read_is_an_error(
    tmp_path: Path, kind: Callable[[Path], Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    read_array, preadv = kind(path), os.preadv

    def first_part(descriptor: int, buffers: list[memoryview], position: int) -> int:
        count = preadv(descriptor, [buffers[0][:4096]], position)
        os.truncate(path, 8192)
        return count

    monkeypatch.setattr(os, "preadv", first_part)
    with pytest.raises(CheckpointError, match="written anew since it was opened"):
        read_array()


def test_a_file_is_read_as_well_without_reads_by_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_file, "_BY_POSITION", False)
    read_array = safetensors(tmp_path / "file")
    with ThreadPoolExecutor(4) as pool:
        for numbers in pool.map(lambda _: read_array(), range(16)):
            np.testing.assert_array_equal(numbers, NUMBERS)


def test_an_array_in_a_file_has_the_rows_shapes_and_views_of_numpy(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before" + NUMBERS.tobytes())
    whole = NUMBERS.reshape(4, 64, 256)
    array = WeightFile(path).array(6, whole.shape, whole.dtype)
    for got, expected in (
        (array, whole),
        (array[2], whole[2]),
        (array[-1][3:9], whole[-1][3:9]),
        (array[1:][5:9][1:], whole[1:][5:9][1:]),
        (array[3:1], whole[3:1]),
        (array.reshape(-1, 32), whole.reshape(-1, 32)),
        (array.view(np.uint8)[1:2], whole.view(np.uint8)[1:2]),
    ):
        assert (got.shape, got.dtype, got.ndim, len(got)) == (
            expected.shape,
            expected.dtype,
            expected.ndim,
            len(expected),
        )
        np.testing.assert_array_equal(np.asarray(got), expected)
        assert np.asarray(got, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="always copied"):
        np.array(array, copy=False)
