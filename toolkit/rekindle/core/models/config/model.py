"""The config of a whole decoder, and of each layer."""

import math
from dataclasses import dataclass, field

from rekindle.core.models.config.attention import AttentionConfig, Norm, Rope
from rekindle.core.models.config.feed_forward import Activation, DualConfig, ExpertsConfig, FeedForwardConfig
from rekindle.core.models.config.names import Names
from rekindle.core.models.config.scaling import DynamicScaling, LongScaling
from rekindle.core.models.config.state import StateConfig


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One layer: attention or a mixer with a state, then a feed-forward layer, each added to the residual stream.

    Attributes:
        attention: the attention; None for a layer without attention.
        feed_forward: the feed-forward layer, dense or with experts; None for a layer without one.
        pages_of: the index of an earlier layer whose pages are read; None for the layer's own pages.
        state: the mixer with a state; None for none. Beside attention, it takes the same input, and both are added.
        attention_norm: whether the layer has the norm before its attention.
    """

    attention: AttentionConfig | None
    feed_forward: FeedForwardConfig | ExpertsConfig | DualConfig | None
    pages_of: int | None = None
    state: StateConfig | None = None
    attention_norm: bool = True


@dataclass(frozen=True, slots=True)
class LearnedPositions:
    """Table of position embeddings, added to token embeddings.

    Attributes:
        rows: the number of rows.
        offset: the row of the first position.
        skipped: a token that has the row before the first one, and counts as no position; None for none. It is for
            whole prompts in one tick.
    """

    rows: int
    offset: int = 0
    skipped: int | None = None


@dataclass(frozen=True, slots=True)
class DistanceBias:
    """Learned summands of scores by the distance of a key from its query, common to all layers (T5, MPNet).

    Half of the buckets are for keys behind the query. Half of a side's buckets are of one distance each, the others
    widen up to `farthest`.

    Attributes:
        buckets: the number of buckets, the rows of the table.
        farthest: the least distance of the last bucket.
    """

    buckets: int
    farthest: int = 128


@dataclass(frozen=True, slots=True)
class LinearBias:
    """Summands of scores that fall with the distance of a key, by a slope of each head (ALiBi, arXiv:2108.12409).

    Attributes:
        farthest: the largest distance.
    """

    farthest: int


@dataclass(frozen=True, slots=True)
class TokenFeatures:
    """Features of a token for each layer, added after its feed-forward layer (Gemma 3n's per-layer embeddings).

    They are the normalised mean of a table's row and of a projection of the token's embedding. A layer multiplies an
    activated projection of the residual stream by its features, and adds the normalised projection of the product.

    Attributes:
        size: the number of features of a layer.
        vocab_size: the number of rows of the table; other tokens have those of token 0.
        activation: the activation of a layer's projection.
        of_images: the token of whose row the features of an image's tokens are computed.
    """

    size: int
    vocab_size: int
    activation: Activation
    of_images: int = 0


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """Several residual streams with one computation (AltUp; Baykal et al., 2023, arXiv:2301.13310).

    A layer predicts all streams from all, computes with one of them, and corrects all by the result. The token's
    features are added to all streams but the first.

    Attributes:
        count: the number of streams.
        active: the index of the stream of the computation.
        scaled: whether features are computed from the active stream times learned weights.
    """

    count: int
    active: int
    scaled: bool


@dataclass(frozen=True, slots=True)
class DraftHeadConfig:
    """The head that guesses the token after the next one, and the names of its tensors.

    Attributes:
        layer: its layer.
        prefix: the prefix of the layer's names.
        embedding_norm, hidden_norm: the norms of its inputs.
        join: the projection of both inputs to that of the layer.
        norm: the norm after the layer.
    """

    layer: LayerConfig
    prefix: str = "mtp.layers.0"
    embedding_norm: str = "mtp.pre_fc_norm_embedding"
    hidden_norm: str = "mtp.pre_fc_norm_hidden"
    join: str = "mtp.fc"
    norm: str = "mtp.norm"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer.

    Attributes:
        family: the name of the entry in `families.registry.FAMILIES`, or the architecture of a user's family.
        max_context: the model's context length: the maximum number of tokens of prompt and output together.
        layers: one entry for each layer.
        norm: the normalisation around the layers and before the output projection.
        parallel: whether attention and feed-forward layer have the same input, and are added together.
        both_ways: whether each prompt is read in both directions, as one chunk.
        norm_sums: whether the norm after a branch takes the sum of the residual stream and the branch.
        embedding_size: the size of embeddings, if they are projected to `hidden_size` and back; None for `hidden_size`.
        embedding_bias: whether the projection of embeddings adds a bias.
        embedding_norm: the normalisation of the sum of a token's embedding with those of its type and its position,
            before a projection; None for none.
        token_types: the number of types of tokens, each with an embedding; 0 for none. The id of a token of type t is
            `t * vocab_size` above its id in the vocabulary.
        predicts: whether the model has an output projection.
        tied_embeddings: whether the output projection is the embedding matrix.
        embedding_multiplier, residual_multiplier, logit_multiplier: factors of embeddings, of each branch added to the
            residual stream, and of logits.
        rounded_embedding: whether `embedding_multiplier` is rounded to the weights' dtype, as in Gemma's training.
        positions: the table of learned positions; None for none.
        distances: the summands of scores by distance; None for none.
        features: the features of tokens for each layer; None for none.
        streams: several residual streams; None for a single one.
        laurel_rank: the rank of a learned summand of each layer, beside attention; None for none.
        head_bias: whether logits have a bias.
        logit_cap: bounds logits by `cap * tanh(logit / cap)`; None for none.
        draft_head: the head that guesses the token after the next one; None without.
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_context: int
    layers: tuple[LayerConfig, ...]
    norm: Norm
    parallel: bool = False
    both_ways: bool = False
    norm_sums: bool = False
    embedding_size: int | None = None
    embedding_bias: bool = False
    embedding_norm: Norm | None = None
    token_types: int = 0
    predicts: bool = True
    tied_embeddings: bool = False
    embedding_multiplier: float = 1.0
    rounded_embedding: bool = False
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    positions: LearnedPositions | None = None
    distances: DistanceBias | LinearBias | None = None
    features: TokenFeatures | None = None
    streams: StreamsConfig | None = None
    laurel_rank: int | None = None
    head_bias: bool = False
    logit_cap: float | None = None
    draft_head: DraftHeadConfig | None = None
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
        attention = AttentionConfig(num_heads, num_kv_heads, head_dim, head_dim**-0.5, rope)
        layer = LayerConfig(attention, FeedForwardConfig(intermediate_size))
        return cls(
            family=family,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            max_context=max_context,
            layers=(layer,) * num_layers,
            norm=Norm(norm_eps),
            tied_embeddings=tied_embeddings,
        )

    @property
    def typed_ids(self) -> int:
        """The number of token ids, with those of each type of token."""
        return self.vocab_size * max(1, self.token_types)

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def all_layers(self) -> tuple[LayerConfig, ...]:
        """The layers, and that of the draft head after them."""
        return self.layers if self.draft_head is None else (*self.layers, self.draft_head.layer)

    @property
    def takes_coordinates(self) -> bool:
        """True if the tokens of an image have positions by row and column."""
        return any(attention.rope is not None and attention.rope.axes is not None for attention in self.attentions)

    @property
    def attentions(self) -> tuple[AttentionConfig, ...]:
        """The attention of each layer that has one."""
        return tuple(layer.attention for layer in self.layers if layer.attention is not None)

    @property
    def images_both_ways(self) -> bool:
        """True if tokens of an image see later ones of the image in some layers."""
        return not self.both_ways and any(attention.ahead != 0 for attention in self.attentions)

    @property
    def paged(self) -> tuple[AttentionConfig, ...]:
        """The attention of each layer with pages of its own, in order; that of the draft head is last."""
        return tuple(
            layer.attention for layer in self.all_layers if layer.attention is not None and layer.pages_of is None
        )

    @property
    def page_places(self) -> tuple[int | None, ...]:
        """The index in `paged` of the pages of each layer; None for a layer without attention."""
        places: list[int | None] = []
        count = 0
        for layer in self.layers:
            if layer.attention is None:
                places.append(None)
            elif layer.pages_of is None:
                places.append(count)
                count += 1
            else:
                places.append(places[layer.pages_of])
        return tuple(places)

    @property
    def state_places(self) -> tuple[int | None, ...]:
        """The index of each layer's state among all states; None for a layer without a state."""
        has_state = [layer.state is not None for layer in self.layers]
        return tuple(sum(has_state[:i]) if each else None for i, each in enumerate(has_state))

    def states(self, devices: int = 1) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the shapes of a slot's state in each layer with a state, on each device."""
        return tuple(layer.state.shapes(devices) for layer in self.layers if layer.state is not None)

    @property
    def state_bytes(self) -> int:
        """The bytes of one request's states, float32; 0 for a model without states."""
        return 4 * sum(math.prod(shape) for state in self.states() for shape in state)

    def pools(self, pages: int, page_size: int, devices: int = 1) -> tuple[tuple[int, ...], ...]:
        """Return the shape of the pages of each layer with pages, on each device, for `api.empty` of the kernels.

        Each device has the same number of heads; some may be copies of another device's heads, or padding.
        """
        shapes = (attention.entry_shape for attention in self.paged)
        return tuple((pages, sides, -(-heads // devices), page_size, size) for sides, heads, size in shapes)

    @property
    def scalings_by_length(self) -> set[LongScaling | DynamicScaling]:
        """The scalings of long-context ropes: those dependent on the length of a request."""
        scalings = {attention.rope.scaling for attention in self.attentions if attention.rope is not None}
        return {each for each in scalings if isinstance(each, LongScaling | DynamicScaling)}

    @property
    def numbers_per_token(self) -> int:
        """The size of a token's entries in the pages of all layers."""
        return sum(math.prod(attention.entry_shape) for attention in self.paged)
