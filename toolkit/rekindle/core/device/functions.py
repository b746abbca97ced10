"""Functions of a model's programs, on one device or on a mesh."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec

from rekindle.core.buckets import Bucket
from rekindle.core.device.page_form import PageForm
from rekindle.core.device.place import PAGE, PAGES, ROWS, SAME, WEIGHTS, Place
from rekindle.core.device.sampling.adjustments import Adjustments, enter_slot
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.state import Content, Pages, Sizes, Slots, gather, scatter
from rekindle.core.device.step import step
from rekindle.core.models.decoder import AbstractDecoder
from rekindle.core.page import NULL_PAGE
from rekindle_kernels.api import Implementation


@dataclass(frozen=True, slots=True)
class Function:
    """The function of a program, with the sharding of its arguments and results.

    Attributes:
        into, out: the partition specs of arguments and results, from `place`.
        donated: the indices of donated arguments.
    """

    function: Callable[..., Any]
    into: tuple[PartitionSpec, ...]
    out: Any
    donated: tuple[int, ...] = ()


def step_function(
    place: Place, abstract: AbstractDecoder, sizes: Sizes, kernels: Implementation, processor: LogitsProcessor | None
) -> Function:
    """Return the step function, common to all buckets. Programs bind its `bucket` argument."""

    def run(weights: list[jax.Array], pages: Pages, slots: Slots, packed: jax.Array, bucket: Bucket) -> Any:
        decoder = abstract.with_weights(weights)
        return step(decoder, pages, slots, packed, bucket, sizes.max_logprobs, kernels, processor)

    def run_on_all(weights: list[jax.Array], pages: Pages, slots: Slots, packed: jax.Array, bucket: Bucket) -> Any:
        of_device = place.on_each_device(partial(run, bucket=bucket), (WEIGHTS, PAGES, ROWS, ROWS), (PAGES, ROWS, ROWS))
        return of_device(weights, pages, slots, packed)

    return Function(run_on_all, (WEIGHTS, PAGES, ROWS, ROWS), (PAGES, ROWS, ROWS), (1, 2))


def enter_function(place: Place, max_running: int) -> Function:
    """Return the function to fill a slot's adjustments, on the devices of its group."""

    def enter(adjustments: Adjustments, slot: jax.Array, packed: jax.Array) -> Adjustments:
        return enter_slot(adjustments, place.local_index(slot, max_running, other=max_running), packed)

    return Function(place.on_each_device(enter, (ROWS, SAME, SAME), ROWS), (ROWS, SAME, SAME), ROWS, (0,))


def allow_function(place: Place, max_running: int) -> Function:
    """Return the function to write allowed-token masks into slots, on the devices of their groups."""

    def allow(rows: jax.Array, slots: jax.Array, bits: jax.Array) -> jax.Array:
        return rows.at[place.local_index(slots, max_running, other=max_running)].set(bits)

    return Function(place.on_each_device(allow, (ROWS, SAME, SAME), ROWS), (ROWS, SAME, SAME), ROWS, (0,))


def copy_functions(
    place: Place, form: PageForm, kernels: Implementation, num_pages: int, page: PartitionSpec
) -> tuple[Function, Function]:
    """Return the functions to copy a page out of the pools, as an array of this form, and back in.

    Args:
        form: the form of a copy.
        page: the partition spec of a copy.
    """

    def local(page_id: jax.Array) -> jax.Array:
        return place.local_index(page_id, num_pages, other=NULL_PAGE)

    def read(pages: Pages, page_id: jax.Array) -> Content:
        kinds = gather(pages, local(page_id), kernels)
        return tuple(place.from_group(kind, page_id, num_pages) for kind in kinds)

    def write(pages: Pages, page_id: jax.Array, content: Content) -> Pages:
        return scatter(pages, local(page_id), content, kernels)

    out = place.on_each_device(read, (PAGES, SAME), PAGE)
    into = place.on_each_device(write, (PAGES, SAME, PAGE), PAGES)

    def gather_page(pages: Pages, page_id: jax.Array) -> jax.Array:
        return form.join(out(pages, page_id))

    def scatter_page(pages: Pages, page_id: jax.Array, content: jax.Array) -> Pages:
        result: Pages = into(pages, page_id, form.split(content))
        return result

    return Function(gather_page, (PAGES, SAME), page), Function(scatter_page, (PAGES, SAME, page), PAGES, (0,))
