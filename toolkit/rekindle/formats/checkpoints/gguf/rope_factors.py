"""Recovery of Llama 3's rope scaling from the factors in a GGUF file.

The file stores the stretch factor of each wavelength, not the four parameters of the scaling. Any four parameters with
the same factors define the same model.
"""

import math
from typing import Any

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import Rope
from rekindle.core.models.config.scaling import Llama3Scaling
from rekindle.core.models.rope import rope_frequencies

_Doubles = np.ndarray[Any, np.dtype[np.float64]]
_TOLERANCE = 1e-4


def find_scaling(factors: np.ndarray[Any, np.dtype[Any]], theta: float, source: str) -> Llama3Scaling | None:
    """Find a scaling with the given factors.

    Args:
        factors: (head_dim / 2,), 1 for an unchanged frequency.
        theta: the base of the frequencies.
        source: origin of the factors, for error messages.

    Returns:
        The scaling, or None if all frequencies are unchanged.

    Raises:
        UnsupportedModel: the factors do not have Llama 3's form.
    """
    stretch = np.asarray(factors, np.float64)
    frequencies = theta ** (-np.arange(len(stretch)) / len(stretch)) / (2 * math.pi)  # turns per token: 1 / wavelength
    if np.allclose(stretch, 1.0, atol=1e-6):
        return None
    scaling = _solve(stretch, frequencies, float(stretch.max()))
    if scaling is not None:
        unscaled, scaled = (rope_frequencies(rope, 2 * len(stretch)) for rope in (Rope(theta), Rope(theta, scaling)))
        if np.allclose(unscaled / scaled, stretch, rtol=_TOLERANCE):
            return scaling
    raise UnsupportedModel(f"{source}: rope_freqs.weight does not have Llama 3's form. Open the Hugging Face directory")


def _solve(stretch: _Doubles, frequencies: _Doubles, factor: float) -> Llama3Scaling | None:
    """Fit "smooth" as a line over the frequencies, from 0 at `low / context` to 1 at `high / context`."""
    smooth = (1.0 / stretch - 1.0 / factor) / (1.0 - 1.0 / factor)
    between = (smooth > 1e-5) & (smooth < 1.0 - 1e-5)
    if between.sum() >= 2:
        slope, start = np.polyfit(frequencies[between], smooth[between], 1)
        zero, one = -start / slope, (1.0 - start) / slope
    elif between.sum() == 1:
        # One point does not determine a line: assume high = 4 low.
        zero = float((frequencies[between] / (1.0 + 3.0 * smooth[between]))[0])
        one = 4.0 * zero
    else:
        zero, one = (
            float(frequencies[smooth < 0.5].max(initial=0.0)),
            float(frequencies[smooth > 0.5].min(initial=math.inf)),
        )
    if not (0.0 < zero < one < math.inf):
        return None
    context = max(round(1.0 / zero), 1)
    # The factors are float32, so round to their precision.
    return Llama3Scaling(factor, round(context * zero, 6), round(context * one, 6), context)
