"""From a checkpoint's tensors to a decoder on the device."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.model_config import ModelConfig
from rekindle.models.decoder import Decoder

Array = np.ndarray[Any, np.dtype[Any]]


def load_decoder(
    config: ModelConfig,
    tensors: Mapping[str, Array],
    dtype: jnp.dtype,
    loaded: Callable[[int], None] = lambda _: None,
) -> Decoder:
    """Build the decoder, reading each tensor once.

    Args:
        config: the model.
        tensors: by Hugging Face name, looked up when needed.
        dtype: that all weights are cast to.
        loaded: told how many tensors were read since it was last called.
    """

    def weights(*names: str) -> jax.Array:
        parts = [tensors[name] for name in names]
        loaded(len(parts))
        # A copy in every case: the tensors may be views of a file, and CPU arrays may alias what they are made from.
        return jnp.array(np.concatenate(parts) if len(parts) > 1 else parts[0], dtype, copy=True)

    return Decoder(config, weights)
