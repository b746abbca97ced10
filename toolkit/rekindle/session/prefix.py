"""Prefixes of prompts: computed once, held in the prefix cache, and continued any number of times."""

import weakref
from collections.abc import Collection
from typing import Any, Unpack, overload

from rekindle import markup
from rekindle.client.batches.run import Errors
from rekindle.client.calls.options import (
    GENERATE_DEFAULTS,
    PROMPT_DEFAULTS,
    GenerateOptions,
    OnePrompt,
    OnePromptOptions,
    PromptOptions,
    Prompts,
    TokenIds,
)
from rekindle.client.calls.prompts import as_text
from rekindle.client.concurrency.eventual import Eventual
from rekindle.client.concurrency.twins import awaitable, blocking
from rekindle.client.handle import Handle, Stream
from rekindle.client.requests import HasRequests, Requests
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import spelled_out
from rekindle.core.messages import Prompt
from rekindle.core.request.accepted import check_draws
from rekindle.core.request.params import check_keywords
from rekindle.results.answers import Answers
from rekindle.results.generation import Generation

FIXED = ("cache_salt", "adapter", "tools", "chat_template_kwargs")
"""Options of `session.prefix` that calls on the prefix inherit and cannot override."""


class Prefix:
    """Prefix held in the cache, from `session.prefix`. Its full pages stay on the device until `release`.

    Dropping the last reference releases the prefix too. The result of a notebook cell stays referenced by `Out`.

    Attributes:
        tokens: the number of tokens in the prefix.
        cached: the number of its tokens found in the cache when the prefix was created, by tier.
    """

    def __init__(self, prompt: Prompt, requests: Requests, handle: Handle, generation: Generation):
        self.tokens = generation.usage.prompt_tokens
        self.cached = generation.cached
        self._prompt, self._requests = prompt, requests
        self._release = weakref.finalize(self, handle.withdraw)

    def __repr__(self) -> str:
        state = "" if self._state == "held" else f", {self._state}"
        return f"<rekindle.Prefix of {self.tokens} tokens{state}>"

    @property
    def _state(self) -> str:
        if not self._release.alive:
            return "released"
        return "held" if self._requests.is_open else "gone with its session"

    @property
    def cached_tokens(self) -> int:
        """Number of tokens found in the cache when the prefix was created, in all tiers."""
        return self.cached.total

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        facts = {"tokens": f"{self.tokens:,}", "cached when it was made": str(self.cached)}
        card = markup.card("Prefix", self._state, markup.passage(as_text(self._prompt)), markup.facts(facts))
        return markup.bundle(repr(self), card)

    @overload
    async def generate(
        self, prompt: OnePrompt = None, *, n: None = None, **options: Unpack[OnePromptOptions]
    ) -> Generation: ...
    @overload
    async def generate(
        self,
        prompt: OnePrompt | Prompts = None,
        *,
        n: int | None = None,
        errors: Errors = "raise",
        progress: bool | None = None,
        **options: Unpack[GenerateOptions[Any]],
    ) -> Answers[Any]: ...
    @awaitable("await doc.generate(...)")
    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def generate(
        self,
        prompt: Any = None,
        *,
        n: int | None = None,
        errors: Errors = "raise",
        progress: bool | None = None,
        **options: Unpack[GenerateOptions[Any]],
    ) -> Waits[Any]:
        """Continue the prefix with a prompt or each prompt of a list, and wait for the end of the answers.

        Args:
            prompt: text after a text prefix; messages, or a str as a user message, after a conversation; or a list of
                prompts. None generates from the prefix itself.
            n, errors, progress: as in `Session.generate`.
            **options: `token_ids` in place of text (one list of ids or several), and sampling parameters.

        Returns:
            A `Generation` or `Answers`, as in `Session.generate`.

        Raises:
            InvalidRequest: the prefix was released, or as in `Session.generate`.
            Others: as in `Session.generate`.
        """
        self._check(options)
        return self._requests.all(prompt, options, n, errors, progress)

    generate_sync = blocking(generate)

    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def stream(self, prompt: OnePrompt = None, **options: Unpack[OnePromptOptions]) -> Stream:
        """Continue the prefix, and return the stream of the answer's pieces, for `async for` or a blocking `for`.

        Arguments and errors are as in `generate`, for one prompt.
        """
        self._check(options)
        return Stream(self._requests.submit_one(prompt, options, wait=True))

    @awaitable("await doc.fork(...)")
    def fork(self, n: int) -> Waits[list["Prefix"]]:
        """Hold the same prefix `n` more times, each with a separate `release`. The forks share the cached pages.

        Args:
            n: the number of forks.

        Raises:
            InvalidRequest: `n` is not a positive integer, or the prefix was released.
            SessionError: the session is closed or its engine failed.
        """
        count = check_draws(n)
        self._check()
        forks = []
        for _ in range(count):
            forks.append((yield from hold(self._prompt, self._requests)))
        return forks

    fork_sync = blocking(fork)

    def release(self) -> None:
        """Release the prefix; its pages may be evicted. Submitted requests continue. Idempotent and thread-safe."""
        self._release()

    async def __aenter__(self) -> "Prefix":
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.release()

    def __enter__(self) -> "Prefix":
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()

    def _check(self, options: Collection[str] = ()) -> None:
        """Raise InvalidRequest if the prefix was released, or if the options override inherited ones."""
        if not self._release.alive:
            raise InvalidRequest("the prefix was released; make another with session.prefix()")
        for name in FIXED:
            if name in options:
                raise InvalidRequest(f"{name} is an option of session.prefix(); calls on the prefix inherit it")


