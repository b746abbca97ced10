"""Classification of texts by the head of a model."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from rekindle.client.calls.options import Messages, TokenIds
from rekindle.client.requests import HasRequests, Requests
from rekindle.core.concurrency.waits import Waits
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request import checks
from rekindle.formats.checkpoints.uses import Uses
from rekindle.results.scores.classes import Classification
from rekindle.scoring.computing import ScoringBar
from rekindle.scoring.embedding import last_states
from rekindle.scoring.pairs import encoder_texts, pair_prompts


@overload
def classify(
    session: HasRequests,
    texts: str | Messages,
    *,
    second: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
    cache_salt: str = "",
    adapter: str | None = None,
    progress: bool | None = None,
) -> Waits[Classification]: ...
@overload
def classify(
    session: HasRequests,
    texts: list[str] | Sequence[Messages],
    *,
    second: list[str] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
    cache_salt: str = "",
    adapter: str | None = None,
    progress: bool | None = None,
) -> Waits[list[Classification]]: ...
@overload
def classify(
    session: HasRequests,
    *,
    token_ids: TokenIds | Sequence[TokenIds],
    cache_salt: str = "",
    adapter: str | None = None,
    progress: bool | None = None,
) -> Waits[Classification | list[Classification]]: ...
def classify(
    session: HasRequests,
    texts: Any = None,
    *,
    second: Any = None,
    token_ids: Any = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
    cache_salt: str = "",
    adapter: str | None = None,
    progress: bool | None = None,
) -> Waits[Any]:
    """Classify a text, or each text of a list, by the model's sequence-classification head.

    The head comes from the opened checkpoint and is not replaced by `update_weights`. The call waits for all texts, and
    for room in the waiting queue. Leaving the wait early cancels its requests.

    Args:
        texts: one text or conversation, or a list, as in `generate`.
        second: the second text of each pair, for an encoder that reads both at once, such as a premise with a
            hypothesis; one text, or as many as `texts`.
        token_ids: token ids in place of texts; of one text, or of several.
        chat_template_kwargs: additional variables of the chat template, for every conversation. The default of
            `add_generation_prompt` is False here, so a conversation ends with its last message.
        continue_final_message: whether the last message of every conversation stays open.
        cache_salt: as in `SamplingParams`.
        adapter: as in `SamplingParams`. It does not change the head.
        progress: whether to draw a progress bar for a call that takes longer than a second. The default is the
            `progress` of `open`.

    Returns:
        A `rekindle.Classification`; for a list of texts, a list of them.

    Raises:
        InvalidRequest: as in `generate`, or the model has no classification head.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    requests = session._requests
    uses = requests.engine.facts.checkpoint.uses
    head = uses.classifier
    if head is None:
        raise InvalidRequest(_no_head(uses))
    bar = ScoringBar("classifying", "texts", requests.draws_progress(progress))
    prompts: Sequence[Prompt | Exception]
    if second is not None:
        prompts, several = yield from _pairs(requests, texts, second)
    else:
        prompts, several = requests.pooled_prompts(
            texts,
            {
                "token_ids": token_ids,
                "chat_template_kwargs": chat_template_kwargs,
                "continue_final_message": continue_final_message,
            },
        )
    states = yield from last_states(requests, prompts, several, head.pooling, cache_salt, adapter, bar)
    rows = head.logits(states.rows).tolist()
    classes = [Classification(head.labels, tuple(row), head.activation) for row in rows]
    return classes if several else classes[0]


def _pairs(requests: Requests, first: Any, second: Any) -> Waits[tuple[list[Prompt], bool]]:
    """Return the prompts of pairs of texts, and whether the call has a list of them.

    Raises:
        InvalidRequest: the model is no encoder, a value is no text or list of texts, or their numbers differ.
    """
    if requests.engine.facts.model.predicts:
        raise InvalidRequest.of(
            "second", "second= is for encoders, which read both texts at once: write the pair into the prompt instead"
        )
    (firsts, several), (seconds, also_several) = encoder_texts(first), encoder_texts(second)
    if several != also_several or len(firsts) != len(seconds):
        raise InvalidRequest.of(
            "second", f"second must have a text for each of the {len(firsts)} texts, got {checks.preview(second)}"
        )
    return (yield from pair_prompts(requests, firsts, seconds)), several


def _no_head(uses: Uses) -> str:
    """Return the message for a model without a head over texts."""
    if uses.tokens is not None:
        return "the model has no head that classifies texts, but one that classifies tokens: use spans()"
    if uses.words is not None:
        return "the model has no head that classifies texts, but one for masked words: use fill() or embed()"
    if uses.both_ways:
        return (
            "the model has no head that classifies texts: open an encoder with SequenceClassification in its "
            "architecture, or use embed()"
        )
    return "the model has no head that classifies texts; score() compares options, and rerank() compares documents"
