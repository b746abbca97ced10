"""Reranking of documents: by a head, by embeddings, or by the likelihood of "yes"."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

import numpy as np

from rekindle.client.requests import HasRequests, Requests
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request import checks
from rekindle.core.request.accepted import LONGEST_SALT
from rekindle.formats.checkpoints.uses import Activation, Classifier, Embedding
from rekindle.results.facts.settings import SamplingParams
from rekindle.results.scores.classes import activated
from rekindle.results.scores.ranking import Content, Measure, Ranking
from rekindle.scoring.computing import ScoringBar, compute_all
from rekindle.scoring.embedding import EmbedOptions, last_states, normalized
from rekindle.scoring.fitness import note_unfit
from rekindle.scoring.pairs import pair_prompts
from rekindle.scoring.ranking_contents import content, contents
from rekindle.scoring.ranking_prompts import (
    DOCUMENT,
    fitted,
    one_token,
    question_writer,
    tokenize_questions,
    writers_for_embedding,
)


def rerank(
    session: HasRequests,
    query: str | Sequence[Mapping[str, Any]],
    documents: Sequence[str | Sequence[Mapping[str, Any]]],
    *,
    instruction: str | None = None,
    activation: bool = True,
    truncate_prompt_tokens: int | None = None,
    cache_salt: str = "",
    adapter: str | None = None,
    progress: bool | None = None,
) -> Waits[Ranking]:
    """Rank documents by their relevance to a query.

    An embedding model (one with a `1_Pooling`) scores a document by the cosine similarity of the two embeddings. For
    other models, each document becomes a yes-or-no question in the model's chat format, as for Qwen3-Reranker: a
    generative model scores it by the probability of "yes" against "no", and a model with a one-class head by the
    probability of its class, or the number if its files say so (`problem_type`, `activation_fn`). For a reranker with
    another format, write its texts and call `classify` or `score`.

    The call waits for all documents, and for room in the waiting queue. Leaving the wait early cancels its requests.

    Args:
        query: the search query: a text, or for a model such as Qwen3-VL-Reranker parts of a message, as
            [{"type": "image", "image": ...}, {"type": "text", "text": ...}].
        documents: the texts to rank, or parts of messages with images, as of `query`.
        instruction: the criterion of relevance; the default describes a web search. For an embedding model, the
            instruction of `embed` for the query; the default is the model's prompt "query", if it has one.
        activation: whether the model's activation gives the scores, by default probabilities. False gives their logits,
            which tell apart documents of nearly the same probability. The cosines of an embedding model have no logits.
        truncate_prompt_tokens: number of tokens of a prompt with its query and document, above which the document loses
            its end; -1 for the longest that fits. For an embedding model, whose prompts are the query alone and each
            document alone, each loses its own end. Default None, no cut.
        cache_salt, adapter: as in `SamplingParams`.
        progress: whether to draw a progress bar for a call that takes longer than a second. The default is the
            `progress` of `open`.

    Returns:
        A `rekindle.Ranking`, with the relevance of each document.

    Raises:
        InvalidRequest: the query or a document is not a text or parts of a message, or has images for a model that
            takes none or ranks by a head or by embeddings; the model has no chat template or cannot answer in this
            format, or its logits need a larger `max_logprobs` in `open`.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    requests = session._requests
    if not checks.is_sequence(documents):
        raise InvalidRequest(f"documents must be a list of texts, got {checks.preview(documents)}")
    checks.unless_none(checks.text)("instruction", instruction)
    checks.boolean("activation", activation)
    bar = ScoringBar("ranking", "documents", requests.draws_progress(progress))
    most = SamplingParams.from_options({"truncate_prompt_tokens": truncate_prompt_tokens}).truncate_prompt_tokens
    question, texts = content("query", query), contents("documents", documents)
    salt = checks.text("cache_salt", cache_salt, LONGEST_SALT)
    call = _RankingCall(question, texts, instruction, activation, most, salt, adapter, bar)
    requests.engine.check()
    uses = requests.engine.facts.checkpoint.uses
    if uses.classifier is not None:
        return (yield from _by_class(requests, call, uses.classifier))
    if uses.embedding.pooling is not None or uses.embedding.unsupported_reason or uses.both_ways:
        return (yield from _by_similarity(requests, call, uses.embedding))
    return (yield from _by_answer(requests, call))


@dataclass(frozen=True, slots=True)
class _RankingCall:
    """The checked arguments of `rerank`.

    Attributes:
        query, documents, instruction, activation, cache_salt, adapter: as in `rerank`.
        most: the most tokens of a prompt; -1 for the longest that fits, None for no cut.
        bar: the progress bar.
    """

    query: Content
    documents: tuple[Content, ...]
    instruction: str | None
    activation: bool
    most: int | None
    cache_salt: str
    adapter: str | None
    bar: ScoringBar

    def ranking(self, scores: Iterable[float], tokens: int, measure: Measure) -> Ranking:
        """Return the ranking by scores, for prompts with so many tokens together."""
        return Ranking(self.query, self.documents, tuple(scores), tokens, measure)

    def ranking_of(self, logits: Sequence[float], activation: Activation, tokens: int) -> Ranking:
        """Return the ranking by logits, as scores by the model's activation unless the call wants logits."""
        if not self.activation or activation == "identity":
            return self.ranking(logits, tokens, "logit")
        return self.ranking([activated((logit,), activation)[0] for logit in logits], tokens, "probability")


