"""Generations of a call: all prompts in flight, with a bar of tqdm."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeVar

from rekindle.client.handle import Handle
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.vllm.outputs import RequestOutput, completion, prompt_logprobs
from rekindle.vllm.params import LoRARequest
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
    """

    def __init__(self, session: Session, seed: int):
        self._session, self._seed = session, seed
        self._numbers = count()
        self._enqueued: list[_Running] = []

    def run(self, jobs: Sequence[Job], use_tqdm: Bar) -> list[RequestOutput]:
        """Return the results of all prompts, in order. An error, or an interrupt, cancels the others."""
        return _results(self._submit_all(jobs), use_tqdm)

    def enqueue(self, jobs: Sequence[Job]) -> list[str]:
        """Submit the requests of all prompts, and return their numbers as text."""
        running = self._submit_all(jobs)
        self._enqueued += running
        return [str(each.number) for each in running]

    def wait(self, use_tqdm: Bar) -> list[RequestOutput]:
        """Return the results of all prompts enqueued since the last wait; errors as in `run`."""
        running, self._enqueued = self._enqueued, []
        return _results(running, use_tqdm)

    def _submit_all(self, jobs: Sequence[Job]) -> list["_Running"]:
        """Submit all prompts. An error, or an interrupt, cancels the requests."""
        self.load([job.lora for job in jobs])
        running = [_Running(job, next(self._numbers)) for job in jobs]
        with _cancelled_by_errors(running):
            for each in running:
                self._submit(each.job, each.number, each.handles)
        return running

    def load(self, adapters: Iterable[LoRARequest | None]) -> None:
        """Add the adapters that are not here yet."""
        for lora in dict.fromkeys(each for each in adapters if each is not None):
            present = self._session.adapters.get(lora.lora_name)
            if present is None or present.source != lora.lora_path:
                self._session.add_adapter_sync(lora.lora_name, lora.lora_path)

    def _submit(self, job: Job, number: int, handles: list[Handle]) -> None:
        """Submit all samples of a prompt, with room in the queue for each."""
        seed = job.params.seed
        base = self._seed * STRIDE + number if seed is None or seed < 0 else seed
        adapter = None if job.lora is None else job.lora.lora_name
        for sample in range(job.params.n):
            own_seed = None if job.params.is_greedy else (base + sample * STRIDE) % MOST_SEED
            options = {**job.params.options, **job.keywords, "seed": own_seed, "adapter": adapter}
            handles.append(self._session.enqueue_sync(job.prompt, priority=job.priority, **options))


@dataclass(frozen=True, slots=True)
class _Running:
    """The requests of a prompt: one for each sample."""

    job: Job
    number: int
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


def _results(running: Sequence[_Running], use_tqdm: Bar) -> list[RequestOutput]:
    """Wait for the results of prompts. An error, or an interrupt, cancels the others."""
    results = []
    with _cancelled_by_errors(running):
        for each in with_bar(running, use_tqdm, "Processed prompts"):
            results.append(_output(str(each.number), each.job, [handle.result() for handle in each.handles]))
    return results


def _output(number: str, job: Job, generations: Sequence[Generation]) -> RequestOutput:
    first, stops = generations[0], job.params.stop_token_ids or ()
    outputs = [completion(index, each, stops, job.lora) for index, each in enumerate(generations)]
    return RequestOutput(
        number,
        job.text,
        list(first.prompt_token_ids),
        prompt_logprobs(first),
        outputs,
        True,
        job.lora,
        first.cached_tokens,
    )


def with_bar(items: Sequence[T], use_tqdm: Bar, text: str) -> Iterable[T]:
    """Return the items, with a bar of tqdm over their number if one is to be drawn."""
    if not use_tqdm:
        return items
    from tqdm.auto import tqdm

    make = use_tqdm if callable(use_tqdm) else tqdm
    bar: Iterable[T] = make(items, total=len(items), desc=text, dynamic_ncols=True)
    return bar
