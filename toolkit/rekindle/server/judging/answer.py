"""Rankings, scores, classes and pooled states."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rekindle.results.scores.classes import Classification
from rekindle.results.scores.ranking import Ranking, in_words
from rekindle.server.common.events import Head
from rekindle.server.judging.body import RankRequest
from rekindle.server.judging.encoding_answer import vector_object

Array = np.ndarray[Any, np.dtype[np.float32]]


def ranking_object(head: Head, ranking: Ranking, request: RankRequest) -> Any:
    """Return a ranking in the form of Jina's and Cohere's API, or as a list if the request is `plain`."""
    count = len(ranking) if request.top is None else request.top
    ranked = ranking.top(count)
    if request.plain:
        return [
            {"index": each.index, "score": each.score}
            | ({"text": in_words(each.document)} if request.with_documents else {})
            for each in ranked
        ]
    results = [
        {
            "index": each.index,
            "relevance_score": each.score,
            **({"document": {"text": in_words(each.document)}} if request.with_documents else {}),
        }
        for each in ranked
    ]
    return {
        "id": head.id,
        "model": head.model,
        "usage": _usage(ranking.prompt_tokens),
        "meta": {"tokens": {"input_tokens": ranking.prompt_tokens, "output_tokens": 0}},
        "results": results,
    }


def scores_object(head: Head, scores: Sequence[float], tokens: int) -> dict[str, Any]:
    """Return the scores of pairs in vLLM's form."""
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return {**head.of("list"), "data": data, "usage": _usage(tokens)}


def classes_object(
    head: Head, classes: Sequence[Classification], tokens: int, *, activation: bool | None
) -> dict[str, Any]:
    """Return classes in vLLM's form, with probabilities, or with logits if `activation` is False."""
    data = [
        {"index": index, "label": each.best, "probs": numbers_of(each, activation), "num_classes": len(each.labels)}
        for index, each in enumerate(classes)
    ]
    return {**head.of("list"), "data": data, "usage": _usage(tokens)}


def pooled_object(
    head: Head, vectors: Sequence[Array], tokens: int, *, encoding: Literal["float", "base64"]
) -> dict[str, Any]:
    """Return pooled states in vLLM's form."""
    data = [
        {"index": index, "object": "pooling", "data": vector_object(vector, encoding)}
        for index, vector in enumerate(vectors)
    ]
    return {**head.of("list"), "data": data, "usage": _usage(tokens)}


def numbers_of(classes: Classification, activation: bool | None) -> list[float]:
    """Return the probabilities of classes, or their logits if `activation` is False."""
    return list(classes.logits if activation is False else classes.probabilities)


def _usage(tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
