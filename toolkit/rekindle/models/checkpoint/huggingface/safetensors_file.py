"""Reading safetensors: opening reads only the header, and each tensor is read on request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # makes "bfloat16" known to numpy, where the library looks it up
import numpy as np

from rekindle.errors import CheckpointError, UnsupportedModel

_DTYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class SafetensorsFile:
    """One memory-mapped file.

    Attributes:
        shapes: of every tensor in the file.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    _handle: Any

    def loader(self, name: str, *dtypes: str) -> Callable[[], np.ndarray[Any, np.dtype[Any]]]:
        """Return a function that reads the tensor, from any thread.

        Args:
            dtypes: what the format calls those that it may have; none for F32, F16 and BF16.

        Raises:
            UnsupportedModel: it has another.
        """
        dtype, supported = self._handle.get_slice(name).get_dtype(), dtypes or _DTYPES
        if dtype not in supported:
            raise UnsupportedModel(f"{self.path}: {name} is {dtype}, supported are {', '.join(supported)}")
        return partial(self._handle.get_tensor, name)


def open_safetensors(path: Path) -> SafetensorsFile:
    """Map a file. The library checks the header, and that the tensors fill the file.

    Raises:
        CheckpointError: the file is truncated or corrupt.
    """
    from safetensors import SafetensorError, safe_open

    try:
        handle: Any = safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise CheckpointError(f"{path}: {error}; the file is truncated or corrupt: fetch it again") from error
    shapes = {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
    return SafetensorsFile(path, shapes, handle)
