"""The stored tensors of a checkpoint, and quantized tensors found among these."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.formats.checkpoints.huggingface.safetensors_file import SafetensorsFile
from rekindle_kernels.blocks import Array, FileArray, Tensor

Floats = np.ndarray[Any, np.dtype[np.float32]]
Read = Callable[[], Array]
OnDemand = Callable[[], FileArray]

FLOATS: Final = ("F32", "F16", "BF16")
DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A quantized tensor, found in the headers.

    Attributes:
        name: the name in a checkpoint without quantization.
        shape: the shape of the numbers.
        stored: the names of its stored tensors, the codes first.
        load: returns the tensor.
        scheme: the format, for users: "FP8 (blocks of 128 x 128)".
    """

    name: str
    shape: tuple[int, ...]
    stored: tuple[str, ...]
    load: Callable[[], Tensor]
    scheme: str


@dataclass(frozen=True, slots=True)
class Stored:
    """All stored tensors of a checkpoint.

    Attributes:
        source: path of the model, for error messages.
        files: the file of each tensor, by stored name.
    """

    source: str
    files: Mapping[str, SafetensorsFile]

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def ending(self, suffix: str) -> Iterator[str]:
        """Yield the names with an ending, without it."""
        return (name.removesuffix(suffix) for name in self.files if name.endswith(suffix))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a stored tensor.

        Raises:
            CheckpointError: the tensor is missing.
        """
        if name not in self.files:
            raise CheckpointError(
                f"{self.source}: missing {name}, which the other tensors of this module need to be read. Fetch the "
                "model again"
            )
        return self.files[name].shapes[name]

    def matrix(self, name: str) -> tuple[int, int]:
        """Return the rows and columns of a stored matrix.

        Raises:
            CheckpointError: the tensor is missing, or is empty or no matrix.
        """
        shape = self.shape(name)
        if len(shape) != 2 or 0 in shape:
            raise self.wrong(name, "(rows, columns)", shape)
        return shape[0], shape[1]

    def dtype(self, name: str) -> str:
        """Return the dtype of a stored tensor, by the name in safetensors."""
        return self.files[name].dtype(name)

    def read(self, name: str, dtypes: Sequence[str], *shapes: tuple[int, ...]) -> Read:
        """Return a reader of a stored tensor.

        Args:
            name: the stored name.
            dtypes: the expected dtypes.
            *shapes: the expected shapes; none for any shape.

        Raises:
            CheckpointError: the tensor is missing or has another shape.
            UnsupportedModel: the tensor has another dtype.
        """
        tensor = self.on_demand(name, dtypes, *shapes)
        return lambda: np.asarray(tensor())

    def on_demand(self, name: str, dtypes: Sequence[str], *shapes: tuple[int, ...]) -> OnDemand:
        """Return a loader of a stored tensor, with its rows still in the file; see `read`."""
        shape = self.shape(name)
        if shapes and shape not in shapes:
            raise self.wrong(name, " or ".join(map(str, shapes)), shape)
        return self.files[name].stored(name, *dtypes)

    def wrong(self, name: str, expected: str, shape: tuple[int, ...]) -> CheckpointError:
        """Return the error for a tensor with a shape that does not fit to its format."""
        return CheckpointError(
            f"{self.source}: {name} must have the shape {expected} by the quantization in its config, got {shape}. "
            "Fetch the model again; if it was edited, correct its config"
        )

    def refused(self, name: str, reason: str) -> UnsupportedModel:
        """Return the error for a quantized tensor in an unsupported form."""
        return UnsupportedModel(f"{self.source}: {name} {reason}; open the unquantized model or a GGUF file of it")


def powers(exponents: Array) -> Floats:
    """Return the powers of two of E8M0 bytes, float32; 255 is not a number."""
    numbers: Floats = exponents.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    return numbers


def ceil(numbers: int, size: int) -> int:
    """Return the number of groups of a size."""
    return -(-numbers // size)
