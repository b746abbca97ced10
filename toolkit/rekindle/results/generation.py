"""What a caller gets back of a request that has ended, and how a cell shows it."""

import math
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from rekindle.core import markup
from rekindle.core.errors import SessionError
from rekindle.core.keywords import spelled_out
from rekindle.core.request.constraint import Constraint, Kind
from rekindle.core.request.figures import CachedTokens, Timings, Usage
from rekindle.core.request.params import SamplingOptions
from rekindle.core.request.tokens import EndReason, Piece, TokenLogprob
from rekindle.core.text.response import Response, ToolCall
from rekindle.results import data
from rekindle.results.heat_map import covers, heat_map
from rekindle.results.parsing import parsed
from rekindle.results.response_card import response_html, response_text

if TYPE_CHECKING:
    from rekindle.results.markdown import Markdown


class Branch(Protocol):
    """A request that is under way, which is a `rekindle.Handle`: await it for its generation, or stream it."""

    def __await__(self) -> "Generator[Any, None, Generation]": ...

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    def result(self, timeout: float | None = None) -> "Generation":
        """Block until it has ended."""
        ...

    def cancel(self) -> None:
        """End it now."""
        ...


class Origin(Protocol):
    """The maker of a generation, which can make others that begin like it.

    Attributes:
        meanwhile: what else the engine was busy with when the request was submitted, in words; empty if nothing.
    """

    @property
    def meanwhile(self) -> str: ...

    def branch(self, generation: "Generation", at: int, token: int | str, options: SamplingOptions) -> Branch:
        """Put a request on its way; see `Generation.branch`."""
        ...


