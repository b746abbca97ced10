"""Reading GGUF files: opening reads metadata and header, a tensor is read when it is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from rekindle.errors import CheckpointError, UnsupportedModel


@dataclass(frozen=True)
class GGUFFile:
    """One mapped file; `shapes` has every tensor in it, slowest axis first."""

    path: Path
    metadata: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    _tensors: Mapping[str, Any]

    def read(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """The tensor, from any thread: a read-only view where it is stored as floats, else dequantized to float32.

        Raises:
            UnsupportedModel: the gguf library cannot dequantize its kind.
        """
        from gguf import dequantize

        tensor = self._tensors[name]
        data, kind = np.asarray(tensor.data), tensor.tensor_type
        if kind.name in ("F32", "F16"):
            return data
        if kind.name == "BF16":
            return data.view(ml_dtypes.bfloat16)
        try:
            return dequantize(data, kind)
        except NotImplementedError as error:
            raise UnsupportedModel(f"{self.path}: {name} is {kind.name}, which the gguf library cannot read") from error


def open_gguf_file(path: Path) -> GGUFFile:
    """Map a file and read its header; the library fails where a tensor is not inside the file.

    Raises:
        CheckpointError: the file is truncated or corrupt, or newer than the installed library.
        UnsupportedModel: it is in big-endian order.
    """
    from gguf import GGUFReader, GGUFValueType

    array = int(GGUFValueType.ARRAY)  # numpy's numbers are slow to compare with an enum, and there are many

    class Reader(GGUFReader):
        """The library's, four times as fast, and with an end where an array's count is damaged."""

        data: Any

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == array:
                self.data = np.asarray(self.data)  # every string is sliced out of it, and a memmap is slow to slice
                if (count := self._get(orig_offs + 4, np.uint64)[0]) > self.data.size:
                    raise ValueError(f"an array should have {count} elements")
            return super()._get_field_parts(orig_offs, raw_type)

    try:
        reader = Reader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:  # what numpy raises past the file's end
        raise CheckpointError(
            f"{path}: the gguf library cannot read it ({error}); it is truncated or corrupt: fetch it again, or newer "
            "than the library: upgrade gguf"
        ) from error
    if reader.byte_order == "S":
        raise UnsupportedModel(f"{path}: big-endian GGUF files are not supported")
    shapes = {tensor.name: tuple(reversed(tensor.shape.tolist())) for tensor in reader.tensors}
    return GGUFFile(path, metadata, shapes, {tensor.name: tensor for tensor in reader.tensors})
