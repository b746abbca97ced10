"""Scalings of rope frequencies, for contexts longer than those of a model's pretraining."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Linear scaling: positions are divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3's scaling of the low rope frequencies (`rope_scaling` of type "llama3").

    Frequencies of wavelengths below `original_context / high_freq_factor` tokens do not change. Frequencies of
    wavelengths above `original_context / low_freq_factor` are divided by `factor`. The rest are interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al., 2023, arXiv:2309.00071): the frequencies of slow pairs are divided by `factor`.

    Attributes:
        factor: the divisor.
        original_context: the context length of the pretraining, in tokens.
        beta_fast, beta_slow: the rotations within the original context at both ends of the ramp between fast and slow.
        truncate: whether the ramp begins and ends at whole pairs.
        attention_factor: a factor of cosines and sines.
    """

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float


@dataclass(frozen=True, slots=True)
class BaseScaling:
    """Scaling of the frequencies' base, independent of the length (Hunyuan's "dynamic" with an alpha)."""

    factor: float


@dataclass(frozen=True, slots=True)
class LongScaling:
    """LongRoPE (Ding et al., 2024, arXiv:2402.13753): each pair's frequency is divided by a separate factor.

    Attributes:
        short, long: the divisors for requests of at most `original_context` tokens, and for longer requests.
        original_context: the context length of the pretraining, in tokens.
        attention_factor: a factor of cosines and sines.
        long_attention_factor: the factor for longer requests; None for the same.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int
    attention_factor: float
    long_attention_factor: float | None = None


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """Dynamic NTK scaling: the base grows with the request (emozilla, 2023; the formula is that of transformers).

    Attributes:
        factor: the steepness of the growth.
        original_context: the number of tokens up to which nothing is scaled.
    """

    factor: float
    original_context: int


Scaling = LinearScaling | Llama3Scaling | YarnScaling | BaseScaling | LongScaling | DynamicScaling
