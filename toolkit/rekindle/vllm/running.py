"""Generations of a call: all prompts in flight, with a bar of tqdm."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeVar

from rekindle.client.handle import Handle
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.vllm.lora.adapters import LoadedAdapters
from rekindle.vllm.outputs import RequestOutput, completion, metrics, prompt_logprobs
from rekindle.vllm.prompts import Job

T = TypeVar("T")

MOST_SEED: Final = 1 << 64
STRIDE: Final = 0x9E3779B97F4A7C15
"""The distance between the seeds of two samples."""
Bar = bool | Callable[..., Any]
"""Whether to draw a bar, or a function like `tqdm` to make it."""


class Runner:
    """Generations over a session, with seeds by the seed of the LLM and the number of the request.

    Args:
        session: the session.
        seed: the seed of the LLM.
        adapters: the adapters of the LLM.
        ends: the tokens whose stop has no reason in vLLM.
    """

    def __init__(self, session: Session, seed: int, adapters: LoadedAdapters, ends: Collection[int]):
        self._session, self._seed, self._adapters, self._ends = session, seed, adapters, ends
        self._numbers = count()
        self._enqueued: list[_Running] = []

    def run(self, jobs: Sequence[Job], use_tqdm: Bar) -> list[RequestOutput]:
        """Return the results of all prompts, in order. An error, or an interrupt, cancels the others."""
        return self._results(self._submit_all(jobs), use_tqdm)

    def enqueue(self, jobs: Sequence[Job]) -> list[str]:
        """Submit the requests of all prompts, and return their numbers as text."""
        running = self._submit_all(jobs)
        self._enqueued += running
        return [str(each.number) for each in running]

    @property
    def waits(self) -> bool:
        """True if a request since the last wait has not ended."""
        return any(not handle.done for each in self._enqueued for handle in each.handles)

    def wait(self, use_tqdm: Bar) -> list[RequestOutput]:
        """Return the results of all prompts enqueued since the last wait; errors as in `run`."""
        running, self._enqueued = self._enqueued, []
        return self._results(running, use_tqdm)

    def _submit_all(self, jobs: Sequence[Job]) -> list["_Running"]:
        """Submit all prompts. An error, or an interrupt, cancels the requests."""
        running = [_Running(job, next(self._numbers)) for job in jobs]
        with _cancelled_by_errors(running):
            for each in self._by_adapter(running):
                self._submit(each)
        return running

    def _by_adapter(self, running: Sequence["_Running"]) -> Sequence["_Running"]:
        """Return the requests in order; those of one adapter together if there are more than the session has room for.

        Otherwise each change of adapters would read one from its files.
        """
        places: dict[str | None, int] = {}
        for each in running:
            path = None if each.job.lora is None else each.job.lora.lora_path
            places.setdefault(path, len(places))
        if len(places.keys() - {None}) <= self._adapters.room:
            return running
        return sorted(running, key=lambda each: places[None if each.job.lora is None else each.job.lora.lora_path])

    def _submit(self, running: "_Running") -> None:
        """Submit all samples of a prompt, with room in the queue for each."""
        job = running.job
        adapter = self._adapters.name_of(job.lora)
        base = self._seed * STRIDE + running.number if job.params.seed is None else job.params.seed
        for sample in range(job.params.n):
            own_seed = None if job.params.is_greedy else (base + sample * STRIDE) % MOST_SEED
            options = {**job.keywords, "seed": own_seed, "adapter": adapter}
            running.handles.append(self._session.enqueue_sync(job.prompt, priority=job.priority, **options))

    def _results(self, running: Sequence["_Running"], use_tqdm: Bar) -> list[RequestOutput]:
        """Wait for the results of prompts. An error, or an interrupt, cancels the others."""
        results = []
        with _cancelled_by_errors(running):
            for each in with_bar(running, use_tqdm, "Processed prompts"):
                results.append(self._output(each, [handle.result() for handle in each.handles]))
        return results

    def _output(self, running: "_Running", generations: Sequence[Generation]) -> RequestOutput:
        job, first = running.job, generations[0]
        ends = () if job.params.ignore_eos else self._ends
        return RequestOutput(
            str(running.number),
            job.text,
            list(first.prompt_token_ids),
            prompt_logprobs(first),
            [completion(index, each, ends, job.lora) for index, each in enumerate(generations)],
            metrics=metrics(generations, running.start),
            lora_request=job.lora,
            num_cached_tokens=first.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class _Running:
    """The requests of a prompt: one for each sample.

    Attributes:
        start: the time of their submission, of `time.monotonic`.
    """

    job: Job
    number: int
    start: float = field(default_factory=time.monotonic)
    handles: list[Handle] = field(default_factory=list)


@contextmanager
def _cancelled_by_errors(running: Sequence[_Running]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for each in running:
            for handle in each.handles:
                handle.cancel()
        raise


def with_bar(items: Sequence[T], use_tqdm: Bar, text: str) -> Iterable[T]:
    """Return the items, with a bar of tqdm over their number if one is to be drawn."""
    if not use_tqdm:
        return items
    from tqdm.auto import tqdm

    make = use_tqdm if callable(use_tqdm) else tqdm
    bar: Iterable[T] = make(items, total=len(items), desc=text, dynamic_ncols=True)
    return bar
