"""Facts about a deployment: devices, data type and kernels of an engine. They can be sent to another process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rekindle.core.device.place import Place
from rekindle.core.models.weights.form import WeightForm
from rekindle.core.words import quantity
from rekindle_kernels.api import Implementation


@dataclass(frozen=True, slots=True)
class Deployment:
    """The devices of an engine, and the form of the weights on them; `str` names the devices.

    Attributes:
        dtype: data type of weights that are not packed, by name.
        form: form of the weights.
        implementation: implementation of the kernels.
        weight_bytes: size of the weights on one group of devices.
        where: devices of all lanes, as text.
        platform: platform of the devices in JAX.
        devices: number of devices of all lanes.
        tensor: number of devices in a tensor-parallel group.
        copies: number of groups with a copy of the weights; lanes on the same devices share one.
        spread: reason for the number of devices, as text; empty unless Rekindle chose it.
        kernels: kernels in use, as text.
        fallback: reason against the kernels of the platform, as text; empty with them, or if the settings name others.
        apart: True if the first lane computes prompts and the second generates.
        kv_dtype: data type of keys and values in pages, by name; empty if it is `dtype`.
        logits_processor: name of the logits processor, with a digest of its computation; empty without one.
    """

    dtype: str
    form: WeightForm
    implementation: Implementation
    weight_bytes: int
    where: str = ""
    platform: str = ""
    devices: int = 1
    tensor: int = 1
    copies: int = 1
    spread: str = ""
    kernels: str = ""
    fallback: str = ""
    apart: bool = False
    kv_dtype: str = ""
    logits_processor: str = ""

    @property
    def dtypes(self) -> str:
        """The data type of weights, and that of pages if it is another one, as text."""
        return f"{self.dtype}, {self.kv_dtype} pages" if self.kv_dtype else self.dtype

    def __str__(self) -> str:
        return self.where

    @property
    def numbers(self) -> str:
        """The data types, and the kinds of packed weights, as text."""
        return f"{self.dtypes}, weights packed as {self.form}" if self.form.kinds else self.dtypes

    def over(self, places: Sequence[Place]) -> "Deployment":
        """Return the deployment on the devices of several lanes."""
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
        """Return the facts of several replicas with this deployment each."""
        where = f"{self.where} in {quantity(times, 'replica')}"
        return replace(self, where=where, devices=times * self.devices, copies=times * self.copies)
