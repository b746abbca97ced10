"""The division of a device's memory, planned before anything is loaded."""

from dataclasses import dataclass
from typing import Final

from rekindle.assembly.devices import memory_of, shares_memory
from rekindle.assembly.limits.resolution import DEFAULT_POOL_BYTES
from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.device.place import Place
from rekindle.core.device.programs.shapes import ModelShapes
from rekindle.core.errors import ConfigError, ModelTooLarge
from rekindle.core.models.config import DualConfig, ExpertsConfig, FeedForwardConfig, ModelConfig
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.requests.waiting import STAGED_PART
from rekindle.core.words import size_text

KEPT_FREE: Final = 16
"""One part in this many of an accelerator's memory stays free, for uncounted uses: gaps, and the code of programs.

On a TPU v5e, the code of SmolLM2's largest step is 97 MB, by its compiler.
"""
CPU_PART: Final = 4
"""On a CPU, with memory shared by other programs, the pool takes at most one part in this many of the rest."""
COPIES_OF_LOGITS: Final = 16
"""Most arrays with the size of a step's logits alive at a time in sampling."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory of one group of devices, and the parts of it for everything except pages, in bytes.

    Attributes:
        place: the devices; all sizes are totals over one group of them.
        memory: memory available to programs on the devices; None if unknown.
        weights: weights in the layout of the kernels, with the room set aside for adapters and images.
        slots: state of running requests, without pages.
        workspace: temporary memory of the largest step.
        measured: True if `workspace` is the compiler's figure, False if it is a bound derived from shapes.
    """

    place: Place
    memory: int | None
    weights: int
    slots: int
    workspace: int
    measured: bool

    @classmethod
    def of(
        cls,
        shapes: ModelShapes,
        config: ModelConfig,
        limits: EngineLimits,
        place: Place,
        workspace: int | None = None,
        adapters: int = 0,
    ) -> "Budget":
        """Return the budget of an engine.

        Args:
            workspace: the compiler's figure for the largest step; None for a bound.
            adapters: the bytes to set aside for adapters and images.
        """
        devices, memory = place.tensor, memory_of(place.first)
        if memory is not None:
            memory = memory // limits.groups if shares_memory(place.first) else devices * memory
        return cls(
            place=place,
            memory=memory,
            weights=shapes.weight_bytes + adapters,
            slots=devices * shapes.state.slot_bytes,
            workspace=devices
            * (workspace_bound(config, limits) + shapes.widened_bytes if workspace is None else workspace),
            measured=workspace is not None,
        )

    @property
    def fixed_bytes(self) -> int:
        """Bytes of everything except the pages."""
        return self.weights + self.slots + self.workspace

    def pool(self, prefix_cache: bool) -> int:
        """Return the default size of the pool in bytes.

        It derives from totals, rounded down by up to a sixteenth, so that each start computes the same number and finds
        the programs stored by earlier starts. On a device with its own memory, the pool gets all the rest, apart from
        pages staged on their way into the pool.

        Args:
            prefix_cache: True if pages are staged.
        """
        if self.memory is None:
            return DEFAULT_POOL_BYTES
        if shares_memory(self.place.first):
            return _rounded(min(DEFAULT_POOL_BYTES, (self.memory - self.fixed_bytes) // CPU_PART))
        rest = self.memory - self.memory // KEPT_FREE - self.fixed_bytes
        return _rounded(rest * STAGED_PART // (STAGED_PART + 1) if prefix_cache else rest)

    def holds(self, pool: int) -> bool:
        """Return True if a pool of this size fits, with the reserve left free."""
        return self.memory is None or pool <= self.memory - self.memory // KEPT_FREE - self.fixed_bytes

    def share(self, pool: int) -> float:
        """Return the part of the devices' memory for an engine with a pool of this size; 0 for an unknown memory."""
        return 0.0 if self.memory is None else (self.fixed_bytes + pool) / self.memory

    def check(self, limits: EngineLimits, source: str) -> None:
        """Check the sizes against the memory of the devices.

        Raises:
            ModelTooLarge: there is no room for one page in addition to the weights and a step.
            ConfigError: there is no room for the pool of pages.
        """
        if self.memory is None:
            return
        count = self.place.tensor
        devices, has = ("device", "has") if count == 1 else (f"{count} devices", "have")
        devices += " of a group" if self.place.data > 1 else ""
        pool, room = limits.pool.bytes, self.memory - self.fixed_bytes
        if room < 2 * limits.pool.page_bytes:
            smallest = 2 * limits.pool.page_bytes
            raise ModelTooLarge(
                f"{source} does not fit on {self.place}: its weights take {size_text(self.weights)}, the largest step "
                f"{size_text(self.slots + self.workspace)}, and the smallest pool of pages {size_text(smallest)}, "
                f"{size_text(self.fixed_bytes + smallest)} together, and the {devices} {has} {size_text(self.memory)} "
                "in all"
            )
        if pool > room:
            raise ConfigError(
                f"out of memory: a pool of {limits.pool.num_pages - 1:,} pages needs {size_text(pool)}, in addition to "
                f"{size_text(self.weights)} of weights and {size_text(self.slots + self.workspace)} for the largest "
                f"step, and {self.place} {has} {size_text(self.memory)} in all; lower pool_bytes, or num_pages to at "
                f"most {room // limits.pool.page_bytes:,}"
            )


def workspace_bound(config: ModelConfig, limits: EngineLimits) -> int:
    """Return an upper bound of the largest step's temporary bytes, from shapes; CPUs and GPUs need less.

    It counts a layer's values for every token, in float32, and the sampler's values for every sampled row.
    """
    both = limits.ticks == "combined"
    tokens = limits.max_prefill_tokens + (limits.max_running if both else 0)
    samples = limits.max_prefill_tokens // QUERY_BLOCK + (limits.max_running if both else 0)
    heads = max((2 * each.heads + 2 * each.kv_heads) * each.head_dim for each in config.attentions)
    features = 0 if config.features is None else 3 * config.features.size * config.num_layers
    widths = max(_widths(config.hidden_size, layer.feed_forward) for layer in config.layers)
    streams = 0 if config.streams is None else 3 * config.streams.count
    of_token = (6 + streams) * config.hidden_size + 2 * heads + features + widths
    of_sample = COPIES_OF_LOGITS * config.vocab_size
    return 4 * (max(tokens, limits.max_running) * of_token + max(samples, limits.max_running) * of_sample)


def _widths(hidden: int, config: FeedForwardConfig | ExpertsConfig | DualConfig | None) -> int:
    """Return the numbers per token alive at a time in a feed-forward layer."""
    match config:
        case None:
            return 0
        case FeedForwardConfig():
            return 3 * config.width
        case DualConfig():
            return hidden + max(_widths(hidden, config.dense), _widths(hidden, config.experts))
    shared = 0 if config.shared is None else config.shared.width
    return 3 * (config.router.per_token * (config.each.width + hidden) + shared) + 4 * config.count


def _rounded(size: int) -> int:
    """Round down to one of sixteen sizes between each power of two and the next."""
    step = 1 << max(0, size.bit_length() - 5)
    return max(0, size) // step * step
