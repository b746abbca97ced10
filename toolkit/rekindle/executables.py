"""The compiled programs of a model, the step of each bucket and those beside it, kept in a bounded LRU."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal

import jax
import numpy as np
from flax import nnx

from rekindle.adjustments import blank_entry, enter
from rekindle.buckets import Bucket
from rekindle.models.decoder import Decoder
from rekindle.page_copies import gather, scatter
from rekindle.progress import Progress, Report
from rekindle.step import Layout, Pages, Slots, step

Program = Callable[..., Any]
"""A compiled function; what it takes and returns in new form is donated.

The step of a bucket: `program(weights, pages, slots, packed) -> (pages, slots, outputs)`.
ENTER, which enters a slot: `program(adjustments, slot, packed) -> adjustments`.
GATHER, which copies a page out of the pool: `program(pages, page_id) -> content`.
SCATTER, which puts one back into it: `program(pages, page_id, content) -> pages`.
"""

ENTER: Final = "enter"
GATHER: Final = "gather"
SCATTER: Final = "scatter"
Key = Bucket | Literal["enter", "gather", "scatter"]
"""What a program is for."""


def flat_weights(decoder: Decoder) -> list[jax.Array]:
    """A decoder's arrays in the order that programs take them."""
    leaves: list[jax.Array] = jax.tree.leaves(nnx.state(decoder))
    return leaves


class Executables:
    """Compiles programs and keeps them; safe to use from several threads.

    Args:
        capacity: programs kept.
        max_logprobs: as in `Settings`.

    Attributes:
        weights: the model's arrays, the first argument of every program.
        compilations: programs compiled so far.
    """

    def __init__(self, decoder: Decoder, pages: Pages, slots: Slots, capacity: int, max_logprobs: int):
        graph, state = nnx.split(decoder)
        self.weights, treedef = jax.tree.flatten(state)
        self.compilations = 0
        self._capacity = capacity
        self._programs: OrderedDict[Key, Program] = OrderedDict()
        self._lock = threading.Lock()
        self._max_running = len(slots.token) - 1
        self._shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (self.weights, pages, slots))

        def run(weights: list[jax.Array], pages: Pages, slots: Slots, packed: jax.Array, bucket: Bucket) -> Any:
            decoder = nnx.merge(graph, jax.tree.unflatten(treedef, weights))
            return step(decoder, pages, slots, packed, bucket, max_logprobs)

        self._step = jax.jit(run, donate_argnames=("pages", "slots"), static_argnames="bucket")
        self._enter = jax.jit(enter, donate_argnames="adjustments")
        self._gather = jax.jit(gather)
        self._scatter = jax.jit(scatter, donate_argnames="pages")

    def __len__(self) -> int:
        return len(self._programs)

    def find(self, key: Key) -> Program | None:
        """A program if it is compiled. The caller's reference keeps it alive whatever is evicted."""
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
            return self._programs.get(key)

    def compile(self, key: Key) -> Program:
        """Compile one program, which can take seconds: not for an event loop's thread."""
        program = self._lowered(key).compile()
        with self._lock:
            self.compilations += 1
            self._programs[key] = program
            while len(self._programs) > self._capacity:
                self._programs.popitem(last=False)
        return program

    def _lowered(self, key: Key) -> jax.stages.Lowered:
        _, pages, slots = self._shapes
        match key:
            case "enter":
                blank = blank_entry(slots.adjustments.bias.shape[1])
                return self._enter.lower(slots.adjustments, np.int32(0), blank)
            case "gather":
                return self._gather.lower(pages, np.int32(0))
            case "scatter":
                content = jax.eval_shape(gather, pages, np.int32(0))
                return self._scatter.lower(pages, np.int32(0), content)
            case Bucket():
                return self._step.lower(*self._shapes, Layout.of(key, self._shapes[2]).blank(), bucket=key)

    def compile_all(self, keys: Iterable[Key], report: Report) -> None:
        """Compile every program, two at a time: lowering holds the interpreter, and the compiler runs beside it."""
        todo = [key for key in keys if self.find(key) is None]
        with ThreadPoolExecutor(2, "rekindle-compile") as pool:
            futures = [pool.submit(self.compile, key) for key in todo]
            try:
                for done, future in enumerate(futures):
                    report(Progress("compiling", done, len(todo), "programs"))
                    future.result()
                report(Progress("compiling", len(todo), len(todo), "programs"))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
