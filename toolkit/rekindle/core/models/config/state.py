"""Configs of layers with a state: a fixed number of numbers for each request, whatever its length."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rekindle.core.models.config.attention import Norm
from rekindle.core.models.config.partition import Order, elements_of, heads_of, units_of

Shapes: TypeAlias = tuple[tuple[int, ...], ...]
Parts: TypeAlias = tuple[tuple[int, Order], ...]
"""For each array of a slot's state, its divided axis, and the indices along it in the whole array of each device's
elements, device by device; -1 for padding."""


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A gated short convolution (Liquid AI, 2025, arXiv:2511.23404).

    Attributes:
        channels: the number of channels.
        taps: the number of inputs in each output.
        bias: whether projections and convolution add a bias.
    """

    channels: int
    taps: int
    bias: bool = False

    def shapes(self, devices: int = 1) -> Shapes:
        """Return the shape of each array of a slot's state, on each device."""
        return ((self.taps - 1, -(-self.channels // devices)),)

    def parts(self, devices: int) -> Parts:
        """Return the division of each array between devices."""
        return ((1, np.concatenate([units_of(self.channels, rank, devices) for rank in range(devices)])),)


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """A gated delta net (Yang et al., 2024, arXiv:2412.06464).

    Attributes:
        heads, key_heads: the number of value heads, and of heads of queries and keys, each of several value heads.
        key_size, value_size: the size of a head's key, and of its value.
        taps: the number of inputs in each output of the convolution over queries, keys and values.
        norm: the normalisation of each head's output.
    """

    heads: int
    key_heads: int
    key_size: int
    value_size: int
    taps: int
    norm: Norm

    def shapes(self, devices: int = 1) -> Shapes:
        """Return the shape of each array of a slot's state, on each device: inputs of the convolution, matrices."""
        heads, keys = map(len, heads_of(self.heads, self.key_heads, 0, devices))
        channels = 2 * keys * self.key_size + heads * self.value_size
        return (self.taps - 1, channels), (heads, self.key_size, self.value_size)

    def parts(self, devices: int) -> Parts:
        """Return the division of each array between devices."""
        all_keys = self.key_heads * self.key_size
        each = [heads_of(self.heads, self.key_heads, rank, devices) for rank in range(devices)]
        channels = [
            elements_of(
                (keys, self.key_size, 0), (keys, self.key_size, all_keys), (heads, self.value_size, 2 * all_keys)
            )
            for heads, keys in each
        ]
        return (1, np.concatenate(channels)), (0, np.concatenate([heads for heads, _ in each]))


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A Mamba-2 layer (Dao and Gu, 2024, arXiv:2405.21060).

    Attributes:
        heads, groups: the number of heads, and of groups of heads with common keys and queries (B and C).
        head_size: the size of a head's value.
        state_size: the size of a group's key.
        taps: the number of inputs in each output of the convolution over values, keys and queries.
        bias, out_bias, convolution_bias: whether the projections in and out and the convolution add a bias.
        steps: the smallest and the largest step; None for any.
        norm: the normalisation of each group's output; None for none.
        gate_first: whether the gate comes before the norm.
        multipliers: factors of the projected gate, values, keys, queries and steps; empty for ones.
        multiplier: a factor of the result.
    """

    heads: int
    groups: int
    head_size: int
    state_size: int
    taps: int
    bias: bool = False
    out_bias: bool = False
    convolution_bias: bool = True
    steps: tuple[float, float] | None = None
    norm: Norm | None = None
    gate_first: bool = True
    multipliers: tuple[float, ...] = ()
    multiplier: float = 1.0

    def shapes(self, devices: int = 1) -> Shapes:
        """Return the shape of each array of a slot's state, on each device: inputs of the convolution, matrices."""
        heads, groups = map(len, heads_of(self.heads, self.groups, 0, devices))
        channels = heads * self.head_size + 2 * groups * self.state_size
        return (self.taps - 1, channels), (heads, self.state_size, self.head_size)

    def parts(self, devices: int) -> Parts:
        """Return the division of each array between devices."""
        values, all_keys = self.heads * self.head_size, self.groups * self.state_size
        each = [heads_of(self.heads, self.groups, rank, devices) for rank in range(devices)]
        channels = [
            elements_of(
                (heads, self.head_size, 0),
                (groups, self.state_size, values),
                (groups, self.state_size, values + all_keys),
            )
            for heads, groups in each
        ]
        return (1, np.concatenate(channels)), (0, np.concatenate([heads for heads, _ in each]))

    def divides_groups(self, devices: int) -> bool:
        """Return True if devices share the heads of a group."""
        return self.groups < devices


StateConfig: TypeAlias = ShortConvolution | DeltaNet | Mamba2