@dataclass(frozen=True, slots=True)
class Generation:
    """The outcome of a finished request. Timings and cached tokens do not count when two are compared.

    It can be pickled, copied, and used as a key; those that are equal have the same hash.

    Attributes:
        text: the generated text, without special tokens unless they were asked for; empty for a model without a
            tokenizer.
        token_ids: every generated token, the one that ended it included.
        finish_reason: "stop" for an end token or a stop string, "length" for `max_tokens` or the context, "cancelled"
            for what had come of a request that was interrupted.
        stopped_by: the stop string, or the id of the end token; None for "length".
        logprobs: one for each of `token_ids`; None unless asked for.
        prompt_logprobs: one for each token of the prompt, None for its first and for those before
            `prompt_logprobs_from`; None unless asked for.
        prompt_token_ids: the prompt as the model read it, the chat template's tokens included.
        seed: the seed of the draws, also if none was given; None where nothing is drawn, at temperature 0.
        usage: tokens of prompt and output.
        timings: seconds until its stages.
        cached: tokens of the prompt that were found in the prefix cache instead of computed, by tier.
        cut: the bytes of a character in whose middle the output ended; they are not in `text`.
        end_token: the text of the end token, if one ended it and the model has a tokenizer.
        drawn_in: the number of the cell of a notebook that has drawn it already; it is not shown there a second time.
        begun: how many of the tokens were given, because it is a branch of another generation; see `branch`.
        constraint: the keyword that said what the output has to be, such as "json_schema"; None for none.
        parsed: what a constrained output means: the value of its JSON, or an object of the type that was given for its
            schema; the text itself for the other constraints. None where there is no whole output.
        unparsed: why there is no `parsed` though the output was constrained; None if there is.
        response: the answer to a conversation, taken apart; None if it is no such answer, or if the model writes plain
            text alone. `reasoning`, `content`, `tool_calls` and `message` are there in any case.
        origin: makes its branches; None for one that comes from elsewhere than a session of this process.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: EndReason
    stopped_by: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    prompt_token_ids: tuple[int, ...]
    seed: int | None
    usage: Usage
    timings: Timings = field(compare=False)
    cached: CachedTokens = field(compare=False)
    cut: bytes = b""
    end_token: str | None = field(default=None, compare=False)
    drawn_in: int | None = field(default=None, compare=False)
    begun: int = 0
    constraint: Kind | None = None
    parsed: Any = field(default=None, compare=False)
    unparsed: str | None = field(default=None, compare=False)
    response: Response | None = None
    origin: "Origin | None" = field(default=None, compare=False, repr=False)

    @property
    def cached_tokens(self) -> int:
        """The number of tokens of the prompt that were found in the prefix cache, in any tier."""
        return self.cached.total

    @property
    def reasoning(self) -> str | None:
        """The text that the model wrote to itself before its answer; None if it wrote none."""
        return None if self.response is None else self.response.reasoning

    @property
    def content(self) -> str:
        """The text for the user: without reasoning, tool calls and their marks."""
        return self.text if self.response is None else self.response.content

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of functions that the model wants, also those that cannot be read; see `rekindle.ToolCall`."""
        return () if self.response is None else self.response.tool_calls

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to be appended to the conversation, as the model's chat template reads it."""
        return (self.response or Response(self.text)).message

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the log-probabilities of all generated tokens; None unless `logprobs` were asked for."""
        return None if self.logprobs is None else math.fsum(token.logprob for token in self.logprobs)

    @spelled_out(SamplingOptions, dict.fromkeys(SamplingOptions.__annotations__))
    def branch(self, at: int, token: int | str, **options: Unpack[SamplingOptions]) -> "Branch":
        """Go on from a place with another token: `other = await answer.branch(at=17, token=" sea")`.

        What comes of it is a generation that begins with the first `at` tokens of this one and with the token. Its keys
        and values up to there are found in the prefix cache, as far as whole pages of them are there. It draws with the
        same seed, so that without another token, and on the same device, the same would follow.

        Args:
            at: the place of the token that is to be another, counted from 0.
            token: its id, or its text: that of one of the alternatives which `logprobs` gave for this place, or one
                that is a token by itself.
            **options: sampling parameters that are to be others than those of this generation; `max_tokens` counts
                the given tokens too. Prompts are not scored again unless `prompt_logprobs` is given.

        Returns:
            A `rekindle.Handle` of the branch: await it, or stream its pieces, of which the first has what is given.

        Raises:
            InvalidRequest: there is no such place or token; or `logprobs` are wanted, which begin with those of this
                generation, and it has none for this token.
            SessionError: the session is closed; or the generation was unpickled, or made by hand.
        """
        if self.origin is None:
            raise SessionError(
                "this generation was not made by a session of this process, so there is nothing to branch it with; "
                "generate it again, or give its token ids as a prompt: token_ids=[*answer.prompt_token_ids, ...]"
            )
        return self.origin.branch(self, at, token, options)

    def markdown(self) -> "Markdown":
        """Return the text as an object that a notebook shows as rendered Markdown, in which nothing runs or is fetched.

        HTML in the text is shown as it stands, an image is its description, and only links to the web can be clicked.
        """
        from rekindle.results.markdown import Markdown

        return Markdown(self.text)

    def to_dict(self) -> dict[str, Any]:
        """Return this as JSON holds it: a dict of dicts, lists, texts, numbers and None. Nothing is lost.

        It has the version of this form, which is 3, under "version", and each attribute by its name, but for `drawn_in`
        and `origin`, and for `parsed` and `unparsed`, which are made of the text:

            {"version": 3, "text": " Paris", "token_ids": [7042], "finish_reason": "length", "stopped_by": None,
             "logprobs": [{"token_id": 7042, "text": " Paris", "logprob": -0.25, "rank": 1, "top": [],
                           "bytes": "IFBhcmlz"}],
             "prompt_logprobs": None, "prompt_token_ids": [504, 3575], "seed": None,
             "usage": {"prompt_tokens": 2, "completion_tokens": 1, "reasoning_tokens": 0},
             "timings": {"queued": 0.01, "first_token": 0.5, "total": 0.5},
             "cached": {"device": 0, "host": 0, "disk": 0}, "cut": "", "end_token": None, "begun": 0,
             "constraint": None, "response": None}

        A response has each of its attributes by its name, and so have its calls. Bytes are in base64. A float that is
        not finite is "inf", "-inf" or "nan". `top` has objects like those of `logprobs`, and `prompt_logprobs` begins
        with None.
        """
        return {"version": data.VERSION, **{name: data.plain(value) for name, value in self._lasting().items()}}

    @staticmethod
    def from_dict(written: Mapping[str, Any]) -> "Generation":
        """Return the generation of which `to_dict` has returned this, be it in this process or in a file of JSON.

        What its text means is read again: `parsed` is a value of JSON, whatever type it was of.

        Raises:
            InvalidData: it is of another version, or no generation was written as this; the message says where.
        """
        known = data.read(written)
        return Generation(**known, **_meaning(known))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy what lasts."""
        return partial(Generation, **self._lasting(), parsed=self.parsed, unparsed=self.unparsed), ()

    def _lasting(self) -> dict[str, Any]:
        """Return the attributes that hold in any process: a cell of the same number elsewhere has not drawn it."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _MADE_AGAIN}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        said = self.token_ids if self._without_text else self.text
        return f"<rekindle.Generation {self.ending}: {said!r}>"

    def _ipython_display_(self) -> None:
        """Show nothing in the cell that has drawn it already; NotImplementedError has IPython show it as all else."""
        if self.drawn_in is None or self.drawn_in != markup.cell():
            raise NotImplementedError

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the text as it is where this is the result of a cell, and the repr where it is in a list."""
        printer.text(repr(self) if printer.indentation else self._alone())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        shown = markup.card("Generation", self.ending, generation_html(self))
        return markup.bundle(self._alone(), shown)

    def _alone(self) -> str:
        """Return all that the HTML says but for logprobs, as text."""
        prompt = self.usage.said(self.cached)["prompt"]
        known = {"prompt": prompt, **self._times(), "not parsed": self.unparsed}
        facts = ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)
        said = response_text(self.response) or self.text or self.without_words
        return f"{said}\n[{self.ending}; {facts}]" if said else f"[{self.ending}; {facts}]"

    def _times(self) -> dict[str, str | None]:
        """Return the times that a cell shows, by name, and what may have made them long."""
        meanwhile = self.origin.meanwhile if self.origin else ""
        return self.timings.said(len(self.token_ids)) | {"meanwhile": meanwhile or None}

    @property
    def without_words(self) -> str:
        """The words that stand for it where it has no text: its token ids, or what ended it at once."""
        if self._without_text:
            return ids_in_words(self.token_ids)
        return f"(empty: ended at {self.end_token or repr(self.stopped_by)})"

    @property
    def _without_text(self) -> bool:
        """Tell whether only token ids can be shown."""
        return not self.text and self.end_token is None and not isinstance(self.stopped_by, str)

    @property
    def ending(self) -> str:
        """Why and after how many tokens it ended, in words."""
        match self.stopped_by:
            case None:
                by = ""
            case str():
                by = f" at {self.stopped_by!r}"
            case token:
                by = f" at end token {token}" if self.end_token is None else f" at {self.end_token} (token {token})"
        cut = ", in the middle of a character" if self.cut else ""
        given = f", of which {self.begun} were given" if self.begun else ""
        return f"ended: {self.finish_reason}{by}, {markup.quantity(len(self.token_ids), 'token')}{given}{cut}"


