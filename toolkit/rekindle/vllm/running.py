"""Generations of a call: all prompts in flight, with a bar of tqdm."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final

from rekindle.client.handle import Handle
from rekindle.results.generation import Generation
from rekindle.session.session import Session
from rekindle.vllm.outputs import RequestOutput, completion, prompt_logprobs
from rekindle.vllm.params import LoRARequest
from rekindle.vllm.prompts import Job

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

    def run(self, jobs: Sequence[Job], use_tqdm: Bar) -> list[RequestOutput]:
        """Return the results of all prompts, in order. An error, or an interrupt, cancels the others."""
        self.load([job.lora for job in jobs])
        numbers = [next(self._numbers) for _ in jobs]
        handles: list[list[Handle]] = [[] for _ in jobs]
        results = []
        try:
            for job, number, own in zip(jobs, numbers, handles, strict=True):
                self._submit(job, number, own)
            for job, number, own in zip(_with_bar(jobs, use_tqdm), numbers, handles, strict=True):
                results.append(_output(str(number), job, [handle.result() for handle in own]))
        except BaseException:
            for own in handles:
                for handle in own:
                    handle.cancel()
            raise
        return results

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


def _with_bar(jobs: Sequence[Job], use_tqdm: Bar) -> Iterable[Job]:
    if not use_tqdm:
        return jobs
    from tqdm.auto import tqdm

    make = use_tqdm if callable(use_tqdm) else tqdm
    bar: Iterable[Job] = make(jobs, total=len(jobs), desc="Processed prompts", dynamic_ncols=True)
    return bar
