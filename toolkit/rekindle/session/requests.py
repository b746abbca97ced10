"""Requests as a session and its prefixes make them: with checked parameters, and awaited together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.engine.assembly import Assembly
from rekindle.engine.thread import EngineThread
from rekindle.messages import Prompt
from rekindle.request import SamplingOptions, SamplingParams, check_length, draws
from rekindle.results import Generation
from rekindle.session.callers import Callers
from rekindle.session.handle import Handle


class Requests:
    """Puts requests on their way.

    Args:
        engine, assembly, callers: what serves them.
        options: sampling options of calls that do not give them.
    """

    def __init__(self, engine: EngineThread, assembly: Assembly, callers: Callers, options: Mapping[str, Any]):
        self._engine, self._assembly, self._callers, self._options = engine, assembly, callers, options

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        return self._assembly.model.vocab_size

    @property
    def served(self) -> bool:
        """Whether the session neither is closed nor has failed."""
        return self._engine.error is None

    def with_options(self, options: Mapping[str, Any]) -> "Requests":
        """The same with more options that need not be given."""
        return Requests(self._engine, self._assembly, self._callers, {**self._options, **options})

    def one(self, prompt: Prompt, options: SamplingOptions, *, wait: bool, hold: bool = False) -> Handle:
        """One request.

        Args:
            wait: whether it waits outside while the waiting queue is full.
            hold: whether it only asks for a prefix to be held.
        """
        return self._submit(prompt, self._params(options), wait=wait, hold=hold)

    def all(self, prompts: Sequence[Prompt], batch: bool, options: SamplingOptions, n: int | None) -> "Asked":
        """A request for each draw of each prompt."""
        params = self._params(options)
        variants = [params] if n is None else draws(params, n)
        asked = Asked([], batch, n)
        try:
            for prompt in prompts:
                asked.handles.extend(self._submit(prompt, variant, wait=True, hold=False) for variant in variants)
        except BaseException:
            asked.cancel()
            raise
        return asked

    def _params(self, options: SamplingOptions) -> SamplingParams:
        params = SamplingParams.from_options({**self._options, **options})
        params.check_against(self.vocab_size, self._assembly.limits.max_logprobs)
        return params

    def _submit(self, prompt: Prompt, params: SamplingParams, *, wait: bool, hold: bool) -> Handle:
        if self._engine.error is not None:
            raise self._engine.error.with_traceback(None)
        if isinstance(prompt, tuple):  # text has to be tokenized first, which the intake does
            check_length(prompt, self._assembly.limits.max_context)
        return self._callers.submit(prompt, params, self._engine.post, wait=wait, hold=hold)


@dataclass(frozen=True)
class Asked:
    """The handles of one call, prompt by prompt, and the shape of what it returns."""

    handles: list[Handle]
    batch: bool
    n: int | None

    async def ended(self) -> Any:
        """Wait for all; leaving the wait in any way cancels those that have not ended."""
        __tracebackhide__ = True  # a cell shows errors without such frames
        try:
            return self._shaped([await handle for handle in self.handles])
        finally:
            self.cancel()

    def ended_blocking(self) -> Any:
        """The blocking twin of `ended`."""
        __tracebackhide__ = True
        try:
            return self._shaped([handle.result() for handle in self.handles])
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Cancel those that have not ended."""
        for handle in self.handles:
            handle.cancel()

    def _shaped(self, generations: Sequence[Generation]) -> Any:
        if self.n is None:
            return list(generations) if self.batch else generations[0]
        groups = [list(generations[at : at + self.n]) for at in range(0, len(generations), self.n)]
        return groups if self.batch else groups[0]
