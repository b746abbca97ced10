"""Generation: the result of a finished request, and its display in a notebook cell."""

import json
import math
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Unpack

from rekindle import markup
from rekindle.core.cures import cured
from rekindle.core.errors import SessionError
from rekindle.core.keywords import spelled_out
from rekindle.core.request.constraint import Constraint, Kind
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.params import SamplingOptions
from rekindle.core.request.tokens import EndReason, Piece, TokenLogprob
from rekindle.core.words import quantity
from rekindle.formats.response import Response, ToolCall
from rekindle.results import data
from rekindle.results.facts.figures import Timings, Usage
from rekindle.results.heat_map import covers, heat_map, token_numbers
from rekindle.results.parsing import parse, parse_response
from rekindle.results.response_card import content_html, images_html, response_html, response_text

if TYPE_CHECKING:
    from rekindle.results.inspection.activations import Activations
    from rekindle.results.markdown import Markdown


class Branch(Protocol):
    """Request of a branch, implemented by `rekindle.Handle`: await it, or iterate over its pieces."""

    def __await__(self) -> "Generator[Any, None, Generation]": ...

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    def result(self, timeout: float | None = None) -> "Generation":
        """Block until the request ends, and return its generation."""
        ...

    def cancel(self) -> None:
        """Cancel the request."""
        ...


class BranchOrigin(Protocol):
    """Session of a generation, as needed for branches.

    Attributes:
        meanwhile: the progress of a compilation when the request was submitted, as text; empty without one.
        images: the images of the prompt, each as an `ImageSource`.
        image_token: the id of the token in place of embeddings of images; None for a prompt without images.
        max_context: the largest number of tokens of a prompt and its answer together; None if it is not known.
    """

    @property
    def meanwhile(self) -> str: ...
    @property
    def images(self) -> Sequence[Any]: ...
    @property
    def image_token(self) -> int | None: ...
    @property
    def max_context(self) -> int | None: ...

    def branch(self, generation: "Generation", at: int, token: int | str, options: SamplingOptions) -> Branch:
        """Submit the request of a branch; see `Generation.branch`."""
        ...


_CURES: Final = {
    ("answer", "candidates", "choices", "completion", "generated_text", "generations", "output", "output_text",
     "outputs"): "the answer is answer.text; n=4 gives a list of answers",
    ("tokens", "output_ids", "ids"): "they are answer.token_ids",
    ("done_reason", "stop_reason"): "it is answer.finish_reason",
    ("thinking", "reasoning_content"): "it is answer.reasoning",
    ("json", "model_dump", "dict", "asdict"): "answer.to_dict() gives a dict; answer.parsed is the value of a schema",
    ("model_dump_json", "serialize"): "answer.to_json() gives the text of answer.to_dict()",
    ("function_call", "functions"): "see answer.tool_calls",
    ("eval_count", "completion_tokens", "prompt_tokens", "prompt_eval_count", "total_tokens"): "see answer.usage",
    ("metrics", "total_duration", "eval_duration", "ttft"): "see answer.timings",
    ("split", "strip", "lower", "startswith", "splitlines", "replace", "endswith", "find"): (
        "the text is answer.text"
    ),
}  # fmt: skip
"""Attributes of answers in other libraries."""


