"""Traffic between the devices of a group in a step."""

from dataclasses import dataclass
from typing import Final

from rekindle.core.models.config import DualConfig, FeedForwardConfig, LayerConfig, Mamba2, ModelConfig

ITEM_BYTES: Final = 4
"""Bytes of a transferred element: always float32."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Collective traffic per token: transferred elements, and bytes sent by each device.

    In a ring of n devices, each device sends 2 (n - 1) / n of a sum's elements, and (n - 1) / n of a gathered array.

    Attributes:
        devices: the number of devices in a group.
        sums: the number of sums over devices in a step.
        sum_elements: the elements per token in all sums together.
        logit_elements: the gathered logits per token, including the padding of the last device.
    """

    devices: int
    sums: int
    sum_elements: int
    logit_elements: int

    @classmethod
    def of(cls, config: ModelConfig, devices: int) -> "Wire":
        """Return the traffic of this model: embeddings of tokens, branches of layers, and logits."""
        if devices == 1:
            return cls(1, 0, 0, 0)
        means = 0
        for attention in config.attentions:
            norm = attention.head_norm
            if norm is not None and norm.over == "all":  # of queries and of keys, with heads on all devices
                means += 2 * (2 if norm.norm.centred else 1)
        means += 2 * sum(map(_is_sparse, config.layers))  # the mean and the deviation
        cut = [each.groups for each in map(_mamba, config.layers) if each is not None and each.divides_groups(devices)]
        branches = sum(map(_branches, config.all_layers)) + (0 if config.positions is None else 1)
        heads = 1 if config.draft_head is None else 2  # the draft head embeds a token, and computes logits
        embedding = config.hidden_size if config.embedding_size is None else config.embedding_size
        features = 0 if config.features is None else config.features.size * config.num_layers
        rows, elements = (
            -(-config.vocab_size // devices),
            branches * config.hidden_size + heads * embedding + features + means + sum(cut),
        )
        sums = heads + branches + means + len(cut) + (1 if features else 0)
        return cls(devices, sums, elements, heads * devices * rows)

    @property
    def per_token(self) -> int:
        """The bytes sent by each device for each computed token."""
        return 2 * (self.devices - 1) * self.sum_elements * ITEM_BYTES // self.devices

    @property
    def per_sample(self) -> int:
        """The additional bytes sent by each device for each sampled token, such as for every decode row."""
        return (self.devices - 1) * self.logit_elements * ITEM_BYTES // self.devices


def _is_sparse(layer: LayerConfig) -> bool:
    return isinstance(layer.feed_forward, FeedForwardConfig) and layer.feed_forward.cutoff is not None


def _mamba(layer: LayerConfig) -> Mamba2 | None:
    """Return the config of a layer's Mamba-2 with a norm, or None."""
    return layer.state if isinstance(layer.state, Mamba2) and layer.state.norm is not None else None


def _branches(layer: LayerConfig) -> int:
    """Return the number of a layer's summands that are summed over devices."""
    feed_forwards = 0 if layer.feed_forward is None else 2 if isinstance(layer.feed_forward, DualConfig) else 1
    return feed_forwards + (layer.attention is not None) + (layer.state is not None)
