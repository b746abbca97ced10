"""A prefix that is computed once, held in the prefix cache, and continued as often as its user likes."""

import weakref
from collections.abc import Generator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, overload

from rekindle import markup
from rekindle.errors import InvalidRequest
from rekindle.messages import Chat, Continued, Prompt
from rekindle.request import SamplingOptions
from rekindle.results import Generation
from rekindle.session.handle import Handle, Stream
from rekindle.session.prompts import Messages, TokenIds, all_prompts, as_text, one_prompt
from rekindle.session.requests import Asked, Requests

OneMore = str | Messages | None
ManyMore = list[str] | list[Messages] | None


class Prefix:
    """A held prefix, from `session.prefix`. Its whole pages stay in the device tier until `release`.

    A handle that is dropped is released too; one that was the result of a cell lives on in `Out`.

    Attributes:
        tokens: tokens in the prefix.
        cached: those of them that were found in the cache when it was made, by tier.
    """

    def __init__(self, prompt: Prompt, requests: Requests, handle: Handle, made: Generation):
        self.tokens = made.usage.prompt_tokens
        self.cached = made.cached
        self._prompt = prompt
        self._requests = requests
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
        """Tokens that were found in the cache when it was made, in any tier."""
        return self.cached.total

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        known = {"tokens": f"{self.tokens:,}", "cached when it was made": str(self.cached)}
        shown = markup.card("Prefix", self._state, markup.passage(as_text(self._prompt)), markup.facts(known))
        return markup.bundle(repr(self), shown)

    @overload
    async def generate(
        self,
        prompt: OneMore = None,
        *,
        token_ids: TokenIds | None = None,
        n: None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Generation: ...
    @overload
    async def generate(
        self,
        prompt: OneMore | ManyMore = None,
        *,
        token_ids: TokenIds | Sequence[TokenIds] | None = None,
        n: int | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Any]: ...
    async def generate(
        self, prompt: Any = None, *, token_ids: Any = None, n: int | None = None, **sampling: Unpack[SamplingOptions]
    ) -> Any:
        """Continue the prefix, and generate to the end.

        Args:
            prompt: text that follows a text; messages that follow messages (a str is one of the user's), or a list;
                nothing to generate from the prefix as it is.
            token_ids: token ids that follow instead, or a list of such.
            n, **sampling: as in `Session.generate`.

        Returns:
            A `Generation`; a list of them for a list of prompts, or if `n` is given, even 1; for both, a list of lists.

        Raises:
            InvalidRequest: it was released, or as `Session.generate`.
        """
        return await self._asked(prompt, token_ids, n, sampling).ended()

    def generate_sync(
        self, prompt: Any = None, *, token_ids: Any = None, n: int | None = None, **sampling: Unpack[SamplingOptions]
    ) -> Any:
        """The blocking twin of `generate`."""
        return self._asked(prompt, token_ids, n, sampling).ended_blocking()

    def stream(
        self, prompt: OneMore = None, *, token_ids: TokenIds | None = None, **sampling: Unpack[SamplingOptions]
    ) -> Stream:
        """Continue the prefix, and have the pieces as they come: `async for` or, blocking, `for`."""
        _check_no_salt(sampling)
        prompts, _ = self._continued(prompt, token_ids, one=True)
        return Stream(self._requests.one(prompts[0], sampling, wait=True))

    async def fork(self, n: int) -> list["Prefix"]:
        """`n` more handles of the same prefix, each to be released by itself; nothing is computed for them."""
        count: object = n  # whatever its type says
        if not isinstance(count, int) or count < 1:
            raise InvalidRequest(f"n must be an integer of at least 1, got {n!r:.80}")
        self._check_held()
        return [await Holding(self._prompt, self._requests) for _ in range(n)]

    def release(self) -> None:
        """Let go of it: its pages may be evicted. Idempotent, from any thread; what was submitted goes on."""
        self._release()

    async def __aenter__(self) -> "Prefix":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.release()

    def __enter__(self) -> "Prefix":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _check_held(self) -> None:
        if not self._release.alive:
            raise InvalidRequest("the prefix was released; make another with session.prefix()")

    def _asked(self, prompt: Any, token_ids: Any, n: int | None, sampling: SamplingOptions) -> Asked:
        _check_no_salt(sampling)
        prompts, batch = self._continued(prompt, token_ids)
        return self._requests.all(prompts, batch, sampling, n)

    def _continued(self, prompt: Any, token_ids: Any, *, one: bool = False) -> tuple[list[Prompt], bool]:
        self._check_held()
        if prompt is None and token_ids is None:
            return [self._prompt], False
        if one:
            prompts, batch = [one_prompt(prompt, token_ids, self._requests.vocab_size)], False
        else:
            prompts, batch = all_prompts(prompt, token_ids, self._requests.vocab_size)
        return [_continued(self._prompt, more) for more in prompts], batch


class Holding:
    """A prefix that is being made; nothing happens before it is awaited, entered, or waited for."""

    def __init__(self, prompt: Prompt, requests: Requests):
        self._prompt = prompt
        self._requests = requests
        self._prefix: Prefix | None = None

    def __await__(self) -> Generator[Any, None, Prefix]:
        return self._made().__await__()

    def __repr__(self) -> str:
        return "<rekindle.Holding of a prefix: await it, or enter it with 'async with'>"

    if not TYPE_CHECKING:  # a type checker finds a forgotten await by itself

        def __getattr__(self, name: str) -> NoReturn:
            hint = ": it is not computed yet; doc = await session.prefix(...)" if hasattr(Prefix, name) else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    async def __aenter__(self) -> Prefix:
        self._prefix = await self
        return self._prefix

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._prefix is not None, "entered before it is left"
        self._prefix.release()

    def wait(self) -> Prefix:
        """Block until it is computed."""
        handle = self._submitted()
        try:
            return Prefix(self._prompt, self._requests, handle, handle.result())
        except BaseException:
            handle.withdraw()
            raise

    async def _made(self) -> Prefix:
        handle = self._submitted()
        try:
            return Prefix(self._prompt, self._requests, handle, await handle)
        except BaseException:
            handle.withdraw()  # it may be held by now, though the wait for it was left
            raise

    def _submitted(self) -> Handle:
        return self._requests.one(_unfinished(self._prompt), {}, wait=True, hold=True)


def _check_no_salt(sampling: SamplingOptions) -> None:
    if "cache_salt" in sampling:
        raise InvalidRequest("the cache_salt of a prefix is given to session.prefix(), and holds for what continues it")


def _unfinished(prompt: Prompt) -> Prompt:
    """A conversation without the start of an answer, since another message may follow."""
    if isinstance(prompt, Chat):
        return replace(prompt, variables={"add_generation_prompt": False, **prompt.variables})
    return prompt


def _continued(prefix: Prompt, more: Prompt) -> Prompt:
    """The prompt that begins with the prefix.

    Raises:
        InvalidRequest: messages were to follow a text, or token ids messages.
    """
    match prefix, more:
        case Chat(), str():
            return Chat([*prefix.messages, {"role": "user", "content": more}], prefix.tools, prefix.variables)
        case Chat(), Chat():
            return Chat([*prefix.messages, *more.messages], prefix.tools, prefix.variables)
        case Chat(), _:
            raise InvalidRequest("token ids cannot follow messages; give messages, or a str for one of the user's")
        case _, Chat():
            raise InvalidRequest("messages cannot follow a text; give a str or token_ids")
    return Continued(prefix, more)
