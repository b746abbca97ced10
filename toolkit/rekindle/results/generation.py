"""What a caller gets back of a request that has ended, and how a cell shows it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from rekindle import markup
from rekindle.results import data
from rekindle.results.figures import CachedTokens, Timings, Usage
from rekindle.results.heat_map import heat_map
from rekindle.results.tokens import TokenLogprob

if TYPE_CHECKING:
    from rekindle.results.markdown import Markdown

EndReason = Literal["stop", "length", "cancelled", "held"]
"""Why a request ended. "stop": an end token or a stop string. "length": `max_tokens` or the context. "cancelled": its
caller. "held": it asked for a prefix, which is computed."""


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
        prompt_logprobs: one for each token of the prompt, None for its first; None unless asked for.
        prompt_token_ids: the prompt as the model read it, the chat template's tokens included.
        seed: the seed of the draws, also if none was given; None where nothing is drawn, at temperature 0.
        usage: tokens of prompt and output.
        timings: seconds until its stages.
        cached: tokens of the prompt that were found in the prefix cache instead of computed, by tier.
        cut: the bytes of a character in whose middle the output ended; they are not in `text`.
        end_token: the text of the end token, if one ended it and the model has a tokenizer.
        drawn_in: the number of the cell of a notebook that has drawn it already; it is not shown there a second time.
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

    @property
    def cached_tokens(self) -> int:
        """The number of tokens of the prompt that were found in the prefix cache, in any tier."""
        return self.cached.total

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the log-probabilities of all generated tokens; None unless `logprobs` were asked for."""
        return None if self.logprobs is None else math.fsum(token.logprob for token in self.logprobs)

    def markdown(self) -> "Markdown":
        """Return the text as an object that a notebook shows as rendered Markdown, in which nothing runs or is fetched.

        HTML in the text is shown as it stands, an image is its description, and only links to the web can be clicked.
        """
        from rekindle.results.markdown import Markdown

        return Markdown(self.text)

    def to_dict(self) -> dict[str, Any]:
        """Return this as JSON holds it: a dict of dicts, lists, texts, numbers and None. Nothing is lost.

        It has the version of this form, which is 1, under "version", and each attribute by its name but `drawn_in`:

            {"version": 1, "text": " Paris", "token_ids": [7042], "finish_reason": "length", "stopped_by": None,
             "logprobs": [{"token_id": 7042, "text": " Paris", "logprob": -0.25, "rank": 1, "top": [],
                           "bytes": "IFBhcmlz"}],
             "prompt_logprobs": None, "prompt_token_ids": [504, 3575], "seed": None,
             "usage": {"prompt_tokens": 2, "completion_tokens": 1},
             "timings": {"queued": 0.01, "first_token": 0.5, "total": 0.5},
             "cached": {"device": 0, "host": 0, "disk": 0}, "cut": "", "end_token": None}

        Bytes are in base64. A float that is not finite is "inf", "-inf" or "nan". `top` has objects like those of
        `logprobs`, and `prompt_logprobs` begins with None.
        """
        written = {each.name: data.plain(getattr(self, each.name)) for each in fields(self) if each.name != "drawn_in"}
        return {"version": data.VERSION, **written}

    @staticmethod
    def from_dict(written: Mapping[str, Any]) -> "Generation":
        """Return the generation of which `to_dict` has returned this, be it in this process or in a file of JSON.

        Raises:
            InvalidData: it is of another version, or no generation was written as this; the message says where.
        """
        return Generation(**data.read(written))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy all but `drawn_in`: a cell of the same number in another notebook has not drawn it."""
        kept = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "drawn_in"}
        return partial(Generation, **kept), ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        said = self.token_ids if self._without_text else self.text
        return f"<rekindle.Generation {self._ending()}: {said!r}>"

    def _ipython_display_(self) -> None:
        """Show nothing in the cell that has drawn it already; NotImplementedError has IPython show it as all else."""
        if self.drawn_in is None or self.drawn_in != markup.cell():
            raise NotImplementedError

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the text as it is where this is the result of a cell, and the repr where it is in a list."""
        printer.text(repr(self) if printer.indentation else self._alone())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        shown = markup.card("Generation", self._ending(), generation_html(self))
        return markup.bundle(self._alone(), shown)

    def _alone(self) -> str:
        """Return all that the HTML says but for logprobs, as text."""
        prompt = self.usage.said(self.cached)["prompt"]
        known = {"prompt": prompt, **self.timings.said(len(self.token_ids))}
        facts = ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)
        said = ids_in_words(self.token_ids) if self._without_text else self.text
        return f"{said}\n[{self._ending()}; {facts}]" if said else f"[{self._ending()}; {facts}]"

    @property
    def _without_text(self) -> bool:
        """Tell whether only token ids can be shown."""
        return not self.text and self.end_token is None and not isinstance(self.stopped_by, str)

    def _ending(self) -> str:
        match self.stopped_by:
            case None:
                by = ""
            case str():
                by = f" at {self.stopped_by!r}"
            case token:
                by = f" at end token {token}" if self.end_token is None else f" at {self.end_token} (token {token})"
        cut = ", in the middle of a character" if self.cut else ""
        return f"ended: {self.finish_reason}{by}, {markup.counted(len(self.token_ids), 'token')}{cut}"


def generation_html(generation: Generation) -> str:
    """Return all of a generation but its title, as HTML."""
    prompt = heat_map(generation.prompt_logprobs or ())
    parts = (
        said_html(generation.text, generation.token_ids if generation._without_text else (), generation.logprobs or ()),
        markup.folded("tokens of the prompt", prompt) if prompt else "",
        markup.facts(generation.usage.said(generation.cached)),
        markup.facts(generation.timings.said(len(generation.token_ids))),
    )
    return "".join(parts)


def said_html(text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> str:
    """Return the text as HTML, or the token ids where there is none, and the tokens as a heat map."""
    return markup.passage(text or ids_in_words(token_ids)) + heat_map(logprobs)


def ids_in_words(token_ids: Sequence[int]) -> str:
    """Return token ids in words; nothing for none."""
    return f"token ids {' '.join(map(str, token_ids))}" if token_ids else ""
