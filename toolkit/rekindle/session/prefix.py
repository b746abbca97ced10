"""A prefix that is computed once, held in the prefix cache, and continued as often as its user likes."""

import weakref
from collections.abc import Collection
from typing import Any, Unpack, overload

from rekindle.client.batches.run import Errors
from rekindle.client.handle import Handle, Stream
from rekindle.client.prompts import (
    GENERATE_DEFAULTS,
    PROMPT_DEFAULTS,
    GenerateOptions,
    OnePrompt,
    OnePromptOptions,
    PromptOptions,
    Prompts,
    TokenIds,
    as_text,
)
from rekindle.client.requests import Asker, Requests
from rekindle.core import markup
from rekindle.core.concurrency.eventual import Eventual
from rekindle.core.concurrency.twins import awaitable, blocking
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import spelled_out
from rekindle.core.messages import Prompt
from rekindle.core.request.params import check_draws, check_keywords
from rekindle.results.answers import Answers
from rekindle.results.generation import Generation

FIXED = ("cache_salt", "tools", "chat_template_kwargs")
"""Keywords that are given to `session.prefix`, and hold for what continues it."""


class Prefix:
    """A held prefix, from `session.prefix`. Its whole pages stay in the device tier until `release`.

    A prefix that is dropped is released too; one that was the result of a cell lives on in `Out`.

    Attributes:
        tokens: tokens in the prefix.
        cached: tokens of it that were found in the cache when it was made, by tier.
    """

    def __init__(self, prompt: Prompt, requests: Requests, handle: Handle, made: Generation):
        self.tokens = made.usage.prompt_tokens
        self.cached = made.cached
        self._prompt, self._requests = prompt, requests
        self._release = weakref.finalize(self, handle.withdraw)

    def __repr__(self) -> str:
        state = "" if self._state == "held" else f", {self._state}"
        return f"<rekindle.Prefix of {self.tokens} tokens{state}>"

    @property
    def _state(self) -> str:
        if not self._release.alive:
            return "released"
        return "held" if self._requests.served else "gone with its session"

    @property
    def cached_tokens(self) -> int:
        """The tokens that were found in the cache when it was made, in any tier."""
        return self.cached.total

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        known = {"tokens": f"{self.tokens:,}", "cached when it was made": str(self.cached)}
        shown = markup.card("Prefix", self._state, markup.passage(as_text(self._prompt)), markup.facts(known))
        return markup.bundle(repr(self), shown)

    @overload
    async def generate(
        self, prompt: OnePrompt = None, *, n: None = None, **ask: Unpack[OnePromptOptions]
    ) -> Generation: ...
    @overload
    async def generate(
        self,
        prompt: OnePrompt | Prompts = None,
        *,
        n: int | None = None,
        errors: Errors = "raise",
        progress: bool | None = None,
        **ask: Unpack[GenerateOptions[Any]],
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
        **ask: Unpack[GenerateOptions[Any]],
    ) -> Waits[Any]:
        """Continue the prefix, and generate to the end.

        Args:
            prompt: text that follows a text; messages that follow messages (a str is one of the user's), or a list;
                nothing to generate from the prefix as it is.
            n, errors, progress: as in `Session.generate`.
            **ask: token ids that follow instead, or a list of such, and sampling parameters.

        Returns:
            A `Generation`, or `Answers`, as `Session.generate`.

        Raises:
            InvalidRequest: the prefix was released, or as `Session.generate`.
        """
        self._check(ask)
        return self._requests.all(prompt, ask, n, errors, progress)

    generate_sync = blocking(generate)

    @spelled_out(GenerateOptions, GENERATE_DEFAULTS)
    def stream(self, prompt: OnePrompt = None, **ask: Unpack[OnePromptOptions]) -> Stream:
        """Continue the prefix, and return the pieces as they come: `async for` or, blocking, `for`."""
        self._check(ask)
        return Stream(self._requests.one(prompt, ask, wait=True))

    @awaitable("await doc.fork(...)")
    def fork(self, n: int) -> Waits[list["Prefix"]]:
        """Hold the same prefix `n` more times, each to be released by itself; nothing is computed for it.

        Raises:
            InvalidRequest: `n` is no integer of at least 1, or the prefix was released.
        """
        count = check_draws(n)
        self._check()
        forks = []
        for _ in range(count):
            forks.append((yield from held(self._prompt, self._requests)))
        return forks

    fork_sync = blocking(fork)

    def release(self) -> None:
        """Let go of the prefix, so that its pages may be evicted. Requests that were submitted go on.

        Any thread may call this, any number of times.
        """
        self._release()

    async def __aenter__(self) -> "Prefix":
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.release()

    def __enter__(self) -> "Prefix":
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()

    def _check(self, given: Collection[str] = ()) -> None:
        """Check that the prefix is held, and that a call with these keywords may continue it."""
        if not self._release.alive:
            raise InvalidRequest("the prefix was released; make another with session.prefix()")
        for name in FIXED:
            if name in given:
                raise InvalidRequest(f"{name} is given to session.prefix(), and holds for what continues the prefix")


class PendingPrefix(Eventual[Prefix]):
    """A prefix that is to be computed."""

    _gives = Prefix
    _hint = "it is not computed yet; doc = await session.prefix(...)"

    def __init__(self, prompt: Prompt, requests: Requests):
        super().__init__()
        self._prompt, self._requests = prompt, requests

    def __repr__(self) -> str:
        return "<rekindle.PendingPrefix: await it, or enter it with 'async with'>"

    def _make(self) -> Waits[Prefix]:
        return held(self._prompt, self._requests)


@spelled_out(PromptOptions, PROMPT_DEFAULTS)
def prefix(
    session: Asker, prompt: OnePrompt = None, *, cache_salt: str = "", **options: Unpack[PromptOptions[TokenIds]]
) -> PendingPrefix:
    """Compute a prefix once and hold it: `doc = await session.prefix(text)`, or `async with` it.

    `await doc.generate(...)` continues it. Requests that begin the same find cached pages without this too; held
    ones are not evicted. Only whole pages are held. A request that has no room beside them fails with
    `PromptTooLong`, once nothing else runs that could make room.

    Args:
        cache_salt: as in `SamplingParams`, for the prefix and what continues it.
        Others: as in `generate`; sampling parameters are given to what continues the prefix.

    Raises:
        InvalidRequest: as `generate`, or the session was opened with `prefix_cache=False`.
    """
    if not session._requests.loaded_engine.limits.prefix_cache:
        raise InvalidRequest("this session keeps no prefixes: it was opened with prefix_cache=False")
    check_keywords(options, ("cache_salt", *PromptOptions.__annotations__))
    if options.get("tool_choice", "auto") not in ("auto", "none"):
        raise InvalidRequest("tool_choice is given to what continues the prefix, as in doc.generate(tool_choice=...)")
    checked = session._requests.prompt(prompt, options)
    return PendingPrefix(checked, session._requests.continuing(checked, cache_salt))


def held(prompt: Prompt, requests: Requests) -> Waits[Prefix]:
    """Compute a prefix, and hold it."""
    handle = requests.hold(prompt)
    try:
        yield Wait(handle.record.pieces)
        return Prefix(prompt, requests, handle, handle.record.result())
    except BaseException:
        handle.cancel()
        handle.withdraw()  # the prefix may be held by now, though the wait for it was left
        raise