def _by_similarity(requests: Requests, call: _RankingCall, defaults: Embedding) -> Waits[Ranking]:
    """Return the ranking by the cosine similarity of embeddings, which have no logits."""
    __tracebackhide__ = True
    if defaults.messages is None:
        _check_texts(call)
    options = EmbedOptions.of(requests.engine.facts, None, None, None, None)
    writers = writers_for_embedding(defaults, call.instruction, len(call.documents))
    prompts = yield from fitted(requests, writers, (call.query, *call.documents), call.most)
    states = yield from last_states(
        requests, prompts, True, options.pooling, call.cache_salt, call.adapter, call.bar, _query_or_document
    )
    vectors = normalized(defaults.project(states.rows))
    return call.ranking((vectors[1:] @ vectors[0]).tolist(), states.prompt_tokens, "cosine")


def _check_texts(call: _RankingCall) -> None:
    if not all(isinstance(each, str) for each in (call.query, *call.documents)):
        raise InvalidRequest.of(
            "prompt",
            "rerank() takes images for models that answer questions, such as Qwen3-VL-Reranker, and this one ranks by "
            "a head or by embeddings: embed the query and the documents as messages, and compare the vectors",
        )


def _by_class(requests: Requests, call: _RankingCall, head: Classifier) -> Waits[Ranking]:
    """Return the ranking by the probability of a head's only class."""
    __tracebackhide__ = True
    _check_texts(call)
    is_encoder = not requests.engine.facts.model.predicts
    prompts = yield from (_pairs(requests, call) if is_encoder else _questions(requests, call, output=0))
    if (classes := len(head.labels)) > 1:
        raise InvalidRequest(
            f"rerank() needs a head with one class, but the head of this model has {classes}; use classify()"
        )
    states = yield from last_states(
        requests, prompts, True, head.pooling, call.cache_salt, call.adapter, call.bar, DOCUMENT.format
    )
    logits = head.logits(states.rows)[:, 0].tolist()
    return call.ranking_of(logits, head.activation, states.prompt_tokens)


def _pairs(requests: Requests, call: _RankingCall) -> Waits[list[Prompt]]:
    """Return the pairs of the query and each document, for an encoder."""
    if call.instruction is not None:
        raise InvalidRequest.of(
            "instruction", "this model ranks pairs of a query and a document as they are: leave instruction= out"
        )
    if call.most not in (None, -1):
        raise InvalidRequest.of(
            "truncate_prompt_tokens",
            "this model cuts pairs at the length of its files: leave truncate_prompt_tokens= out, or give -1",
        )
    query, documents = str(call.query), [str(each) for each in call.documents]
    return (yield from pair_prompts(requests, [query] * len(documents), documents))


def _questions(requests: Requests, call: _RankingCall, output: int) -> Waits[list[Prompt]]:
    """Return the questions about the documents, with room for `output` tokens behind them."""
    loaded = requests.engine.facts
    writer = question_writer(loaded.preparer.prompts, loaded.checkpoint.uses, call.instruction, call.query)
    return (yield from fitted(requests, [writer] * len(call.documents), call.documents, call.most, output))


def _by_answer(requests: Requests, call: _RankingCall) -> Waits[Ranking]:
    """Return the ranking by the probability of "yes" against "no" as the answer to each question."""
    __tracebackhide__ = True
    reader = requests.engine.facts.preparer.prompts
    if reader.tokenizer is None:
        raise InvalidRequest("the model has no tokenizer, so rerank() cannot write its questions")
    requests.check_predicts()
    activation = call.activation
    if not activation and (most := requests.engine.facts.limits.max_logprobs) < 2:
        raise InvalidRequest(
            f"rerank(activation=False) reads the log-probabilities of two tokens, and the session has {most} at most: "
            "raise max_logprobs in open()"
        )
    note_unfit(requests, "rank")
    words = (one_token(reader.tokenizer, word) for word in ("yes", "no"))
    yes, no = requests.engine.facts.checkpoint.uses.answers or words
    prompts = yield from _questions(requests, call, output=1)
    stopped = Event()
    ids = yield from in_a_thread(partial(tokenize_questions, reader, prompts, stopped.is_set), "rerank", stopped.set)
    # Greedy decoding takes the likelier of the two allowed tokens; its probability is relative to the two.
    params = SamplingParams(
        cache_salt=call.cache_salt,
        adapter=requests.adapter(call.adapter),
        max_tokens=1,
        allowed_token_ids=frozenset({yes, no}),
        logprobs=0 if activation else 2,  # a logit needs the small probability of the other one too
        logprobs_of="sampled",
        ignore_eos=True,
    )
    questions = [(each if each.pictures else each.ids, params) for each in ids]
    answers = yield from compute_all(requests, questions, call.bar)
    scores = []
    for answer in answers:
        assert answer.logprobs is not None
        if activation:
            probability = float(np.exp(answer.logprobs[0].logprob))
            scores.append(probability if answer.token_ids == (yes,) else 1 - probability)
        else:
            by_token = {each.token_id: each.logprob for each in answer.logprobs[0].top}
            scores.append(by_token[yes] - by_token[no])
    return call.ranking(scores, sum(len(each.ids) for each in ids), "probability" if activation else "logit")


def _query_or_document(index: int) -> str:
    """Return the name of a prompt in a ranking by similarity, where the query is before the documents."""
    return DOCUMENT.format(index - 1) if index else "the query"
