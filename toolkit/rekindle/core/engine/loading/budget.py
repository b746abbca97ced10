"""How the memory of a device is to be spent, known before anything is loaded."""

from dataclasses import dataclass
from typing import Final

from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.device.devices import memory_of, shares_memory
from rekindle.core.device.place import Place
from rekindle.core.device.programs.lowering import Programs
from rekindle.core.errors import ConfigError, ModelTooLarge
from rekindle.core.markup import size_text
from rekindle.core.models.config import LayerConfig, ModelConfig
from rekindle.core.scheduler.limits import DEFAULT_POOL_BYTES, EngineLimits
from rekindle.core.scheduler.requests.waiting import STAGED_PART

KEPT_FREE: Final = 16
"""One part in so many of a device's own memory is left to what nobody counts: gaps, and the code of programs.

On a TPU v5e, the code of SmolLM2's largest step is 97 MB, by its compiler.
"""
CPU_PART: Final = 4
"""On a CPU, whose memory others use too, the pool takes at most one part in so many of what is left."""
COPIES_OF_LOGITS: Final = 16
"""The most arrays as large as the logits of a step that sampling has at a time."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory that an engine needs beside its pages, and what is left for them; all in bytes.

    Attributes:
        place: the devices; all numbers are of one group of them together.
        memory: what programs on these can use in all; None if that is not known.
        weights: the weights, as the kernels read them.
        slots: the state of running requests beside their pages.
        workspace: what the largest step needs while it runs.
        measured: whether the compiler has said that; else it is a bound, reckoned from shapes.
    """

    place: Place
    memory: int | None
    weights: int
    slots: int
    workspace: int
    measured: bool

    @classmethod
    def of(
        cls, programs: Programs, config: ModelConfig, limits: EngineLimits, place: Place, workspace: int | None = None
    ) -> "Budget":
        """Return the budget of an engine.

        Args:
            workspace: what the compiler has said of the largest step.
        """
        devices, memory = place.tensor, memory_of(place.first)
        if memory is not None:
            memory = memory // limits.groups if shares_memory(place.first) else devices * memory
        return cls(
            place=place,
            memory=memory,
            weights=programs.weight_bytes,
            slots=devices * programs.slot_bytes,
            workspace=devices * (workspace_bound(config, limits) if workspace is None else workspace),
            measured=workspace is not None,
        )

    @property
    def beside_pages(self) -> int:
        """The bytes of all but the pages."""
        return self.weights + self.slots + self.workspace

    def pool(self, prefix_cache: bool) -> int:
        """Return the bytes that the pool may have if nobody says how large it is.

        They come from totals, and are rounded down by up to a sixteenth, so that each start finds the same number, and
        with it the programs that an earlier one has stored. On a device of its own the pool has all that is left, but
        for the pages that are staged on their way into it.

        Args:
            prefix_cache: whether pages are staged.
        """
        if self.memory is None:
            return DEFAULT_POOL_BYTES
        if shares_memory(self.place.first):
            return _rounded(min(DEFAULT_POOL_BYTES, (self.memory - self.beside_pages) // CPU_PART))
        left = self.memory - self.memory // KEPT_FREE - self.beside_pages
        return _rounded(left * STAGED_PART // (STAGED_PART + 1) if prefix_cache else left)

    def holds(self, pool: int) -> bool:
        """Tell whether a pool of so many bytes fits beside all else, and leaves what is to be kept free."""
        return self.memory is None or pool <= self.memory - self.memory // KEPT_FREE - self.beside_pages

    def check(self, limits: EngineLimits, source: str) -> None:
        """Check that all of it fits.

        Raises:
            ModelTooLarge: there is no room for one page beside the weights and a step.
            ConfigError: there is no room for so many pages.
        """
        if self.memory is None:
            return
        count = self.place.tensor
        devices, has = ("device", "has") if count == 1 else (f"{count} devices", "have")
        devices += " of a group" if self.place.data > 1 else ""
        pool, room = limits.pool.bytes, self.memory - self.beside_pages
        if room < 2 * limits.pool.page_bytes:
            smallest = 2 * limits.pool.page_bytes
            raise ModelTooLarge(
                f"{source} does not fit on {self.place}: its weights take {size_text(self.weights)}, the largest step "
                f"{size_text(self.slots + self.workspace)}, and the smallest pool of pages {size_text(smallest)}, "
                f"{size_text(self.beside_pages + smallest)} together, and the {devices} {has} {size_text(self.memory)} "
                'in all. Open it with dtype="bfloat16" if it is not, lower max_prefill_tokens and max_running, share '
                "it among more devices with tensor=, or take a smaller model or larger devices"
            )
        if pool > room:
            raise ConfigError(
                f"a pool of {limits.pool.num_pages - 1:,} pages needs {size_text(pool)}, and there is no room for it "
                f"beside {size_text(self.weights)} of weights and {size_text(self.slots + self.workspace)} for the "
                f"largest step on {self.place}, which {has} {size_text(self.memory)} in all; lower pool_bytes, or "
                f"num_pages to at most {room // limits.pool.page_bytes:,}"
            )


def workspace_bound(config: ModelConfig, limits: EngineLimits) -> int:
    """Return the bytes that the largest step of a model needs, as far as shapes tell; on CPUs and GPUs it is less.

    That is what a layer has at a time of every token, in float32, and what sampling has of every row that samples.
    """
    both = limits.ticks == "combined"
    tokens = limits.max_prefill_tokens + (limits.max_running if both else 0)
    samples = limits.max_prefill_tokens // QUERY_BLOCK + (limits.max_running if both else 0)
    attention = config.attention
    heads = (2 * attention.heads + 2 * attention.kv_heads) * attention.head_dim
    of_token = 6 * config.hidden_size + 2 * heads + max(_widths(config, layer) for layer in config.layers)
    of_sample = COPIES_OF_LOGITS * config.vocab_size
    return 4 * (max(tokens, limits.max_running) * of_token + max(samples, limits.max_running) * of_sample)


def _widths(config: ModelConfig, layer: LayerConfig) -> int:
    """Return how many numbers of a token a feed-forward layer has at a time."""
    experts = layer.experts
    if experts is None:
        return 3 * config.feed_forward.width
    shared = 0 if experts.shared is None else experts.shared.width
    return 3 * (experts.router.chosen * (experts.each.width + config.hidden_size) + shared) + 4 * experts.count


def _rounded(size: int) -> int:
    """Round down to one of sixteen sizes between each power of two and the next."""
    step = 1 << max(0, size.bit_length() - 5)
    return max(0, size) // step * step
