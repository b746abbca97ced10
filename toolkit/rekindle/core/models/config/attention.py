"""Configs of attention: heads, positions, and normalisation."""

from dataclasses import dataclass
from typing import Literal

from rekindle.core.models.config.scaling import Scaling


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al., 2021, arXiv:2104.09864).

    Attributes:
        theta: the base of the frequencies.
        scaling: the scaling of the frequencies; None for none.
        dims: the size of a head's rotary part, at its start; None for the whole head.
        interleaved: whether the pairs in a checkpoint are (2i, 2i + 1), rather than (i, i + dims / 2).
        pairs: the number of pairs with a rotation, the first of the rotary part; None for all.
        axes: for each pair, the coordinate of a token that it rotates by: 0 for time, 1 for the row, 2 for the column
            (M-RoPE; Wang et al., 2024, arXiv:2409.12191). In text, all are the position. None for the position.
        parts: the number of equal parts of a head, each with pairs of its two halves.
    """

    theta: float
    scaling: Scaling | None = None
    dims: int | None = None
    interleaved: bool = False
    pairs: int | None = None
    axes: tuple[int, ...] | None = None
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Norm:
    """Normalisation of features.

    Attributes:
        eps: the number added to the mean square or to the variance.
        centred: whether the mean is subtracted first, as in LayerNorm (Ba et al., 2016, arXiv:1607.06450) but not in
            RMSNorm (Zhang and Sennrich, 2019, arXiv:1910.07467).
        offset: a number added to the weights of the checkpoint.
        bias: whether a bias is added.
        weighted: whether the result is multiplied by weights.
    """

    eps: float
    centred: bool = False
    offset: float = 0.0
    bias: bool = False
    weighted: bool = True


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """Normalisation of queries and keys.

    Attributes:
        norm: the normalisation.
        over: "head" for each head with common weights, "own" for each head with separate weights, "all" for all heads
            of a token together.
        after_rope: whether it follows the rotary embedding.
    """

    norm: Norm
    over: Literal["head", "own", "all"] = "head"
    after_rope: bool = False


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Sizes of multi-head latent attention (DeepSeek-AI, 2024, arXiv:2405.04434).

    Attributes:
        rank: the size of a token's latent, the source of each head's key and value.
        plain, rotary: the sizes of a head's query part without position, and of its rotary part. All heads share one
            rotary key.
        value: the size of a head's value.
        norm: the normalisation of latents.
        query_rank: the size of the latent of queries; None for queries straight from the token.
        bias: whether the projections to latents and out of the heads add a bias.
    """

    rank: int
    plain: int
    rotary: int
    value: int
    norm: Norm
    query_rank: int | None = None
    bias: bool = False


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Growth of queries with their position p: a factor of `1 + rate * ln(1 + floor((p + offset) / period))`.

    Attributes:
        rate: the steepness of the growth.
        period: the number of positions with a common factor.
        offset: a number added to positions.
    """

    rate: float
    period: float
    offset: int = 0


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Grouped-query attention (Ainslie et al., 2023, arXiv:2305.13245).

    Attributes:
        heads, kv_heads: the number of query heads, and of KV heads.
        head_dim: the size of a head.
        scale: the factor of query-key products.
        rope: the rotary embedding; None for attention without positions.
        window: the number of positions visible to a token, including itself; None for all.
        ahead: the number of later positions visible to a token, of those of its image, or of its text in a model that
            reads texts in both directions; None for all.
        chunk: the size of chunks of positions, a multiple of 16: a token sees its own chunk only; None for all.
        qkv_bias, out_bias: whether the input and output projections add a bias.
        head_norm: the normalisation of queries and keys; None for none.
        value_norm: the normalisation of each head's values; None for none.
        values_are_keys: whether values are the projected keys, before norm and rope, instead of a projection.
        soft_cap: bounds scores by `cap * tanh(score / cap)`; None for none.
        clip: the bound of the magnitude of queries, keys and values, after a norm before the rope; None for none.
        sinks: whether each head has a learned score of one more position, with zeros as its value.
        growth: the growth of queries with their position, after the rope; None for none.
        output_gate: whether the output of each head is multiplied by the sigmoid of a projection of the layer's input.
        multiplier: a factor of the result.
        latent: the sizes of latent attention; None for separate keys and values.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None = None
    window: int | None = None
    ahead: int | None = 0
    chunk: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    head_norm: HeadNorm | None = None
    value_norm: Norm | None = None
    values_are_keys: bool = False
    soft_cap: float | None = None
    clip: float | None = None
    sinks: bool = False
    growth: QueryGrowth | None = None
    output_gate: bool = False
    multiplier: float = 1.0
    latent: LatentConfig | None = None

    @property
    def rotary_dims(self) -> int:
        """The size of a head's rotary part, unless its rope has `dims`."""
        return self.head_dim if self.latent is None else self.latent.rotary

    @property
    def entry_shape(self) -> tuple[int, int, int]:
        """The shape of a token's entry in pages: (sides, heads, head size). A single side is both keys and values."""
        return 1 if self.latent else 2, self.kv_heads, self.head_dim
