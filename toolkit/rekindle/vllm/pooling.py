"""Embeddings, classes and similarities of texts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rekindle.core.errors import InvalidRequest
from rekindle.session.session import Session
from rekindle.vllm.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from rekindle.vllm.prompts import values_of
from rekindle.vllm.sampling_params import PoolingParams


def embed(
    session: Session, prompts: Sequence[str | list[int]], params: PoolingParams, options: Mapping[str, Any]
) -> list[EmbeddingRequestOutput]:
    """Return the embedding of each prompt, without a text before it, as in vLLM."""
    ids = tokens_of(session, prompts)
    rows = session.embed_sync(
        token_ids=ids,
        normalize=params.use_activation,
        dimensions=params.dimensions,
        instruction="",
        **options,
    )
    pairs = zip(rows.tolist(), ids, strict=True)
    return [EmbeddingRequestOutput(str(place), EmbeddingOutput(row), own) for place, (row, own) in enumerate(pairs)]


def encode(
    session: Session,
    prompts: Sequence[str | list[int]],
    params: PoolingParams,
    *,
    task: str | None,
    options: Mapping[str, Any],
) -> list[PoolingRequestOutput[PoolingOutput]]:
    """Return the results of a pooling task as arrays.

    Raises:
        InvalidRequest: the task is none of this package.
    """
    if task == "embed":
        embeddings = embed(session, prompts, params, options)
        return [_array(each, each.outputs.embedding) for each in embeddings]
    if task == "classify":
        classes = classify(session, prompts, params, options)
        return [_array(each, each.outputs.probs) for each in classes]
    raise InvalidRequest(
        f'pooling_task must be "embed" or "classify" here, got {task!r}: results of single tokens have no equivalent, '
        "and similarities are those of LLM.score"
    )


def _array(
    result: EmbeddingRequestOutput | ClassificationRequestOutput, numbers: Sequence[float]
) -> PoolingRequestOutput[PoolingOutput]:
    data = np.array(numbers, np.float32)
    return PoolingRequestOutput(result.request_id, PoolingOutput(data), result.prompt_token_ids)


def classify(
    session: Session, prompts: Sequence[str | list[int]], params: PoolingParams, options: Mapping[str, Any]
) -> list[ClassificationRequestOutput]:
    """Return the probabilities of each prompt, or the logits if the parameters leave the activation out."""
    ids = tokens_of(session, prompts)
    classes: Any = session.classify_sync(token_ids=ids, **options)
    rows = [each.logits if params.use_activation is False else each.probabilities for each in classes]
    pairs = zip(rows, ids, strict=True)
    return [
        ClassificationRequestOutput(str(place), ClassificationOutput(list(row)), own)
        for place, (row, own) in enumerate(pairs)
    ]


def score(
    session: Session, first: Any, second: Any, params: PoolingParams, options: Mapping[str, Any]
) -> list[ScoringRequestOutput]:
    """Return the similarity of each pair: by the head of a reranker, or the cosine of the embeddings."""
    pairs = _pairs(first, second)
    if not pairs:
        return []
    if session.labels is not None:
        scores = _by_head(session, pairs, params.use_activation is not False, options)
    else:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        rows = session.embed_sync(texts, normalize=True, instruction="", **options)
        by_text = dict(zip(texts, np.asarray(rows, np.float64), strict=True))
        scores = [float(by_text[one] @ by_text[other]) for one, other in pairs]
    return [ScoringRequestOutput(str(place), ScoringOutput(each)) for place, each in enumerate(scores)]


def tokens_of(session: Session, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    """Return the tokens of each prompt."""
    tokenizer = session.tokenizer
    if tokenizer is None and any(isinstance(each, str) for each in prompts):
        raise InvalidRequest("the model has no tokenizer: give token ids as prompts")
    return [list(tokenizer.encode(each)) if tokenizer and isinstance(each, str) else list(each) for each in prompts]  # type: ignore[arg-type]


def _by_head(
    session: Session, pairs: Sequence[tuple[str, str]], activation: bool, options: Mapping[str, Any]
) -> list[float]:
    scores = [0.0] * len(pairs)
    for query in dict.fromkeys(one for one, _ in pairs):
        places = [place for place, (one, _) in enumerate(pairs) if one == query]
        documents = [pairs[place][1] for place in places]
        ranking = session.rerank_sync(query, documents, activation=activation, **options)
        for place, each in zip(places, ranking.scores, strict=True):
            scores[place] = each
    return scores


def _pairs(first: Any, second: Any) -> list[tuple[str, str]]:
    """Return the pairs of two texts, of a text with each of several, or of two lists of one length."""
    ones, others = ([each] if isinstance(each, str) else values_of("texts to score", each) for each in (first, second))
    if not all(isinstance(each, str) for each in (*ones, *others)):
        raise InvalidRequest("score takes texts, or lists of texts")
    if len(ones) == 1:
        ones = ones * len(others)
    if len(ones) != len(others):
        raise InvalidRequest(
            f"score takes one text and several, or as many as there are; got {len(ones)}, {len(others)}"
        )
    return list(zip(ones, others, strict=True))