@cured(_CURES, item="the text is answer.text, a dict is answer.to_dict()")
@dataclass(frozen=True, slots=True)
class Generation:
    """Result of a finished request, or the partial result of an interrupted one.

    Generations can be pickled, copied and used as dict keys. Equality and hashes ignore `timings`, `cached`,
    `end_token`, `drawn_in`, `parsed`, `unparsed`, `weights_version`, `prompt`, `repeats_at`, `activations` and
    `origin`. `json.dumps` refuses instances of classes: `answer.to_json()` gives JSON, and
    `json.dumps(values, default=rekindle.Generation.to_dict)` takes values with answers among them.

    Attributes:
        text: the generated text, without special tokens unless the request included them; empty for a model without a
            tokenizer.
        token_ids: the ids of all generated tokens, including a final end token.
        finish_reason: "stop" for an end token or a stop string, "length" for `max_tokens` or a full context,
            "repetition" for a repeated pattern (see `stop_on_repetition`), "cancelled" for the partial output of a
            cancelled or interrupted request.
        stopped_by: the stop string, or the id of the end token; None for other finish reasons.
        logprobs: the log-probability of each of `token_ids`; None unless requested.
        prompt_logprobs: the log-probability of each prompt token, with None for the first token and for tokens before
            `prompt_logprobs_from`; None unless requested.
        prompt_token_ids: the ids of the prompt's tokens, including tokens of the chat template.
        seed: the seed of the sampling, chosen by the engine if the request had none; None at temperature 0.
        usage: the numbers of prompt and completion tokens, and of the parts of both.
        timings: the times from submission to the start, the first token and the end, in seconds.
        cached: the number of prompt tokens found in the prefix cache, by tier.
        cut: the bytes of an incomplete character at the end of the output; `text` does not contain them.
        end_token: the text of the end token; None if no end token ended the output, or without a tokenizer.
        drawn_in: the number of the notebook cell with a live display of this generation; as the result of this cell,
            the generation is not shown again.
        begun: the number of leading tokens that were set before: for a branch, the copied tokens and the new token; for
            an answer continued by `chat.continue_`, its tokens so far; otherwise 0.
        constraint: the keyword of the output constraint, such as "json_schema"; None without a constraint.
        parsed: the value of a constrained output: for `json_schema`, the JSON value or an instance of the type passed
            as the schema; for other constraints, the text. None for an incomplete or invalid output, and without a
            constraint.
        unparsed: the reason why a constrained output has no `parsed`; None if it has one, and without a constraint.
        response: the answer of a conversation, split into reasoning, content and tool calls; None for other requests,
            and for models with answers of plain text. `reasoning`, `content`, `tool_calls` and `message` work either
            way.
        weights_version: the weights that drew the tokens, as runs: (`session.weights_version` at that time, number of
            tokens) of each. Several runs mean that `update_weights` kept the request. A token set by `branch` or forced
            by a constraint counts with the weights in use then. Empty without tokens, and from dicts of format 3.
        prompt: the text of the prompt, or the last user message of a conversation; None for a prompt of token ids, and
            from dicts of format 4.
        repeats_at: the index in `text` of the second occurrence of the repeated pattern: `text[:repeats_at]` has the
            pattern once. None for other finish reasons than "repetition", and from dicts of format 5.
        activations: the activations of `token_ids`; None unless the request had `capture`, from `to_dict`, and for the
            partial output of a cancelled or interrupted request.
        origin: the session used for branches; None after pickling, copying or `from_dict`.
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
    weights_version: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    origin: "BranchOrigin | None" = field(default=None, compare=False, repr=False)
    prompt: str | None = field(default=None, compare=False)
    repeats_at: int | None = field(default=None, compare=False)
    activations: "Activations | None" = field(default=None, compare=False, repr=False)

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens found in the prefix cache, in all tiers."""
        return self.cached.total

    @property
    def images(self) -> Sequence[Any]:
        """Images of the prompt, for displays; empty after pickling, copying or `from_dict`."""
        return () if self.origin is None else self.origin.images

    @property
    def reasoning(self) -> str | None:
        """Reasoning before the answer; None without reasoning."""
        return None if self.response is None else self.response.reasoning

    @property
    def content(self) -> str:
        """Text for the user, without reasoning, tool calls and their delimiters."""
        return self.text if self.response is None else self.response.content

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Function calls of the answer, including malformed calls; see `rekindle.ToolCall`."""
        return () if self.response is None else self.response.tool_calls

    @property
    def message(self) -> dict[str, Any]:
        """Answer as a message to append to the conversation, in the format of the model's chat template."""
        return (self.response or Response(self.text)).message

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the log-probabilities of all generated tokens; None unless `logprobs` were requested."""
        return None if self.logprobs is None else math.fsum(token.logprob for token in self.logprobs)

    @spelled_out(SamplingOptions, dict.fromkeys(SamplingOptions.__annotations__))
    def branch(self, at: int, token: int | str, **options: Unpack[SamplingOptions]) -> "Branch":
        """Generate again from another token: `other = await answer.branch(at=17, token=" sea")`.

        The request is submitted at once. The branch is a new generation: it begins with the first `at` tokens of this
        generation, followed by `token`. Whole pages of this prefix that are still in the prefix cache are reused. The
        branch samples with the same seed: with the original token, on the same device, it repeats this generation.

        Args:
            at: the index of the token to replace, counted from 0.
            token: the id or the text of the new token. A text must be one of the alternatives in `logprobs` at this
                index, or a single token.
            **options: sampling parameters to change; the others are those of this generation. `max_tokens` counts the
                copied tokens too. The prompt is not scored again unless `prompt_logprobs` is passed.

        Returns:
            A `rekindle.Handle` of the branch: await it, or iterate over its pieces. The first piece has the copied
            tokens.

        Raises:
            InvalidRequest: the index or the token does not exist, or an option is invalid; or the branch has
                `logprobs`, and the `logprobs` of this generation do not include the new token.
            SessionError: the session is closed, or `origin` is None.
        """
        if self.origin is None:
            raise SessionError(
                "this generation was not created by a session of this process, so it cannot be branched; "
                "generate it again, or pass its token ids as a prompt: token_ids=[*answer.prompt_token_ids, ...]"
            )
        return self.origin.branch(self, at, token, options)

    def markdown(self) -> "Markdown":
        """Return an object that a cell displays as rendered Markdown. The display neither runs nor fetches anything.

        HTML in the text is displayed as source. An image is replaced by its description. Only http and https links can
        be clicked.
        """
        from rekindle.results.markdown import Markdown

        return Markdown(self.text)

    def to_dict(self) -> dict[str, Any]:
        """Return the generation as a JSON-compatible dict of dicts, lists, strings, numbers and None, without loss.

        The dict has the version of the format, 7, under "version", and each attribute by name, except `drawn_in`,
        `activations` and `origin`. It has no `parsed` and `unparsed` either, because `from_dict` parses the text again:

            {"version": 7, "text": " Paris", "token_ids": [7042], "finish_reason": "length", "stopped_by": None,
             "logprobs": [{"token_id": 7042, "text": " Paris", "logprob": -0.25, "rank": 1, "top": [],
                           "bytes": "IFBhcmlz"}],
             "prompt_logprobs": None, "prompt_token_ids": [504, 3575], "seed": None,
             "usage": {"prompt_tokens": 2, "completion_tokens": 1, "reasoning_tokens": 0, "image_tokens": 0},
             "timings": {"queued": 0.01, "first_token": 0.5, "total": 0.5},
             "cached": {"device": 0, "host": 0, "disk": 0}, "cut": "", "end_token": None, "begun": 0,
             "constraint": None, "response": None, "weights_version": [[0, 1]], "prompt": "The capital of France is",
             "repeats_at": None}

        A response and its tool calls are dicts of their attributes. Bytes are in base64. A non-finite float is "inf",
        "-inf" or "nan". The items of `top` have the same fields as the items of `logprobs`. A `prompt_logprobs` list
        begins with None.
        """
        return {"version": data.VERSION, **{name: data.plain(value) for name, value in self._stored().items()}}

    def to_json(self) -> str:
        """Return `to_dict` as JSON; `from_dict(json.loads(...))` restores the generation."""
        return json.dumps(self.to_dict())

    @staticmethod
    def from_dict(written: Mapping[str, Any]) -> "Generation":
        """Return the generation of a dict created by `to_dict`, directly or through JSON.

        The text is parsed again, so `parsed` is a plain JSON value instead of an instance of the schema's type.

        Raises:
            InvalidData: the version is unknown, or a field is missing, unknown or invalid; the message names the field.
        """
        attributes = data.read(written)
        generation = Generation(**attributes)
        if generation.constraint is None:
            return generation
        value, why = parsed_of(Constraint(generation.constraint, ""), generation)
        return replace(generation, parsed=value, unparsed=why)

    def __dir__(self) -> list[str]:
        """Return the names for completion, without those for the parts of the package."""
        return sorted({*object.__dir__(self)} - _UNLISTED)  # super() does not know a class with slots

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the stored attributes, the parsed value and the activations."""
        return partial(Generation, **self._stored(), **{name: getattr(self, name) for name in _PICKLED}), ()

    def _stored(self) -> dict[str, Any]:
        """Return the stored attributes by name: all except `_NOT_STORED`."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_STORED}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        output = self.token_ids if self._without_text else self.text
        return f"<rekindle.Generation {self.ending}: {output!r}>"

    def _ipython_display_(self) -> None:
        """Show nothing in the cell of `drawn_in`; elsewhere, NotImplementedError selects IPython's default display."""
        markup.display_again(self.drawn_in)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the text if this is the result of a cell, and the repr inside a container."""
        printer.text(repr(self) if printer.indentation else self._summary())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        return markup.bundle(self._summary(), self.card("Generation"))

    def card(self, kind: str) -> str:
        """Return the HTML card of the generation, with `kind` as the name of the object in its title."""
        hover = "" if self.outcome == self.ending else self.ending
        return markup.card(kind, self.outcome, generation_html(self), hover=hover)

    def _summary(self) -> str:
        """Return the output and the facts of the card as text, without the log-probabilities."""
        prompt = self.usage.texts(self.cached, len(self.images))["prompt"]
        by_name = {"prompt": prompt, **self._times(), "not parsed": self.unparsed, "cut": self.cut_by}
        facts = ", ".join(f"{name} {value}" for name, value in by_name.items() if value is not None)
        output = response_text(self.response) or self.text or self.without_words
        return f"{output}\n[{self.outcome}; {facts}]" if output else f"[{self.outcome}; {facts}]"

    def _times(self) -> dict[str, str | None]:
        """Return the times of the card by name, with a compilation as a possible reason, and any activations."""
        meanwhile = self.origin.meanwhile if self.origin else ""
        captured = None if self.activations is None else self.activations.summary
        return self.timings.texts(len(self.token_ids)) | {"meanwhile": meanwhile or None, "activations": captured}

    @property
    def cut_by(self) -> str | None:
        """The reason for an answer cut by a limit, with the way to a longer one; None for another end."""
        if self.finish_reason != "length":
            return None
        if self.full_context is not None:
            return f"the context of {quantity(self.full_context, 'token')} is full: max_context= of open() allows more"
        return f"after {quantity(len(self.token_ids), 'token')}: max_tokens= allows more"

    @property
    def full_context(self) -> int | None:
        """Number of tokens of the context, if the answer was cut because it was full; None for another end."""
        most = self.origin.max_context if self.origin and self.finish_reason == "length" else None
        return most if most is not None and len(self.prompt_token_ids) + len(self.token_ids) >= most else None

    @property
    def without_words(self) -> str:
        """Display of a generation without text: its token ids, or the reason for an immediate end."""
        if self._without_text:
            return ids_in_words(self.token_ids)
        return f"(empty: ended at {self.end_token or repr(self.stopped_by)})"

    @property
    def _without_text(self) -> bool:
        """True if only token ids can be displayed."""
        return not self.text and self.end_token is None and not isinstance(self.stopped_by, str)

    @property
    def ending(self) -> str:
        """Finish reason and number of tokens, as text."""
        match self.stopped_by:
            case None:
                by = ""
            case str():
                by = f" at {self.stopped_by!r}"
            case token:
                by = f" at end token {token}" if self.end_token is None else f" at {self.end_token} (token {token})"
        return f"ended: {self.finish_reason}{by}, {self._extent}"

    @property
    def outcome(self) -> str:
        """Finish reason, without the end token, and number of tokens, as text."""
        is_done = self.finish_reason == "stop" and not isinstance(self.stopped_by, str)
        return f"done, {self._extent}" if is_done else self.ending

    @property
    def _extent(self) -> str:
        cut = ", in the middle of a character" if self.cut else ""
        prefix = f", the first {self.begun} set before" if self.begun else ""
        return f"{quantity(len(self.token_ids), 'token')}{prefix}{cut}"


_UNLISTED = {"card", "cut_by", "drawn_in", "full_context", "images", "origin", "without_words"}
"""Public names that completion leaves out."""
_PICKLED = ("parsed", "unparsed", "activations")
"""Attributes outside of dicts: the values that `from_dict` parses again, and arrays."""
_NOT_STORED = ("drawn_in", "origin", *_PICKLED)
"""Attributes outside of dicts, and those valid only in one notebook or process."""


def parsed_of(constraint: Constraint, generation: Generation) -> tuple[Any, str | None]:
    """Return `parsed` and `unparsed` of a finished generation. A response with another constraint may call tools."""
    end, by = generation.finish_reason, generation.stopped_by
    if generation.response is not None and constraint.kind != "grammar":
        return parse_response(constraint, generation.response, end, by)
    return parse(constraint, generation.text, end, by)


def generation_html(generation: Generation, calls: str = "") -> str:
    """Return the card of a generation as HTML, without its title.

    Args:
        calls: HTML of the tool calls and their results; empty to show the calls alone.
    """
    image_token = None if generation.origin is None else generation.origin.image_token
    prompt = heat_map(generation.prompt_logprobs or (), image_token)
    logprobs = generation.logprobs or ()
    parts = (
        markup.prompt_line(generation.prompt or ""),
        images_html(generation.images),
        response_html(generation.response, heat_map(logprobs), calls)
        or text_html(generation.text, generation.without_words, logprobs),
        token_numbers(logprobs),
        markup.folded("tokens of the prompt", prompt) if prompt else "",
        markup.facts(generation.usage.texts(generation.cached, len(generation.images)) | generation._times()),
        markup.facts({"not parsed": generation.unparsed, "cut": generation.cut_by}),
    )
    return "".join(parts)


def text_html(text: str, placeholder: str, logprobs: Sequence[TokenLogprob]) -> str:
    """Return a text as HTML, followed by the heat map of its tokens. An empty text is replaced by the placeholder.

    A heat map that contains the whole text replaces it, or is folded below a formatted text.
    """
    if text and covers(text, logprobs):
        from rekindle.results.markdown import formatted_html  # the parser takes long to import

        rendered = formatted_html(text)
        return rendered + markup.folded("tokens", heat_map(logprobs)) if rendered else heat_map(logprobs)
    return content_html(text or placeholder) + heat_map(logprobs)


def ids_in_words(token_ids: Sequence[int]) -> str:
    """Return token ids as text; empty for no ids."""
    return f"token ids {' '.join(map(str, token_ids))}" if token_ids else ""
