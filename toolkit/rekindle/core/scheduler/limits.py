"""Sizes and choices of an engine, complete and consistent for one model."""

from dataclasses import dataclass

from rekindle.core import buckets
from rekindle.core.policy import DraftSource, Policy, Ticks

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
        coordinates: whether tokens of images have positions by row and column.
        segments: the numbers of patches of the tower's programs, ascending.
        whole_prompts: whether each prompt is one chunk, of a model that reads it in both directions; its pages enter no
            cache.
        decodes: whether the model has an output projection, so that requests may have output.
        whole_images: whether what is to compute of an image is in one chunk.
        expects_adapters: whether the room and the programs for adapters are made in `open`.
        shares_cores: whether the device computes on the cores of the host, as a CPU does.
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
    coordinates: bool = False
    segments: tuple[int, ...] = ()
    whole_prompts: bool = False
    whole_images: bool = False
    decodes: bool = True
    shares_cores: bool = False

    def program_count(self, *, adapters: bool = False, steered: bool = False) -> int:
        """Return the number of programs, with or without those for adapters, or for steering."""
        steps, states = len(self.all_buckets()), STATE_PROGRAMS if self.pool.state_pages else 0
        pictures = sum(bucket.prefill_tokens > 0 for bucket in self.all_buckets()) if self.picture_rows else 0
        embeddings = len(self.segments) + 2 * (self.pool.snapshots and self.picture_rows > 0)
        adapted = (steps + 1 + pictures * (not self.expects_adapters)) * adapters
        return steps + EXTRA_PROGRAMS + states + pictures + embeddings + adapted + (steps + 2 + pictures) * steered

    @property
    def adapter_slots(self) -> int:
        """The room for adapters on the device: one more than there may be, so that one can replace another in use."""
        return self.max_adapters + 1

    @property
    def groups(self) -> int:
        """The number of groups in all lanes."""
        return self.data * self.lanes

    def all_buckets(self) -> tuple[buckets.Bucket, ...]:
        """Return every bucket a tick may need."""
        every = buckets.all_buckets(self.prefill_buckets, self.decode_buckets, combined=self.ticks == "combined")
        needs_rows = self.decodes or self.one_shape
        return tuple(self._of_model(each) for each in every if needs_rows or not each.decode_rows)

    def bucket(self, prefill_tokens: int, decode_rows: int) -> buckets.Bucket:
        """Return a bucket for text."""
        return self._of_model(buckets.Bucket(prefill_tokens, decode_rows))

    def _of_model(self, bucket: buckets.Bucket) -> buckets.Bucket:
        return bucket._replace(proposes=self.proposes, windows=self.windows, coordinates=self.coordinates)

    @property
    def proposes(self) -> bool:
        """True if every step runs the draft head of the model."""
        return self.draft == "mtp"

    @property
    def windows(self) -> bool:
        """True if every step keeps the state of layers after each decode row, to verify drafts."""
        return self.draft is not None and self.pool.state_pages > 0
