"""Reader of safetensors files. Opening reads only the header, and each tensor is read when it is converted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel, panics_as
from rekindle.formats.model_file import is_present, parse_json
from rekindle.formats.weight_file import WeightFile
from rekindle_kernels.blocks import FileArray, Tensor

_DTYPES: Final = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "I64": np.dtype(np.int64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
_FLOATS: Final = ("F32", "F16", "BF16")
_LENGTH_BYTES: Final = 8
"""Size of the header's length, at the start of the file. The header has each tensor's offset after the header."""


@dataclass(frozen=True)
class SafetensorsFile:
    """One file.

    Attributes:
        path: path of the file.
        shapes: shapes of all tensors in the file.
        quantized: loaders of its tensors in a quantized format.
        schemes: the numbers of quantized tensors, by format.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    _header: Mapping[str, Any]
    _file: WeightFile
    _begin: int
    quantized: Mapping[str, Callable[[], Tensor]] = field(default_factory=dict)
    schemes: Mapping[str, int] = field(default_factory=dict)

    def renamed(self, rule: Callable[[str], str]) -> "SafetensorsFile":
        """Return the file with other names of its tensors."""
        shapes, header = ({rule(name): each for name, each in own.items()} for own in (self.shapes, self._header))
        return replace(self, shapes=shapes, _header=header)

    def dtype(self, name: str) -> str:
        """Return the dtype of a stored tensor, by the format's name."""
        dtype: str = self._header[name]["dtype"]
        return dtype

    def loader(self, name: str) -> Callable[[], Tensor]:
        """Return a thread-safe function that returns a tensor, unread, or the quantized tensor.

        Raises:
            UnsupportedModel: the tensor has another dtype than F32, F16 and BF16, and is not quantized.
        """
        return self.quantized[name] if name in self.quantized else self.stored(name, *_FLOATS)

    def stored(self, name: str, *dtypes: str) -> Callable[[], FileArray]:
        """Return a thread-safe function that returns a stored tensor, unread.

        Args:
            name: name of the tensor.
            dtypes: supported dtypes, by the format's names.

        Raises:
            UnsupportedModel: the tensor has another dtype.
        """
        if (dtype := self.dtype(name)) not in dtypes:
            raise UnsupportedModel(f"{self.path}: {name} is {dtype}, supported are {', '.join(dtypes)}")
        begin = self._begin + self._header[name]["data_offsets"][0]
        return partial(self._file.array, begin, self.shapes[name], _DTYPES[dtype])


def open_safetensors(path: Path) -> SafetensorsFile:
    """Open a file. The safetensors library checks the header and that the tensors fill the file.

    Raises:
        CheckpointError: the file is missing, truncated or corrupt.
    """
    from safetensors import SafetensorError, safe_open

    if not is_present(path):
        raise CheckpointError(f"{path} is missing. Fetch it again")
    try:
        with panics_as(ValueError), safe_open(path, framework="numpy"):
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header = parse_json(file.read(length), path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}; the file is truncated or corrupt: fetch it again") from error
    header.pop("__metadata__", None)
    shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
    return SafetensorsFile(path, shapes, header, WeightFile(path), _LENGTH_BYTES + length)