class PendingPrefix(Eventual[Prefix]):
    """Awaitable prefix, not yet computed; entering it with `async with` computes and later releases the prefix."""

    _gives = Prefix
    _hint = "it is not computed yet; doc = await session.prefix(...)"

    def __init__(self, prompt: Prompt, requests: Requests):
        super().__init__()
        self._prompt, self._requests = prompt, requests

    def __repr__(self) -> str:
        return "<rekindle.PendingPrefix: await it, or enter it with 'async with'>"

    def _make(self) -> Waits[Prefix]:
        return hold(self._prompt, self._requests)


@spelled_out(PromptOptions, PROMPT_DEFAULTS)
def prefix(
    session: HasRequests,
    prompt: OnePrompt = None,
    *,
    cache_salt: str = "",
    adapter: str | None = None,
    **options: Unpack[PromptOptions[TokenIds]],
) -> PendingPrefix:
    """Compute a prefix once and hold it in the cache: `doc = await session.prefix(text)`, or `async with` it.

    `await doc.generate(...)` continues the prefix. Requests with equal beginnings share cached pages even without a
    `Prefix`, but pages held by a `Prefix` are never evicted. Only full pages are held. If the remaining pages do not
    suffice for a request, and no running request could free more, the request fails with PromptTooLong.

    Args:
        prompt: text or messages, as in `generate`.
        cache_salt, adapter: the cache salt and the adapter of the prefix and its continuations, as in `SamplingParams`.
        Others: the prompt options of `generate`. Sampling parameters belong to calls on the prefix.

    Returns:
        A `PendingPrefix`: its await waits for the computation, and returns the `Prefix`.

    Raises:
        InvalidRequest: as in `generate`, or the session was opened with `prefix_cache=False`.
        SessionError: the session is closed or its engine failed (raised by the await).
    """
    if not session._requests.engine.facts.limits.prefix_cache:
        raise InvalidRequest("this session cannot hold prefixes: it was opened with prefix_cache=False")
    session._requests.engine.facts.checkpoint.uses.check_generates()
    if session._requests.engine.facts.limits.whole_prompts:
        raise InvalidRequest(
            "this model reads each prompt in both directions, so its first part cannot be computed alone: pass the "
            "whole prompt to generate()"
        )
    check_keywords(options, ("cache_salt", "adapter", *PromptOptions.__annotations__))
    if options.get("tool_choice", "auto") not in ("auto", "none"):
        raise InvalidRequest("tool_choice belongs to calls on the prefix, as in doc.generate(tool_choice=...)")
    if not options.get("parallel_tool_calls", True) or options.get("tool_grammars"):
        raise InvalidRequest("parallel_tool_calls and tool_grammars belong to calls on the prefix")
    checked = session._requests.prompt(prompt, options)
    return PendingPrefix(checked, session._requests.continuing(checked, cache_salt, adapter))


def hold(prompt: Prompt, requests: Requests) -> Waits[Prefix]:
    """Compute a prefix, and hold it in the cache."""
    handle = requests.hold(prompt)
    try:
        yield Wait(handle.record.pieces)
        return Prefix(prompt, requests, handle, handle.record.result())
    except BaseException:
        handle.cancel()
        handle.withdraw()  # the engine may hold the prefix by now
        raise
