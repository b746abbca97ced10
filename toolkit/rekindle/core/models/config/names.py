"""Names of a model's tensors in a checkpoint."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """Names of tensors in a checkpoint. A layer's full names begin with `layers`, its number and a dot.

    A block is `x + after_attention(attention(before_attention(x)))`, then the same with the feed-forward layer. None
    stands for an absent norm.

    Attributes:
        positions, token_types: the tables of learned positions, and of types of tokens.
        embedding_norm: the norm of the sum of embeddings.
        distances: the table of summands of scores by distance.
        embedding_in, embedding_out: the projections of embeddings to features of tokens, and back before the head.
        qkv, gate_up: projections computed as one product, stored separately or together.
        qkv_by_head: whether the rows of a single `qkv` tensor are grouped by KV head: its queries, key and value.
        gate: the projection to the gates of attention's output.
        gated_queries: whether `gate` is no tensor, because each head's gate follows its query in the first `qkv`.
        transposed: whether projections are (in, out) instead of (out, in).
        clipped: whether each projection has bounds for its input and its output.
        expert_gate_up, expert_down: full names of each expert's tensors, with a placeholder for its number, or names
            of tensors of all experts, (expert, out, in).
        activation: the prefix of the learned numbers of an activation.
        correction_is_row: whether the correction of experts' scores is (1, expert).
        experts_transposed: whether tensors of all experts are (expert, in, out) instead.
        experts_interleaved: whether the outputs of the two halves of a transposed `expert_gate_up` are interleaved.
        router_scale, expert_scale: the weights of the router's norm, and a factor of each expert's weights.
        after_dense, before_experts, after_experts: the inner norms of a dense layer beside experts.
        state: the prefix of the tensors of a mixer with a state.
        state_in, state_out, convolution: its projections and its convolution, after the prefix.
        state_by_key_head: whether the rows of `state_in` are grouped by key head.
        latent_in, latent_out: the projections around experts over a latent.
        layer_scale: a factor of a layer's output; None for none.
        features, features_projection, features_norm: the table of token features, the projection of embeddings to
            features, and its norm.
        streams_in, streams_out: the projections of embeddings to streams, and of streams to one, without a number.
        altup, laurel: the prefixes of a layer's tensors for its streams, and for the summand beside attention.
        feature_gate, feature_out, after_features: a layer's projections to and from features, and the norm of their
            output.
    """

    embedding: str = "model.embed_tokens"
    positions: str = "model.embed_positions"
    token_types: str = "embeddings.token_type_embeddings"
    embedding_norm: str = "embeddings.LayerNorm"
    distances: str = "encoder.relative_attention_bias"
    embedding_in: str = "model.project_in"
    embedding_out: str = "model.project_out"
    layers: str = "model.layers"
    norm: str | None = "model.norm"
    head: str = "lm_head"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    qkv_by_head: bool = False
    gate: str = "self_attn.gate_proj"
    gated_queries: bool = False
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
    transposed: bool = False
    clipped: bool = False
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    activation: str = "mlp.act_fn"
    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    correction_is_row: bool = False
    expert_gate_up: tuple[str, ...] = ("mlp.experts.{expert}.gate_proj.weight", "mlp.experts.{expert}.up_proj.weight")
    expert_down: str = "mlp.experts.{expert}.down_proj.weight"
    expert_gate_up_bias: str = "mlp.experts.gate_up_proj_bias"
    expert_down_bias: str = "mlp.experts.down_proj_bias"
    experts_transposed: bool = False
    experts_interleaved: bool = True
    router_scale: str = "router.scale"
    expert_scale: str = "router.per_expert_scale"
    shared_gate_up: tuple[str, ...] = ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    after_dense: str = "post_feedforward_layernorm_1"
    before_experts: str = "pre_feedforward_layernorm_2"
    after_experts: str = "post_feedforward_layernorm_2"
    state: str = "mamba"
    state_in: tuple[str, ...] = ("in_proj",)
    state_out: str = "out_proj"
    convolution: str = "conv1d"
    state_by_key_head: bool = False
    latent_in: str = "mixer.fc1_latent_proj"
    latent_out: str = "mixer.fc2_latent_proj"
    layer_scale: str | None = None
    features: str = "model.embed_tokens_per_layer"
    features_projection: str = "model.per_layer_model_projection"
    features_norm: str = "model.per_layer_projection_norm"
    streams_in: str = "model.altup_projections"
    streams_out: str = "model.altup_unembed_projections"
    altup: str = "altup"
    laurel: str = "laurel"
    feature_gate: str = "per_layer_input_gate"
    feature_out: str = "per_layer_projection"
    after_features: str = "post_per_layer_input_norm"

    @property
    def base(self) -> str:
        """The first part of most names, with its dot, which files of base models omit."""
        return f"{self.layers.partition('.')[0]}."
