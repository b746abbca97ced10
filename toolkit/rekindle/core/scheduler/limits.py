"""Settings of a session, resolved for one model."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from rekindle.core import buckets
from rekindle.core.config import DraftSource, Policy, Settings, Ticks
from rekindle.core.errors import ConfigError
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.config.scaling import DynamicScaling
from rekindle.core.scheduler.model_checks import check_model

DEFAULT_POOL_BYTES = 1 << 30
DEFAULT_ADAPTERS, DEFAULT_RANK = 4, 16
EXTRA_PROGRAMS = 5
"""Programs besides the steps: the empty state, new slots, token masks, page copies out of the pool and in."""
STATE_PROGRAMS = 2
"""Programs of a model with states: copies of states out of the slots and in."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Sizes of the page pool of one group of devices.

    Attributes:
        page_size: tokens in a page.
        num_pages: all pages, including the null page for padding.
        pages_per_request: the length of a page-table row.
        page_bytes: bytes of a page over all layers.
        host_pages: the capacity of the host tier in pages; 0 without a prefix cache.
        snapshots: whether cached pages are written to disk, through the host tier.
        state_bytes: bytes of a copy of a request's state over all layers; 0 for a model without states.
    """

    page_size: int
    num_pages: int
    pages_per_request: int
    page_bytes: int
    host_pages: int
    snapshots: bool
    state_bytes: int = 0

    @classmethod
    def of(
        cls, settings: Settings, max_context: int, page_bytes: int, pool_bytes: int, state_bytes: int = 0
    ) -> "PoolLimits":
        """Resolve the settings of the pool.

        Args:
            max_context: tokens of the longest request to fit into the pool.
            page_bytes: see `PoolLimits`.
            pool_bytes: the size of the pool, unless the settings give one.
            state_bytes: the bytes of a request's state over all layers.

        Raises:
            ConfigError: `pool_bytes` is too small for one page and the null page.
        """
        full_request = -(-max_context // settings.page_size)
        num_pages = _pages(settings, page_bytes)
        if num_pages is None:
            num_pages = 1 + min(max(1, pool_bytes // page_bytes), settings.max_running * full_request)
        share = page_bytes * settings.groups * settings.lane_count
        host_pages = settings.host_cache_bytes // share if settings.prefix_cache else 0
        return cls(
            page_size=settings.page_size,
            num_pages=num_pages,
            pages_per_request=min(full_request, num_pages - 1),
            page_bytes=page_bytes,
            host_pages=host_pages,
            snapshots=settings.restore != "off" and settings.disk_cache_bytes > 0 and host_pages > 0,
            state_bytes=state_bytes,
        )

    @property
    def state_pages(self) -> int:
        """The room of a request's state in the host tier, in pages; 0 for a model without states."""
        return -(-self.state_bytes // self.page_bytes)

    @property
    def keeps_states(self) -> bool:
        """True if the model has states and the host tier has room for one."""
        return 0 < self.state_pages <= self.host_pages

    @property
    def bytes(self) -> int:
        """Bytes of all pages."""
        return self.num_pages * self.page_bytes

    @property
    def tokens(self) -> int:
        """Capacity for requests, in tokens."""
        return (self.num_pages - 1) * self.page_size


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Settings resolved for one model: complete and consistent.

    Attributes:
        pool: the page pool of each group.
        max_context: tokens of one request, limited by the model and the pool.
        depth: the most ticks in flight.
        processes_logits: whether the session has a logits processor.
        long_from: the longest request with the short rope, in tokens; None if positions do not depend on the length.
        grows: whether the positions of longer requests depend on their exact length, not only on exceeding `long_from`.
        data: groups of devices in a lane, each with separate rows, pages and running requests.
        lanes: the number of lanes.
        one_shape: whether each tick has the same shape, because another shape would change the bits of its rows.
        picture_rows: the number of tokens of images in the buffer of embeddings; 0 for a model without images.
        expects_adapters: whether the room and the programs for adapters are made in `open`.
        Others as in `Settings`.
    """

    pool: PoolLimits
    max_context: int
    max_running: int
    max_prefill_tokens: int
    prefill_chunk: int
    ticks: Ticks
    one_shape: bool
    policy: Policy
    prefix_cache: bool
    depth: int
    prefill_buckets: tuple[int, ...]
    decode_buckets: tuple[int, ...]
    max_logprobs: int
    processes_logits: bool
    long_from: int | None = None
    grows: bool = False
    data: int = 1
    lanes: int = 1
    decode_steps: int = 1
    max_adapters: int = DEFAULT_ADAPTERS
    max_adapter_rank: int = DEFAULT_RANK
    expects_adapters: bool = False
    draft: DraftSource | None = None
    picture_rows: int = 0

    @classmethod
    def of(
        cls,
        settings: Settings,
        model: ModelConfig,
        itemsize: int,
        *,
        rows_apart: bool = False,
        page_bytes: int | None = None,
        state_bytes: int | None = None,
        pool_bytes: int = DEFAULT_POOL_BYTES,
        picture_rows: int = 0,
    ) -> "EngineLimits":
        """Resolve settings for a model whose pages hold numbers of `itemsize` bytes.

        Args:
            rows_apart: whether the kernels compute a row to the same bits in any tick. A logits processor
                need not.
            page_bytes: the bytes of a page over all layers, as stored by the kernels; None for the bytes of its
                numbers.
            state_bytes: the bytes of a copy of a request's state; None for the bytes of its numbers.
            pool_bytes: the size of the pool, unless the settings give one.
            picture_rows: see `EngineLimits`.

        Raises:
            ConfigError: the settings contradict each other or the model.
        """
        check_model(settings, model)
        max_context = settings.max_context or model.max_context
        if page_bytes is None:
            page_bytes = model.numbers_per_token * settings.page_size * itemsize
        state_bytes = model.state_bytes if state_bytes is None else state_bytes
        pool = PoolLimits.of(settings, max_context, page_bytes, pool_bytes, state_bytes)
        one_shape = settings.deterministic and not (rows_apart and settings.logits_processor is None)
        prefill_buckets, decode_buckets = _bucket_sizes(settings, one_shape)
        by_length = model.scalings_by_length
        limits = cls(
            pool=pool,
            max_context=min(max_context, pool.tokens),
            max_running=settings.max_running,
            max_prefill_tokens=settings.max_prefill_tokens,
            prefill_chunk=min(settings.prefill_chunk, settings.max_prefill_tokens),
            ticks=settings.ticks,
            one_shape=one_shape,
            policy=settings.policy,
            prefix_cache=settings.prefix_cache,
            depth=2 if settings.overlap else 1,
            prefill_buckets=prefill_buckets,
            decode_buckets=decode_buckets,
            max_logprobs=min(settings.max_logprobs, model.vocab_size),
            processes_logits=settings.logits_processor is not None,
            long_from=min((each.original_context for each in by_length), default=None),
            grows=any(isinstance(each, DynamicScaling) for each in by_length),
            data=settings.groups,
            lanes=settings.lane_count,
            decode_steps=settings.decode_steps,
            max_adapters=settings.max_adapters or DEFAULT_ADAPTERS,
            max_adapter_rank=settings.max_adapter_rank or DEFAULT_RANK,
            expects_adapters=settings.max_adapters is not None,
            draft=settings.draft,
            picture_rows=picture_rows,
        )
        limits._check_executables(settings)
        return limits

    def _check_executables(self, settings: Settings) -> None:
        programs = self.program_count(adapters=self.expects_adapters)
        if settings.precompile != "lazy" and programs > settings.max_executables:
            raise ConfigError(
                f"these settings need {programs} programs, and max_executables keeps {settings.max_executables}; "
                'raise it, give fewer prefill_buckets or decode_buckets, or choose precompile="lazy"'
            )

    def program_count(self, *, adapters: bool = False, steered: bool = False) -> int:
        """Return the number of programs, with or without those for adapters, or for steering."""
        steps, states = len(self.all_buckets()), STATE_PROGRAMS if self.pool.state_pages else 0
        pictures = 1 + sum(bucket.prefill_tokens > 0 for bucket in self.all_buckets()) if self.picture_rows else 0
        return steps + EXTRA_PROGRAMS + states + pictures + (steps + 1) * adapters + (steps + 2) * steered

    @property
    def adapter_slots(self) -> int:
        """The room for adapters on the device: one more than there may be, so that one can replace another in use."""
        return self.max_adapters + 1

    def resolve(self, settings: Settings) -> Settings:
        """Return the settings with the chosen values in place of defaults."""
        same = {
            field.name: getattr(part, field.name)
            for part in (self, self.pool)
            for field in fields(part)
            if hasattr(settings, field.name)
        }
        same["pool_bytes"] = None  # num_pages replaces it
        same["data"] = settings.data  # the mesh may define it instead
        if settings.deterministic:  # it chooses the buckets itself and accepts none
            same |= {"prefill_buckets": None, "decode_buckets": None}
        return replace(settings, **same)

    @property
    def groups(self) -> int:
        """The number of groups in all lanes."""
        return self.data * self.lanes

    def all_buckets(self) -> tuple[buckets.Bucket, ...]:
        """Return every bucket a tick may need."""
        every = buckets.all_buckets(
            self.prefill_buckets, self.decode_buckets, combined=self.ticks == "combined", steps=self.decode_steps
        )
        return tuple(bucket._replace(proposes=self.proposes) for bucket in every)

    def bucket(self, prefill_tokens: int, decode_rows: int) -> buckets.Bucket:
        """Return a bucket of one step for text."""
        return buckets.Bucket(prefill_tokens, decode_rows, proposes=self.proposes)

    @property
    def proposes(self) -> bool:
        """True if every step runs the draft head of the model."""
        return self.draft == "mtp"


def _pages(settings: Settings, page_bytes: int) -> int | None:
    """Return the number of pages given by the settings, or None.

    Raises:
        ConfigError: `pool_bytes` is too small for one page and the null page.
    """
    if settings.pool_bytes is None:
        return settings.num_pages
    if settings.pool_bytes < 2 * page_bytes:
        raise ConfigError(
            f"pool_bytes must be at least {2 * page_bytes:,} for this model, two pages of {settings.page_size} tokens, "
            f"got {settings.pool_bytes:,}"
        )
    return settings.pool_bytes // page_bytes


def _bucket_sizes(settings: Settings, one_shape: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of prefill and of decode buckets, ascending; only the largest for `one_shape`.

    Raises:
        ConfigError: see `check_sizes`.
    """
    tokens, running = settings.max_prefill_tokens, settings.max_running
    prefill = (tokens,) if one_shape else settings.prefill_buckets
    decode = (running,) if one_shape else settings.decode_buckets
    return (
        buckets.default_prefill_buckets(tokens)
        if prefill is None
        else check_sizes("prefill_buckets", prefill, "max_prefill_tokens", tokens, buckets.QUERY_BLOCK),
        buckets.default_decode_buckets(running)
        if decode is None
        else check_sizes("decode_buckets", decode, "max_running", running),
    )


def check_sizes(name: str, sizes: Any, largest: str, limit: int, multiple: int = 1) -> tuple[int, ...]:
    """Check a user's list of sizes; return it as a sorted tuple without duplicates.

    Args:
        name: the name of the setting.
        largest: the name of the setting with the largest size.
        limit: the largest size, a required member of the list.
        multiple: the common divisor of all sizes.

    Raises:
        ConfigError: a size is not a positive multiple, or above the limit, or the limit is missing.
    """
    right = isinstance(sizes, Sequence) and all(
        isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= limit and size % multiple == 0
        for size in sizes
    )
    if not right or limit not in sizes:
        what = f"multiples of {multiple}" if multiple > 1 else "numbers"
        raise ConfigError(
            f"{name} must be {what} from {multiple} to {limit} and contain {largest}, {limit}, got {sizes!r:.80}"
        )
    return tuple(sorted(set(sizes)))
