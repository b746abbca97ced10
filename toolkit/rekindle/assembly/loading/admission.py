"""The refusal of a model on the hub whose weights are too large for the devices, before its download."""

import re
from collections.abc import Mapping
from typing import Final

import jax.numpy as jnp

from rekindle.assembly.devices import default_dtype, memory_of, place_of_set, places_of, shares_memory
from rekindle.assembly.loading.remedies import remedies_of
from rekindle.core.device.place import Place
from rekindle.core.errors import ModelTooLarge
from rekindle.core.words import size_text
from rekindle.formats.checkpoints.hub.stored import StoredWeights
from rekindle.settings.engine import Quantize, Settings

NEEDED: Final = 0.8
"""The least part of the weights in use by a session; towers for sound, for example, stay out."""
QUANTIZED: Final[Mapping[Quantize, float]] = {"int8": 1, "int4": 0.5}
"""The bytes of a number of quantized weights, without scales."""
FLOATS: Final = ("F64", "F32", "F16", "BF16")
"""Data types of safetensors files with conversion to the dtype of a session."""


def check_before_download(stored: StoredWeights, settings: Settings) -> None:
    """Check the weights of a model on the hub against the memory of the devices, unless the hub hides sizes.

    A model near the limit passes; `Budget.check` follows after the download.

    Raises:
        ModelTooLarge: the weights are too large.
        ConfigError: the devices do not exist.
    """
    place = places_of(settings)[-1] if settings.prefill is None else place_of_set("prefill", settings.prefill)
    memory = _memory(place)
    needed = weight_bytes(stored, settings, place)
    if memory is None or needed is None or needed * NEEDED <= memory:
        return

    def fits(changed: Settings) -> bool:
        size = weight_bytes(stored, changed, place)
        return size is not None and size <= memory

    raise ModelTooLarge(
        f"{stored.model} does not fit on {place}: its weights take about {size_text(needed)} with these settings, and "
        f"there are {size_text(memory)} in all. It was not downloaded.{remedies_of(settings, place, needed, fits)}"
    )


def weight_bytes(stored: StoredWeights, settings: Settings, place: Place) -> int | None:
    """Return the least bytes of weights in memory; None if the hub does not tell a number or size.

    Quantized numbers of a file count as they are.
    """
    itemsize = jnp.dtype(settings.dtype or default_dtype(place.first)).itemsize
    of_float = itemsize if settings.quantize is None else QUANTIZED[settings.quantize]
    if stored.numbers:
        sizes = {name: of_float if name in FLOATS else _bits(name) / 8 for name in stored.numbers}
        return int(sum(sizes[name] * count for name, count in stored.numbers.items()))
    stored_itemsize = 4 if "f32" in str(stored.model).lower() else 2  # or less, of a quantized GGUF file
    return None if stored.size is None else int(stored.size * min(1, of_float / stored_itemsize))


def _bits(dtype: str) -> int:
    """Return the bits of a number of a data type such as I32 or F8_E4M3."""
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else 8


def _memory(place: Place) -> int | None:
    """Return the bytes of memory of a place; None if unknown."""
    memory = memory_of(place.first)
    return memory if memory is None or shares_memory(place.first) else place.tensor * memory
