"""Configs of feed-forward layers, dense or with experts."""

from dataclasses import dataclass
from typing import Literal

from rekindle.core.models.config.attention import Norm

Activation = Literal["silu", "gelu", "gelu_tanh", "gelu_quick", "relu", "relu_squared", "xielu"]
"""Activations; "xielu" has learned numbers, and no gate (Huang and Schlag, 2024, arXiv:2411.13010)."""


@dataclass(frozen=True, slots=True)
class FeedForwardConfig:
    """Sizes and activation of a feed-forward layer.

    Attributes:
        width: the number of features between the two products.
        activation: the activation between the two products.
        gated: whether the activation of one half multiplies the other (Shazeer, 2020, arXiv:2002.05202).
        bias: whether the projections add a bias.
        out_bias: whether the last one does, whatever `bias` is.
        limit: an upper bound of the activated half, and a bound of the other half's magnitude; None for no limit.
        offset: a number added to the other half.
        cutoff: keeps the activated half above its mean by so many standard deviations, minus this bound; 0 for the
            rest. None for all of it.
        gate_multiplier: a factor of the half to be activated.
        multiplier: a factor of the result.
    """

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    out_bias: bool = False
    limit: float | None = None
    offset: float = 0.0
    cutoff: float | None = None
    gate_multiplier: float = 1.0
    multiplier: float = 1.0


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Rules for the choice and the weights of a token's experts.

    Attributes:
        per_token: the number of experts per token.
        scores: "softmax" over all experts, "chosen" for a softmax over the chosen experts alone, "sigmoid", or "alike"
            for a softmax of each chosen expert over the ones not yet chosen within `tolerance` (SparseMixer-v2: Liu et
            al., 2024, arXiv:2409.12136).
        normalised: whether the weights of the chosen experts are divided by their sum.
        scale: a factor of the weights.
        bias: whether the router's product has a bias.
        correction: whether a bias is added to the scores for the choice, but not to the weights.
        groups: the number of groups of experts; only the best `groups_per_token` take part in the choice.
        groups_per_token: the number of groups to choose from.
        best_of_group: the number of best scores in a group, whose sum is the group's score.
        norm: the normalisation of the router's tokens, also divided by the square root of their size; None for none.
        expert_scale: whether each expert's weights have a learned factor.
        eps: a number added to the sum of the weights of the chosen experts.
        tolerance: the difference of like logits, relative to the larger of a logit's magnitude and the best logit.
    """

    per_token: int
    scores: Literal["softmax", "chosen", "sigmoid", "alike"] = "softmax"
    normalised: bool = False
    scale: float = 1.0
    bias: bool = False
    correction: bool = False
    groups: int = 1
    groups_per_token: int = 1
    best_of_group: int = 1
    norm: Norm | None = None
    expert_scale: bool = False
    eps: float = 0.0
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Mixture-of-experts layer: each token uses a few of its experts (Shazeer et al., 2017, arXiv:1701.06538).

    Attributes:
        count: the number of experts.
        each: the config of each expert.
        router: the rules of the router.
        shared: an additional feed-forward layer for all tokens; None for none.
        shared_gate: whether the output of `shared` is multiplied by a sigmoid of the token.
        shared_scale: a factor of the output of `shared`.
        weighted_inputs: whether weights multiply the inputs of experts instead of their outputs.
        latent: the size of a projection of tokens, the input and output of experts other than `shared`; None for none.
    """

    count: int
    each: FeedForwardConfig
    router: RouterConfig
    shared: FeedForwardConfig | None = None
    shared_gate: bool = False
    shared_scale: float = 1.0
    weighted_inputs: bool = False
    latent: int | None = None


@dataclass(frozen=True, slots=True)
class DualConfig:
    """A dense layer and experts over the same tokens, each between norms; their outputs are added.

    Attributes:
        dense: the dense layer.
        experts: the experts. Their router takes tokens before the norm.
    """

    dense: FeedForwardConfig
    experts: ExpertsConfig
