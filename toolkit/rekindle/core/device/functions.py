"""What the programs of a model compute, on one device and on a mesh of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec

from rekindle.core.buckets import Bucket
from rekindle.core.device.place import PAGE, PAGES, ROWS, SAME, WEIGHTS, Heads, Place
from rekindle.core.device.sampling.adjustments import Adjustments, enter_slot
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.state import Pages, Sizes, Slots, gather, scatter
from rekindle.core.device.step import step
from rekindle.core.models.decoder import AbstractDecoder
from rekindle.core.page import NULL_PAGE
from rekindle_kernels.api import Implementation


@dataclass(frozen=True, slots=True)
class Function:
    """The function of a program.

    Attributes:
        into, out: the kinds of its arguments and results, as `Place` names them.
        donated: the places of the arguments whose memory the results take.
    """

    function: Callable[..., Any]
    into: tuple[PartitionSpec, ...]
    out: Any
    donated: tuple[int, ...] = ()


def steps(
    place: Place, abstract: AbstractDecoder, sizes: Sizes, kernels: Implementation, processor: LogitsProcessor | None
) -> Function:
    """Return the steps of all buckets: each is the function with a `bucket`."""

    def run(weights: list[jax.Array], pages: Pages, slots: Slots, packed: jax.Array, bucket: Bucket) -> Any:
        decoder = abstract.with_weights(weights)
        return step(decoder, pages, slots, packed, bucket, sizes.max_logprobs, kernels, processor)

    def stepped(weights: list[jax.Array], pages: Pages, slots: Slots, packed: jax.Array, bucket: Bucket) -> Any:
        of_device = place.mapped(partial(run, bucket=bucket), (WEIGHTS, PAGES, ROWS, ROWS), (PAGES, ROWS, ROWS))
        return of_device(weights, pages, slots, packed)

    return Function(stepped, (WEIGHTS, PAGES, ROWS, ROWS), (PAGES, ROWS, ROWS), (1, 2))


def entering(place: Place, max_running: int) -> Function:
    """Return what enters a slot, on the group that has it."""

    def entered(adjustments: Adjustments, slot: jax.Array, packed: jax.Array) -> Adjustments:
        return enter_slot(adjustments, place.own(slot, max_running, other=max_running), packed)

    return Function(place.mapped(entered, (ROWS, SAME, SAME), ROWS), (ROWS, SAME, SAME), ROWS, (0,))


def allowing(place: Place, max_running: int) -> Function:
    """Return what sets which tokens are allowed in some slots, on the groups that have them."""

    def allowed(rows: jax.Array, slots: jax.Array, bits: jax.Array) -> jax.Array:
        return rows.at[place.own(slots, max_running, other=max_running)].set(bits)

    return Function(place.mapped(allowed, (ROWS, SAME, SAME), ROWS), (ROWS, SAME, SAME), ROWS, (0,))


def copies(
    place: Place, heads: Heads | None, kernels: Implementation, num_pages: int, page: PartitionSpec
) -> tuple[Function, Function]:
    """Return what copies a page out of pools, with each head once, and back in.

    Args:
        heads: where devices have the same heads, which of them are copied.
        page: the kind of a copy.
    """

    def own(page_id: jax.Array) -> jax.Array:
        return place.own(page_id, num_pages, other=NULL_PAGE)

    def read(pages: Pages, page_id: jax.Array) -> jax.Array:
        return place.of_group(gather(pages, own(page_id), kernels), page_id, num_pages)

    def write(pages: Pages, page_id: jax.Array, content: jax.Array) -> Pages:
        return scatter(pages, own(page_id), content, kernels)

    out = place.mapped(read, (PAGES, SAME), PAGE)
    into = place.mapped(write, (PAGES, SAME, PAGE), PAGES)

    def gathered(pages: Pages, page_id: jax.Array) -> jax.Array:
        shares: jax.Array = out(pages, page_id)
        return shares if heads is None else shares[:, :, heads.first]

    def scattered(pages: Pages, page_id: jax.Array, content: jax.Array) -> Pages:
        written: Pages = into(pages, page_id, content if heads is None else content[:, :, heads.each])
        return written

    return Function(gathered, (PAGES, SAME), page), Function(scattered, (PAGES, SAME, page), PAGES, (0,))
