"""Configs of decoders, independent of the checkpoint format."""

import math
from dataclasses import dataclass, field
from typing import Literal

from rekindle.core.models.scaling import DynamicScaling, LongScaling, Scaling

Activation = Literal["silu", "gelu", "gelu_tanh", "gelu_quick", "relu_squared"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al., 2021, arXiv:2104.09864).

    Attributes:
        theta: the base of the frequencies.
        scaling: the scaling of the frequencies; None for none.
        dims: the size of a head's rotary part, at its start; None for the whole head.
        interleaved: whether the pairs in a checkpoint are (2i, 2i + 1), rather than (i, i + dims / 2).
    """

    theta: float
    scaling: Scaling | None = None
    dims: int | None = None
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Norm:
    """Normalisation of features.

    Attributes:
        eps: the number added to the mean square or to the variance.
        centred: whether the mean is subtracted first, as in LayerNorm (Ba et al., 2016, arXiv:1607.06450) but not in
            RMSNorm (Zhang and Sennrich, 2019, arXiv:1910.07467).
        offset: a number added to the weights of the checkpoint.
        bias: whether a bias is added.
    """

    eps: float
    centred: bool = False
    offset: float = 0.0
    bias: bool = False


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
class AttentionConfig:
    """Grouped-query attention (Ainslie et al., 2023, arXiv:2305.13245).

    Attributes:
        heads, kv_heads: the number of query heads, and of KV heads.
        head_dim: the size of a head.
        scale: the factor of query-key products.
        qkv_bias, out_bias: whether the input and output projections add a bias.
        head_norm: the normalisation of queries and keys; None for none.
        soft_cap: bounds scores by `cap * tanh(score / cap)`; None for none.
        sinks: whether each head has a learned score of one more position, with zeros as its value.
        latent: the sizes of latent attention; None for separate keys and values.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool = False
    out_bias: bool = False
    head_norm: HeadNorm | None = None
    soft_cap: float | None = None
    sinks: bool = False
    latent: LatentConfig | None = None

    @property
    def rotary_dims(self) -> int:
        """The size of a head's rotary part, unless its rope has `dims`."""
        return self.head_dim if self.latent is None else self.latent.rotary

    @property
    def entry_shape(self) -> tuple[int, int, int]:
        """The shape of a token's entry in pages: (sides, heads, head size). A single side is both keys and values."""
        return 1 if self.latent else 2, self.kv_heads, self.head_dim


