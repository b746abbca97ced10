"""The numbers and switches that define one decoder, wherever they were read."""

from dataclasses import dataclass


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
class Rope:
    """Rotary position embedding (Su et al., 2021, arXiv:2104.09864) with half-rotation pairs (i, i + head_dim / 2)."""

    theta: float
    scaling: Llama3Scaling | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer.

    Attributes:
        family: the name of its entry in `families.FAMILIES`.
        max_context: the most tokens, prompt and output together, that the model was trained for.
        qkv_bias: whether the query, key and value projections add a bias.
        qk_norm: whether queries and keys are RMS-normalised per head before rope.
        tied_embeddings: whether the output projection is the embedding matrix.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    norm_eps: float
    rope: Rope
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
