"""Classes of the tokens of texts, aggregated to spans as the pipeline of transformers does."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, get_args, overload

import numpy as np

from rekindle.client.requests import HasRequests
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.errors import InvalidRequest
from rekindle.core.request import checks
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.heads import Floats
from rekindle.formats.checkpoints.uses import Classifier
from rekindle.results.scores.spans import Span, Spans
from rekindle.scoring.computing import ScoringBar
from rekindle.scoring.encoding import probabilities_of, token_states
from rekindle.scoring.pairs import encoder_texts

Aggregation = Literal["simple", "none", "first", "average", "max"]
OUTSIDE: Final = "O"
"""The class of tokens outside of all spans."""


@overload
def spans(
    session: HasRequests,
    texts: str,
    *,
    aggregation: Aggregation = "simple",
    cache_salt: str = "",
    progress: bool | None = None,
) -> Waits[Spans]: ...
@overload
def spans(
    session: HasRequests,
    texts: list[str],
    *,
    aggregation: Aggregation = "simple",
    cache_salt: str = "",
    progress: bool | None = None,
) -> Waits[list[Spans]]: ...
def spans(
    session: HasRequests,
    texts: Any,
    *,
    aggregation: Aggregation = "simple",
    cache_salt: str = "",
    progress: bool | None = None,
) -> Waits[Any]:
    """Find the spans of classes in a text, or in each text of a list, by the model's head over tokens.

    A text of more tokens than the model's files allow loses its end; a note tells so once. The call waits for all
    texts. Leaving the wait early cancels its requests.

    Args:
        texts: one text, or a list of texts.
        aggregation: the way from tokens to spans, as in the pipeline of transformers. "simple" joins adjacent tokens of
            one class, where "B-" begins another span. "first", "average" and "max" give all tokens of a word the class
            of its first token, of the mean of their probabilities, or of the surest one, and join words then. "none"
            leaves each token alone.
        cache_salt: as in `SamplingParams`.
        progress: whether to draw a progress bar for a call that takes longer than a second. The default is the
            `progress` of `open`.

    Returns:
        A `rekindle.Spans`; for a list of texts, a list of them.

    Raises:
        InvalidRequest: a text is no str or has a lone surrogate, the aggregation has no such name, or the model has no
            head over tokens.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    requests = session._requests
    uses = requests.engine.facts.checkpoint.uses
    if aggregation not in get_args(Aggregation):
        names = ", ".join(get_args(Aggregation))
        raise InvalidRequest(f"aggregation must be one of {names}, got {checks.preview(aggregation)}")
    head, tokenizer = uses.tokens, requests.tokenizer
    if head is None or tokenizer is None:
        other = "classify()" if uses.classifier is not None else "open one with TokenClassification in its architecture"
        raise InvalidRequest(f"the model has no head that classifies tokens: {other}")
    bar = ScoringBar("finding spans", "texts", requests.draws_progress(progress))
    values, several = encoder_texts(texts)
    states = yield from token_states(requests, values, several, cache_salt, bar)
    make = partial(spans_of, tokenizer, head, aggregation)

    def work() -> list[Spans]:
        return [make(text, ids, rows) for text, (ids, rows) in zip(values, states, strict=True)]

    results = yield from in_a_thread(work, "spans")
    return results if several else results[0]


@dataclass(frozen=True, slots=True)
class _Token:
    """A token of the text, or a word of several.

    Attributes:
        word: the text of the token in the vocabulary; the text itself for an unknown one.
        scores: the probability of each class.
        start, end: the place in the text.
        goes_on: whether it continues the word of the token before.
    """

    word: str
    scores: Floats
    start: int
    end: int
    goes_on: bool


@dataclass(frozen=True, slots=True)
class _Part:
    """A token or a word with its class."""

    label: str
    score: float
    word: str
    start: int
    end: int


def spans_of(
    tokenizer: Tokenizer, head: Classifier, aggregation: Aggregation, text: str, ids: Sequence[int], states: Floats
) -> Spans:
    """Return the spans of a text.

    Args:
        tokenizer: the tokenizer.
        head: the head over tokens.
        aggregation: see `spans`.
        text: the text.
        ids: its tokens, with the special ones around it.
        states: the hidden state of each token, (tokens, hidden).
    """
    logits = head.logits(states)
    tokens = _tokens(tokenizer, text, ids, probabilities_of(logits))
    if aggregation in ("none", "simple"):
        parts = [_best(head.labels, each.scores, each.word, each.start, each.end) for each in tokens]
    else:
        parts = [_word(tokenizer, head.labels, aggregation, word) for word in _words(tokens)]
    joined = [Span(each.label, each.score, each.word, each.start, each.end) for each in parts]
    if aggregation != "none":
        joined = [_joined(tokenizer, group) for group in _groups(parts)]
    inside = tuple(each for each in joined if each.label != OUTSIDE)
    return Spans(text, head.labels, tuple(ids), logits.astype(np.float32), inside)


def _tokens(tokenizer: Tokenizer, text: str, ids: Sequence[int], scores: Floats) -> list[_Token]:
    """Return the tokens of a text without the special ones around it."""
    model = tokenizer.backend.model
    knows_words = bool(getattr(model, "continuing_subword_prefix", None))
    unknown = tokenizer.unknown_id
    tokens = []
    for token, row, place in zip(ids, scores, tokenizer.places(text), strict=True):
        if place is None:
            continue
        start, end = place
        word, part = tokenizer.backend.id_to_token(token) or "", text[start:end]
        goes_on = len(word) != len(part) if knows_words else start > 0 and " " not in text[start - 1 : start + 1]
        if token == unknown:
            word, goes_on = part, False
        tokens.append(_Token(word, row, start, end, goes_on))
    return tokens


def _best(labels: Sequence[str], scores: Floats, word: str, start: int, end: int) -> _Part:
    best = int(scores.argmax())
    return _Part(labels[best], float(scores[best]), word, start, end)


def _words(tokens: Sequence[_Token]) -> list[list[_Token]]:
    """Return the tokens of each word."""
    words: list[list[_Token]] = []
    for token in tokens:
        if words and token.goes_on:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _word(tokenizer: Tokenizer, labels: Sequence[str], aggregation: Aggregation, tokens: Sequence[_Token]) -> _Part:
    """Return a word with the class of its first token, of the mean of all, or of the surest one."""
    if aggregation == "average":
        scores = np.mean([token.scores for token in tokens], axis=0)
    else:
        scores = (tokens[0] if aggregation == "first" else max(tokens, key=lambda token: token.scores.max())).scores
    word = _text(tokenizer, [token.word for token in tokens])
    return _best(labels, scores, word, tokens[0].start, tokens[-1].end)


def _groups(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Return adjacent parts of one class together; a part whose class begins with "B-" begins another group."""
    groups: list[list[_Part]] = []
    for part in parts:
        if groups and not part.label.startswith("B-") and _bare(part.label) == _bare(groups[-1][-1].label):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _joined(tokenizer: Tokenizer, parts: Sequence[_Part]) -> Span:
    word = _text(tokenizer, [part.word for part in parts])
    score = float(np.mean([part.score for part in parts]))
    return Span(parts[0].label.split("-", 1)[-1], score, word, parts[0].start, parts[-1].end)


def _bare(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _text(tokenizer: Tokenizer, words: list[str]) -> str:
    decoder = tokenizer.backend.decoder
    return " ".join(words) if decoder is None else str(decoder.decode(words))
