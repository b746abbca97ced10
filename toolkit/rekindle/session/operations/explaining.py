"""Explanation of an answer: a request within a trace, and the logit lens of its tokens."""

import math
from dataclasses import replace
from typing import Protocol, Unpack

from rekindle.assembly.looking import Selection
from rekindle.client.calls.images import has_images
from rekindle.client.calls.options import GENERATE_DEFAULTS, GenerateOptions, OnePrompt, OnePromptOptions
from rekindle.client.requests import Requests
from rekindle.core.concurrency.waits import Waits
from rekindle.core.keywords import spelled_out
from rekindle.results.generation import Generation
from rekindle.results.inspection.lens import LogitLens
from rekindle.session.operations.inspecting import Inspections
from rekindle.views.explanation import (
    ALTERNATIVES,
    MOST_TOKENS,
    ExplainedToken,
    Explanation,
    shown_layers,
    ticks_of,
)
from rekindle.views.timeline.lanes import timelines
from rekindle.views.timeline.requests import RequestTimeline, Timeline
from rekindle.views.trace import Trace


class Explained(Protocol):
    """Interface of a session for `explain`."""

    _requests: Requests

    @property
    def _inspections(self) -> Inspections: ...

    def trace(self) -> Trace: ...


@spelled_out(GenerateOptions, GENERATE_DEFAULTS)
def explain(session: Explained, prompt: OnePrompt = None, **options: Unpack[OnePromptOptions]) -> Waits[Explanation]:
    """Generate an answer, and explain each of its tokens: the predictions of the layers, its page and its tick.

    A cell shows one card: choosing a token shows what each layer predicted in its place, whether its page was found in
    the prefix cache, and the tick that computed it. The card needs no kernel, so it also works in exported notebooks.
    The logit lens is computed as by `logit_lens`, over prompt and answer.

    Args:
        prompt: text or messages, as in `generate`.
        Others: options of the answer, as in `generate`.

    Returns:
        A `rekindle.Explanation` with the answer as `generation` and the facts as `tokens`.

    Raises:
        InvalidRequest: an option is invalid, or the model cannot be looked into, as in `look`.
        Others: as in `generate` and `look`.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    layers = shown_layers(session._inspections.layers)
    with session.trace() as trace:
        handle = session._requests.submit_one(prompt, options, wait=True)
        try:
            generation = yield from handle.wait_ended()
        finally:
            handle.cancel()
    ids = (*generation.prompt_token_ids, *generation.token_ids)
    # The last token predicts nothing here, and prompt and answer may fill the whole context.
    requested, choice = session._requests.prompt(prompt, options), Selection(tuple(layers), ("residual",))
    whole, output = (requested, generation.token_ids[:-1]) if has_images(requested) else (ids[:-1] or ids, ())
    look = yield from session._inspections.look_at(whole, choice, output=output)
    assert look.residual is not None, "it was asked for"
    tokens, residual = look.tokens[-MOST_TOKENS:], look.residual[:, -MOST_TOKENS:]
    end = replace(look, tokens=tokens, residual=residual, images=())
    lens = yield from session._inspections.logit_lens(end, ALTERNATIVES)
    texts = tuple(map(session._inspections.text, ids))
    for _, timeline in timelines(trace.records):
        if (request := timeline.requests.get(handle.request_id)) is not None:
            return _explanation(generation, texts, lens, timeline, request, session._inspections.page_size)
    return _explanation(generation, texts, lens, Timeline(()), RequestTimeline(0), session._inspections.page_size)


def _explanation(
    generation: Generation,
    texts: tuple[str, ...],
    lens: LogitLens,
    timeline: Timeline,
    request: RequestTimeline,
    page_size: int,
) -> Explanation:
    """Return the facts of a lens and of a timeline by token."""
    prompt, cached = len(generation.prompt_token_ids), generation.cached_tokens
    cells = ((tick, cell.start, cell.tokens, cell.new_tokens) for tick, cell in request.cells.items())
    ticks = ticks_of(cells, prompt)
    first = max(0, len(texts) - MOST_TOKENS)
    offset = max(1, len(texts) - 1) - len(lens.tokens)  # the position of the first token of the lens
    tokens = []
    for position in range(first, len(texts)):
        place = position - 1 - offset  # the token before predicts this one
        tick = None if position < cached else ticks.get(position)
        tokens.append(
            ExplainedToken(
                position,
                texts[position],
                position >= prompt,
                position < cached,
                tick,
                timeline.ticks[tick].seconds if tick in timeline.ticks else None,
                _layers(lens, place) if place >= 0 else (),
                _likeliest(lens, place) if place >= 0 else (),
            )
        )
    return Explanation(generation, tuple(tokens), page_size, len(texts))


def _layers(lens: LogitLens, place: int) -> tuple[tuple[int, str, float], ...]:
    """Return the likeliest token of each layer after a place, the last layer first."""
    rows = range(len(lens.layers) - 1, -1, -1)
    return tuple((lens.layers[row], lens.texts[row][place][0], _share(lens.logprobs[row, place, 0])) for row in rows)


def _likeliest(lens: LogitLens, place: int) -> tuple[tuple[str, float], ...]:
    return tuple(zip(lens.texts[-1][place], map(_share, lens.logprobs[-1, place]), strict=True))


def _share(logprob: float) -> float:
    return math.exp(min(0.0, float(logprob)))
