"""Scalings of rope frequencies, for contexts longer than those that a model was first trained on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3's scaling of the low rope frequencies (`rope_scaling` of type "llama3").

    Frequencies of wavelengths shorter than `original_context / high_freq_factor` tokens stay, those of wavelengths
    longer than `original_context / low_freq_factor` are divided by `factor`, and those between are interpolated.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al., 2023, arXiv:2309.00071): fast pairs stay, slow ones are divided by `factor`.

    Attributes:
        factor: of the positions of slow pairs.
        original_context: the tokens that the model was first trained for.
        beta_fast, beta_slow: turns within the original context that bound the ramp between the two.
        truncate: whether the ramp begins and ends at whole pairs.
        attention_factor: by which cosine and sine are multiplied.
    """

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float


@dataclass(frozen=True, slots=True)
class BaseScaling:
    """The base of the frequencies is multiplied, whatever the length (Hunyuan's "dynamic" with an alpha)."""

    factor: float


@dataclass(frozen=True, slots=True)
class LongScaling:
    """LongRoPE (Ding et al., 2024, arXiv:2402.13753): each pair is divided by a factor of its own.

    Attributes:
        short, long: the factors, for requests of at most `original_context` tokens, and for longer ones.
        original_context: the tokens that the model was first trained for.
        attention_factor: by which cosine and sine are multiplied.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int
    attention_factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """Dynamic NTK scaling: the base grows with the request (emozilla, 2023, as transformers computes it).

    Attributes:
        factor: how steeply.
        original_context: up to so many tokens nothing is scaled.
    """

    factor: float
    original_context: int


Scaling = LinearScaling | Llama3Scaling | YarnScaling | BaseScaling | LongScaling | DynamicScaling