@dataclass(frozen=True, slots=True)
class FeedForwardConfig:
    """Sizes and activation of a feed-forward layer.

    Attributes:
        width: the number of features between the two products.
        activation: the activation between the two products.
        gated: whether the activation of one half multiplies the other (Shazeer, 2020, arXiv:2002.05202).
        bias: whether the projections add a bias.
        limit: an upper bound of the activated half, and a bound of the other half's magnitude; None for no limit.
        offset: a number added to the other half.
    """

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    limit: float | None = None
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Rules for the choice and the weights of a token's experts.

    Attributes:
        per_token: the number of experts per token.
        scores: "softmax" over all experts, "chosen" for a softmax over the chosen experts alone, or "sigmoid".
        normalised: whether the weights of the chosen experts are divided by their sum.
        scale: a factor of the weights.
        bias: whether the router's product has a bias.
        correction: whether a bias is added to the scores for the choice, but not to the weights.
        groups: the number of groups of experts; only the best `groups_per_token` take part in the choice.
        groups_per_token: the number of groups to choose from.
        best_of_group: the number of best scores in a group, whose sum is the group's score.
    """

    per_token: int
    scores: Literal["softmax", "chosen", "sigmoid"] = "softmax"
    normalised: bool = False
    scale: float = 1.0
    bias: bool = False
    correction: bool = False
    groups: int = 1
    groups_per_token: int = 1
    best_of_group: int = 1


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Mixture-of-experts layer: each token uses a few of its experts (Shazeer et al., 2017, arXiv:1701.06538).

    Attributes:
        count: the number of experts.
        each: the config of each expert.
        router: the rules of the router.
        shared: an additional feed-forward layer for all tokens; None for none.
        shared_gate: whether the output of `shared` is multiplied by a sigmoid of the token.
    """

    count: int
    each: FeedForwardConfig
    router: RouterConfig
    shared: FeedForwardConfig | None = None
    shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Parts of a config with possible differences between layers.

    Attributes:
        rope: the rotary embedding; None for a layer without positions.
        window: the number of positions visible to a token, including itself; None for all.
        experts: the experts in place of the model's feed-forward layer; None for no experts.
    """

    rope: Rope | None
    window: int | None = None
    experts: ExpertsConfig | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """Names of tensors in a checkpoint. A layer's full names begin with `layers`, its number and a dot.

    A block is `x + after_attention(attention(before_attention(x)))`, then the same with the feed-forward layer. None
    stands for an absent norm.

    Attributes:
        qkv, gate_up: projections computed as one product, stored separately or together.
        expert_gate_up, expert_down: full names of each expert's tensors, with a placeholder for its number, or names
            of tensors of all experts, (expert, out, in).
        experts_transposed: whether tensors of all experts are (expert, in, out) instead, with the outputs of the two
            halves of `expert_gate_up` interleaved.
    """

    embedding: str = "model.embed_tokens"
    layers: str = "model.layers"
    norm: str = "model.norm"
    head: str = "lm_head"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    out: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    q: str = "self_attn.q_proj"
    q_latent: str = "self_attn.q_a_proj"
    q_latent_norm: str = "self_attn.q_a_layernorm"
    q_heads: str = "self_attn.q_b_proj"
    latent: str = "self_attn.kv_a_proj_with_mqa"
    latent_norm: str = "self_attn.kv_a_layernorm"
    latent_heads: str = "self_attn.kv_b_proj"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    expert_gate_up: tuple[str, ...] = ("mlp.experts.{expert}.gate_proj.weight", "mlp.experts.{expert}.up_proj.weight")
    expert_down: str = "mlp.experts.{expert}.down_proj.weight"
    expert_gate_up_bias: str = "mlp.experts.gate_up_proj_bias"
    expert_down_bias: str = "mlp.experts.down_proj_bias"
    experts_transposed: bool = False
    shared_gate_up: tuple[str, ...] = ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer.

    Attributes:
        family: the name of the entry in `families.registry.FAMILIES`, or the architecture of a user's family.
        max_context: the model's context length: the maximum number of tokens of prompt and output together.
        layers: one entry for each layer.
        norm: the normalisation around the layers and before the output projection.
        parallel: whether attention and feed-forward layer have the same normalised input, and are added together.
        tied_embeddings: whether the output projection is the embedding matrix.
        embedding_multiplier, residual_multiplier, logit_multiplier: factors of embeddings, of each branch added to the
            residual stream, and of logits.
        logit_cap: bounds logits by `cap * tanh(logit / cap)`; None for none.
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_context: int
    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    layers: tuple[LayerConfig, ...]
    norm: Norm
    parallel: bool = False
    tied_embeddings: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_cap: float | None = None
    names: Names = field(default_factory=Names)

    @classmethod
    def llama(
        cls,
        family: str,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_context: int,
        norm_eps: float,
        rope: Rope,
        *,
        tied_embeddings: bool = False,
    ) -> "ModelConfig":
        """Return the config of a Llama with these sizes."""
        return cls(
            family=family,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            max_context=max_context,
            attention=AttentionConfig(num_heads, num_kv_heads, head_dim, head_dim**-0.5),
            feed_forward=FeedForwardConfig(intermediate_size),
            layers=(LayerConfig(rope),) * num_layers,
            norm=Norm(norm_eps),
            tied_embeddings=tied_embeddings,
        )

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    def pool(self, pages: int, page_size: int, devices: int = 1) -> tuple[int, ...]:
        """Return the shape of a layer's pages on each device, for `api.empty` of the kernels.

        Each device has the same number of heads; some may be copies of another device's heads, or padding.
        """
        sides, heads, head_size = self.attention.entry_shape
        return pages, sides, -(-heads // devices), page_size, head_size

    @property
    def scalings_by_length(self) -> set[LongScaling | DynamicScaling]:
        """The scalings of long-context ropes: those dependent on the length of a request."""
        scalings = {layer.rope.scaling for layer in self.layers if layer.rope is not None}
        return {each for each in scalings if isinstance(each, LongScaling | DynamicScaling)}

    @property
    def numbers_per_token(self) -> int:
        """The size of a token's entries in the pages of all layers."""
        return self.num_layers * math.prod(self.attention.entry_shape)
