"""The compiled programs of a model, one a bucket, kept in a bounded LRU."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from flax import nnx

from rekindle.buckets import Bucket
from rekindle.models.decoder import Decoder
from rekindle.progress import Progress, Report
from rekindle.step import Pages, Slots, blank_inputs, step

Program = Callable[[list[jax.Array], Pages, Slots, Any], tuple[Pages, Slots, jax.Array]]
"""`program(weights, pages, slots, packed)`: the step of one bucket; pages and slots are donated."""


class Executables:
    """Compiles the step for buckets and keeps the programs; safe to use from several threads.

    Attributes:
        weights: the model's arrays, the first argument of every program.
        compilations: programs compiled so far.
    """

    def __init__(self, decoder: Decoder, pages: Pages, slots: Slots, capacity: int):
        graph, state = nnx.split(decoder)
        self.weights, treedef = jax.tree.flatten(state)
        self.compilations = 0
        self._capacity = capacity
        self._programs: OrderedDict[Bucket, Program] = OrderedDict()
        self._lock = threading.Lock()
        self._max_running = len(slots.token) - 1
        self._shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (self.weights, pages, slots))

        def run(weights: list[jax.Array], pages: Pages, slots: Slots, packed: jax.Array, bucket: Bucket) -> Any:
            return step(nnx.merge(graph, jax.tree.unflatten(treedef, weights)), pages, slots, packed, bucket)

        self._step = jax.jit(run, donate_argnames=("pages", "slots"), static_argnames="bucket")

    def __len__(self) -> int:
        return len(self._programs)

    def find(self, bucket: Bucket) -> Program | None:
        """The program of a bucket if it is compiled. The caller's reference keeps it alive whatever is evicted."""
        with self._lock:
            if bucket in self._programs:
                self._programs.move_to_end(bucket)
            return self._programs.get(bucket)

    def compile(self, bucket: Bucket) -> Program:
        """Compile one bucket's program, which takes seconds: not for an event loop's thread."""
        packed = blank_inputs(bucket, self._max_running)
        program = self._step.lower(*self._shapes, packed, bucket=bucket).compile()
        with self._lock:
            self.compilations += 1
            self._programs[bucket] = program
            while len(self._programs) > self._capacity:
                self._programs.popitem(last=False)
        return program

    def compile_all(self, buckets: Iterable[Bucket], report: Report) -> None:
        """Compile every bucket, two at a time: lowering holds the interpreter, and the compiler runs beside it."""
        todo = [bucket for bucket in buckets if self.find(bucket) is None]
        with ThreadPoolExecutor(2, "rekindle-compile") as pool:
            futures = [pool.submit(self.compile, bucket) for bucket in todo]
            try:
                for done, future in enumerate(futures):
                    report(Progress("compiling", done, len(todo), "programs"))
                    future.result()
                report(Progress("compiling", len(todo), len(todo), "programs"))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
