"""What a caller gets back: pieces as they come, then the whole generation, and how a cell shows both."""

import codecs
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rekindle import markup

EndReason = Literal["stop", "length", "cancelled", "held"]
"""Why a request ended. "stop": an end token or a stop string. "length": `max_tokens` or the context. "cancelled": its
caller. "held": it asked for a prefix, which is computed."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    r"""The probability of a token: by the model alone, before any sampling parameter, or as `logprobs_of` asks.

    Attributes:
        token_id: the token.
        text: the text of this token by itself; of a part of a character its bytes, as in `\xe4\xb8`.
        logprob: the natural logarithm of its probability.
        rank: its rank among all tokens; 1 is the likeliest.
        top: the likeliest tokens at this position, as many as were asked for and are possible, the likeliest first,
            without `top`.
        bytes: the UTF-8 bytes of this token; those of all tokens, joined, are the text with its special tokens.
    """

    token_id: int
    text: str
    logprob: float
    rank: int
    top: tuple["TokenLogprob", ...] = ()
    bytes: bytes = b""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a generation, as soon as it is settled.

    Attributes:
        text: the text that these tokens complete; empty while a character, or a possible stop string, is incomplete.
        token_ids: one token, as a rule.
        logprobs: one for each token; None unless asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of a request.

    Attributes:
        state: "waiting", "running", "cancelling", or how the request ended.
        prompt_tokens: tokens in its prompt; None as long as it waits.
        generated: tokens generated so far.
        seconds: the time since it was submitted.
    """

    state: str
    prompt_tokens: int | None
    generated: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Tokens of a prompt that were found in the prefix cache, by the tier that each was in."""

    device: int = 0
    host: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """The number of tokens that were found in any tier."""
        return self.device + self.host + self.disk

    def __str__(self) -> str:
        tiers = {"on the device": self.device, "in host memory": self.host, "on disk": self.disk}
        return ", ".join(f"{count:,} {where}" for where, count in tiers.items() if count) or "none"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request.

    Attributes:
        prompt_tokens: tokens in the prompt, those of the chat template included.
        completion_tokens: tokens generated, the one that ended it included.
    """

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """The number of tokens in prompt and output together."""
        return self.prompt_tokens + self.completion_tokens

    def said(self, cached: CachedTokens) -> dict[str, str]:
        """Return what a cell shows of these tokens, by name."""
        found = f" (cached: {cached})" if cached.total else ""
        return {
            "prompt": f"{markup.counted(self.prompt_tokens, 'token')}{found}",
            "generated": markup.counted(self.completion_tokens, "token"),
        }


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds since the request was submitted, on its caller's side.

    Attributes:
        queued: until it left the waiting queue.
        first_token: until its first token came, or until its end if none came.
        total: until its end.
    """

    queued: float
    first_token: float
    total: float

    def per_token(self, tokens: int) -> float | None:
        """Return the seconds for each token after the first, of so many; None if there is no other."""
        return (self.total - self.first_token) / (tokens - 1) if tokens > 1 else None

    def said(self, tokens: int) -> dict[str, str | None]:
        """Return what a cell shows of these times after so many tokens, by name."""
        each = self.per_token(tokens)
        return {
            "queued": markup.seconds(self.queued),
            "first token after": markup.seconds(self.first_token),
            "then per token": None if each is None else markup.seconds(each),
            "total": markup.seconds(self.total),
        }


@dataclass(frozen=True, slots=True)
class Generation:
    """The outcome of a finished request. Timings and cached tokens do not count when two are compared.

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


MOST_TOKENS = 400
"""How many tokens are drawn."""
LONGEST_TOKEN = 60
"""How many characters of a token are shown."""
SHOWN_TOP = 5
"""How many of the likeliest tokens a tooltip names."""
DEEPEST = 0.55
"""The alpha behind a token of probability 0; text stays legible on it, on light pages and on dark ones."""


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


def heat_map(tokens: Sequence[TokenLogprob | None]) -> str:
    """Return the tokens in order as HTML; one that is None has no probability. Return nothing for no tokens."""
    if not tokens:
        return ""
    spans = "".join(map(_span, _by_character(tokens[:MOST_TOKENS])))
    rest = f" … {markup.counted(len(tokens) - MOST_TOKENS, 'more token')}" if len(tokens) > MOST_TOKENS else ""
    legend = (
        '<div style="opacity:0.75;font-size:85%">the deeper the shade, the less likely the token; underlined: '
        "another was likelier; point at one for its rank and probability</div>"
    )
    style = "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.9;margin:0.2em 0"
    return f'<div dir="auto" style="{style}">{spans}{rest}</div>{legend}'


def _by_character(tokens: Sequence[TokenLogprob | None]) -> Iterator[list[TokenLogprob]]:
    """Yield the tokens in groups of whole characters; an empty group for a token without a probability."""
    utf8, group = codecs.getincrementaldecoder("utf-8")(errors="replace"), list[TokenLogprob]()
    for token in tokens:
        if token is None:
            yield []
            continue
        group.append(token)
        utf8.decode(token.bytes)
        if not utf8.getstate()[0]:
            yield group
            group = []
    if group:
        yield group


def _span(group: Sequence[TokenLogprob]) -> str:
    if not group:
        return '<span title="the first token of a prompt has no probability">·</span>'
    styles = []
    depth = DEEPEST * (1 - _probability(sum(token.logprob for token in group)))
    if depth >= 0.01:
        styles.append(f"background:rgba(240,90,30,{depth:.2f})")
    if any(token.rank > 1 for token in group):
        styles.append("border-bottom:2px dotted")
    style = f' style="{";".join(styles)}"' if styles else ""
    title = "\n".join(map(_title, group))
    return f'<span title="{markup.visible(title)}"{style}>{markup.visible(_shown(group))}</span>'


def _shown(group: Sequence[TokenLogprob]) -> str:
    """Return the text of tokens, with marks before line ends and tabs; their ids where they have no text."""
    text = (
        group[0].text if len(group) == 1 else b"".join(token.bytes for token in group).decode(errors="backslashreplace")
    )
    if not text:
        return f"⟨{group[0].token_id}⟩"
    text = text if len(text) <= LONGEST_TOKEN else f"{text[:LONGEST_TOKEN]}…"
    return text.replace("\n", "↵\n").replace("\t", "→\t")


def _title(token: TokenLogprob) -> str:
    probability = markup.percent(_probability(token.logprob))
    lines = [f"{_named(token)}: {probability}, rank {token.rank:,}, token {token.token_id}"]
    lines += [
        f"  {each.rank}. {_named(each)} {markup.percent(_probability(each.logprob))}" for each in token.top[:SHOWN_TOP]
    ]
    return "\n".join(lines)


def _named(token: TokenLogprob) -> str:
    return f"“{markup.one_line(token.text, LONGEST_TOKEN)}”" if token.text else f"⟨{token.token_id}⟩"


def _probability(logprob: float) -> float:
    """Return the probability of a logarithm, which may be above 0 by a rounding error."""
    return math.exp(min(0.0, logprob))