_MADE_AGAIN = ("drawn_in", "origin", "parsed", "unparsed")


def _meaning(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a written generation means, by the names of its attributes."""
    if known["constraint"] is None:
        return {}
    constraint = Constraint(known["constraint"], "")
    value, why = parsed(constraint, known["text"], known["finish_reason"], known["stopped_by"])
    return {"parsed": value, "unparsed": why}


def generation_html(generation: Generation, called: str = "") -> str:
    """Return all of a generation but its title, as HTML.

    Args:
        called: HTML of its calls and what came of them; nothing for the calls alone.
    """
    prompt = heat_map(generation.prompt_logprobs or ())
    logprobs = generation.logprobs or ()
    parts = (
        response_html(generation.response, heat_map(logprobs), called)
        or said_html(generation.text, generation.without_words, logprobs),
        markup.folded("tokens of the prompt", prompt) if prompt else "",
        markup.facts(generation.usage.said(generation.cached)),
        markup.facts(generation._times()),
        markup.facts({"not parsed": generation.unparsed}),
    )
    return "".join(parts)


def said_html(text: str, without_words: str, logprobs: Sequence[TokenLogprob]) -> str:
    """Return the text as HTML, or what is shown where there is none, and the tokens as a heat map.

    A text that the heat map shows as a whole is not shown a second time.
    """
    if text and covers(text, logprobs):
        return heat_map(logprobs)
    return markup.passage(text or without_words) + heat_map(logprobs)


def ids_in_words(token_ids: Sequence[int]) -> str:
    """Return token ids in words; nothing for none."""
    return f"token ids {' '.join(map(str, token_ids))}" if token_ids else ""
