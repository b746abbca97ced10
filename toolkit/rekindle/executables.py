"""The compiled programs of a model, the step of each bucket and one to enter a slot, kept in a bounded LRU."""

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
from rekindle.progress import Progress, Report
from rekindle.step import Pages, Slots, blank_inputs, step

Program = Callable[..., Any]
"""A compiled function. `program(weights, pages, slots, packed) -> (pages, slots, outputs)` is the step of a bucket, and
`program(adjustments, slot, packed) -> adjustments` enters a slot; what each returns in new form is donated."""

ENTER: Final = "enter"
Key = Bucket | Literal["enter"]
"""What a program is for."""


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
        if isinstance(key, Bucket):
            lowered = self._step.lower(*self._shapes, blank_inputs(key, self._max_running), bucket=key)
        else:
            adjustments = self._shapes[2].adjustments
            lowered = self._enter.lower(adjustments, np.int32(0), blank_entry(adjustments.bias.shape[1]))
        program = lowered.compile()
        with self._lock:
            self.compilations += 1
            self._programs[key] = program
            while len(self._programs) > self._capacity:
                self._programs.popitem(last=False)
        return program

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
