"""Everything that tells one decoder from another, wherever it was read."""

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
        dims: how many of a head's first numbers turn; None for all.
        neighbours: whether the pairs in a checkpoint are (2i, 2i + 1), rather than (i, i + dims / 2).
    """

    theta: float
    scaling: Scaling | None = None
    dims: int | None = None
    neighbours: bool = False


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation of features.

    Attributes:
        eps: added to the mean square or to the variance.
        centred: whether the mean is subtracted first: a LayerNorm (Ba et al., 2016, arXiv:1607.06450) rather than an
            RMSNorm (Zhang and Sennrich, 2019, arXiv:1910.07467).
        offset: added to the weights of the checkpoint.
        bias: whether a bias is added.
    """

    eps: float
    centred: bool = False
    offset: float = 0.0
    bias: bool = False


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """A normalisation of queries and keys.

    Attributes:
        norm: what is computed.
        over: "head" for each head with the same weights, "own" for each head with weights of its own, "all" for all
            heads of a token together.
        after_rope: whether it comes after the positions.
    """

    norm: Norm
    over: Literal["head", "own", "all"] = "head"
    after_rope: bool = False


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-AI, 2024, arXiv:2405.04434): the parts of its queries, keys and values.

    Attributes:
        rank: numbers of a token's latent, of which each head makes its key and its value.
        plain, turned: numbers of a head's query that have no position, and that have one. All heads share the keys of
            the latter.
        value: numbers of a head's value.
        norm: of latents.
        query_rank: numbers of the latent of which queries are made; None if they are made of the token.
        bias: whether the projections to latents and out of the heads add a bias.
    """

    rank: int
    plain: int
    turned: int
    value: int
    norm: Norm
    query_rank: int | None = None
    bias: bool = False


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Grouped-query attention (Ainslie et al., 2023, arXiv:2305.13245).

    Attributes:
        scale: of the products of queries and keys.
        qkv_bias, out_bias: whether these projections add a bias.
        head_norm: of queries and keys; None for none.
        soft_cap: bounds scores by `cap * tanh(score / cap)`; None for none.
        sinks: whether each head has the learned score of one more position, whose values are zeros.
        latent: how keys that are values too are made of a token's latent; None for keys and values of their own.
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
    def turned(self) -> int:
        """Return how many numbers of a head turn with its position, if its rope does not say."""
        return self.head_dim if self.latent is None else self.latent.turned

    @property
    def stored(self) -> tuple[int, int, int]:
        """Return what pages hold of a token: (sides, heads, numbers of a head). A single side is keys and values."""
        return 1 if self.latent else 2, self.kv_heads, self.head_dim


@dataclass(frozen=True, slots=True)
class FeedForwardConfig:
    """The feed-forward layer.

    Attributes:
        width: features between its two products.
        activation: of them.
        gated: whether the activation of one half multiplies the other (Shazeer, 2020, arXiv:2002.05202).
        bias: whether its projections add a bias.
        limit: bounds the activated half from above, and the other one from both sides; None for no limit.
        offset: added to the other half.
    """

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    limit: float | None = None
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """The rules by which experts are chosen for a token, and weighed.

    Attributes:
        chosen: how many experts a token goes to.
        scores: "softmax" over all experts, "chosen" for a softmax over the chosen ones alone, or "sigmoid".
        normalised: whether the weights of the chosen ones are divided by their sum.
        scale: of the weights.
        bias: whether the router's product has a bias.
        correction: whether a bias is added to the scores that choose, but not to those that weigh.
        groups: into how many groups the experts are divided; of these the best `chosen_groups` remain.
        best_of_group: how many of a group's scores, added up, stand for it.
    """

    chosen: int
    scores: Literal["softmax", "chosen", "sigmoid"] = "softmax"
    normalised: bool = False
    scale: float = 1.0
    bias: bool = False
    correction: bool = False
    groups: int = 1
    chosen_groups: int = 1
    best_of_group: int = 1


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A feed-forward layer of experts, of which each token goes to a few (Shazeer et al., 2017, arXiv:1701.06538).

    Attributes:
        count: the number of experts.
        each: one of them.
        router: how they are chosen.
        shared: a feed-forward layer that all tokens go to besides; None for none.
        shared_gate: whether what comes out of it is multiplied by a sigmoid of the token.
    """

    count: int
    each: FeedForwardConfig
    router: RouterConfig
    shared: FeedForwardConfig | None = None
    shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The parts that may differ from layer to layer.

    Attributes:
        rope: None for a layer without positions.
        window: how many positions a token sees, its own included; None for all.
        experts: in place of the model's feed-forward layer; None for that one.
    """

    rope: Rope | None
    window: int | None = None
    experts: ExpertsConfig | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """The names of tensors in a checkpoint. Those of a layer follow `layers`, a number and a dot; None is not there.

    A block is `x + after_attention(attention(before_attention(x)))`, then the same with the feed-forward layer.

    Attributes:
        qkv, gate_up: projections that are computed as one, stored apart or together.
        expert_gate_up, expert_down: whole names of each expert's tensors, if they have a place for its number. Else
            those of all experts, (expert, out, in).
        experts_turned: whether the tensors of all experts are (expert, in, out) instead, with the outputs of the two
            halves of `expert_gate_up` in turns.
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
    experts_turned: bool = False
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
        family: the name of its entry in `families.known.FAMILIES`, or the architecture of a family of one's own.
        max_context: the most tokens, prompt and output together, that the model was trained for.
        layers: one entry for each layer.
        parallel: whether attention and feed-forward layer read the same normalised input, and are added together.
        tied_embeddings: whether the output projection is the embedding matrix.
        embedding_multiplier, residual_multiplier, logit_multiplier: of embeddings, of what is added to the residual
            stream, and of logits.
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
        """Return the config of a decoder that differs from other Llamas in sizes only."""
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
        """Return the shape of the pages of a layer on each of so many devices, as `api.empty` of the kernels takes it.

        Each has as many heads, of which some may be those of others too, or none.
        """
        sides, heads, numbers = self.attention.stored
        return pages, sides, -(-heads // devices), page_size, numbers

    @property
    def scalings_by_length(self) -> set[LongScaling | DynamicScaling]:
        """Return the scalings of ropes that depend on how long a request is."""
        scalings = {layer.rope.scaling for layer in self.layers if layer.rope is not None}
        return {each for each in scalings if isinstance(each, LongScaling | DynamicScaling)}

    @property
    def numbers_of_a_token(self) -> int:
        """The numbers that pages hold of one token, in all layers."""
        return self.num_layers * math.prod(self.attention.stored)
