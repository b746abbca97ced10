"""Traffic between the devices of a group in a step."""

from dataclasses import dataclass
from typing import Final

from rekindle.core.models.config import ModelConfig

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
        """Return the traffic of this model: a token's embedding, two branches per layer, and its logits."""
        if devices == 1:
            return cls(1, 0, 0, 0)
        means, norm = 0, config.attention.head_norm
        if norm is not None and norm.over == "all":  # of queries and of keys, with heads on all devices
            means = config.num_layers * 2 * (2 if norm.norm.centred else 1)
        branches = 1 + 2 * config.num_layers
        rows = -(-config.vocab_size // devices)
        return cls(devices, branches + means, branches * config.hidden_size + means, devices * rows)

    @property
    def per_token(self) -> int:
        """The bytes sent by each device for each computed token."""
        return 2 * (self.devices - 1) * self.sum_elements * ITEM_BYTES // self.devices

    @property
    def per_sample(self) -> int:
        """The additional bytes sent by each device for each sampled token, such as for every decode row."""
        return (self.devices - 1) * self.logit_elements * ITEM_BYTES // self.devices
