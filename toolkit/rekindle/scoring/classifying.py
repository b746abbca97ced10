"""Classification of texts by the head of a model."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from rekindle.client.calls.options import Messages, TokenIds
from rekindle.client.requests import HasRequests
from rekindle.core.concurrency.waits import Waits
from rekindle.core.errors import InvalidRequest
from rekindle.formats.checkpoints.uses import Uses
from rekindle.results.scores.classes import Classification
from rekindle.scoring.computing import ScoringBar
from rekindle.scoring.embedding import last_states


@overload
def classify(
    session: HasRequests,
    texts: str | Messages,
    *,
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
    bar, head = (
        ScoringBar("classifying", "texts", requests.draws_progress(progress)),
        requests.engine.facts.checkpoint.uses.classifier,
    )
    if head is None:
        raise InvalidRequest(_no_head(requests.engine.facts.checkpoint.uses))
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


def _no_head(uses: Uses) -> str:
    """Return the message for a model without a head over texts."""
    if uses.tokens is not None:
        return "the model has no head that classifies texts, but one that classifies tokens: use spans()"
    if uses.words is not None:
        return "the model has no head that classifies texts, but one for masked words: use fill() or embed()"
    return "the model has no head that classifies texts; score() compares options, and rerank() compares documents"
