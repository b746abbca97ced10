"""What devices that share a model send each other in a step."""

from dataclasses import dataclass
from typing import Final

from rekindle.core.models.config import ModelConfig

ITEM_BYTES: Final = 4
"""All that is sent is float32."""


@dataclass(frozen=True, slots=True)
class Wire:
    """The numbers of a token that go over the wire, and the bytes that each device sends for them.

    In a ring of n devices, each sends 2 (n - 1) / n of what is summed over all of them, and (n - 1) / n of what is
    gathered from all.

    Attributes:
        devices: how many share the model.
        sums: how often numbers of a token are summed in a step.
        summed: the numbers of a token that are summed, in all of these sums.
        gathered: the logits of a token on all devices, with those that fill up the last one's share.
    """

    devices: int
    sums: int
    summed: int
    gathered: int

    @classmethod
    def of(cls, config: ModelConfig, devices: int) -> "Wire":
        """Return what is sent of a token of this model: its embedding, two branches a layer, and its logits."""
        if devices == 1:
            return cls(1, 0, 0, 0)
        means, norm = 0, config.attention.head_norm
        if norm is not None and norm.over == "all":  # of queries and of keys, whose heads are on all devices
            means = config.num_layers * 2 * (2 if norm.norm.centred else 1)
        branches = 1 + 2 * config.num_layers
        rows = -(-config.vocab_size // devices)
        return cls(devices, branches + means, branches * config.hidden_size + means, devices * rows)

    @property
    def computed(self) -> int:
        """The bytes that each device sends for a token that is computed."""
        return 2 * (self.devices - 1) * self.summed * ITEM_BYTES // self.devices

    @property
    def drawn(self) -> int:
        """The bytes that each device sends beside, if the next token is drawn, as for every decode row."""
        return (self.devices - 1) * self.gathered * ITEM_BYTES // self.devices
