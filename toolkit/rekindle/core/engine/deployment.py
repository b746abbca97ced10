"""The facts of a deployment: where the weights are, and in which form. They can be sent to another process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rekindle.core.device.place import Place
from rekindle.core.markup import quantity
from rekindle_kernels.api import Implementation


@dataclass(frozen=True, slots=True)
class Deployment:
    """The weights on their devices; `str` names the devices.

    Attributes:
        dtype: the dtype of weights and pages, by name.
        implementation: of the kernels.
        weight_bytes: the size of the weights on one group of devices.
        where: the devices of all lanes, in words.
        platform: of the devices, as JAX names it.
        devices: the number of devices of all lanes.
        tensor: the number of devices that share a model.
        copies: the number of groups of devices that have the weights; lanes on the same devices share them.
        spread: why it is so many devices, in words; empty if that is no choice of Rekindle's.
        kernels: those that serve, in words.
        apart: whether the first lane computes prompts and the second generates.
    """

    dtype: str
    implementation: Implementation
    weight_bytes: int
    where: str = ""
    platform: str = ""
    devices: int = 1
    tensor: int = 1
    copies: int = 1
    spread: str = ""
    kernels: str = ""
    apart: bool = False

    def __str__(self) -> str:
        return self.where

    def over(self, places: Sequence[Place]) -> "Deployment":
        """Return the same on the devices of these lanes."""
        first = places[0]
        if self.apart:
            where = f"{first} to prefill, {places[1]} to decode"
        else:
            alone = ", ".join(dict.fromkeys(map(str, places)))
            where = alone if len(places) == 1 else f"{alone} in {quantity(len(places), 'lane')}"
        return replace(
            self,
            where=where,
            platform=first.first.platform,
            devices=len({device for place in places for device in place.devices}),
            tensor=first.tensor,
            copies=sum(place.data for place in set(places)),
        )

    def repeated(self, times: int) -> "Deployment":
        """Return the facts of so many replicas, each of them a deployment like this."""
        where = f"{self.where} in {quantity(times, 'replica')}"
        return replace(self, where=where, devices=times * self.devices, copies=times * self.copies)
