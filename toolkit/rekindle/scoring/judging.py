"""Classes of texts, and the relevance of documents: by a head that classifies, or by the likelihood of an answer."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, overload

import numpy as np

from rekindle.client.prompts import Messages, TokenIds
from rekindle.client.requests import Asker, Requests
from rekindle.core.checkpoints.uses import Classifier
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.engine.preparing import Preparer
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Conversation, Prompt
from rekindle.core.request import checks
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import check_length
from rekindle.core.text.template import names_read
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.results.scores.classes import Classification, sigmoid
from rekindle.results.scores.ranking import Ranking
from rekindle.scoring.computing import ScoringBar, computed
from rekindle.scoring.embedding import last_states

INSTRUCTION: Final = "Given a web search query, retrieve relevant passages that answer the query"
_SYSTEM: Final = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
"""What Qwen3-Reranker was trained with; other models that chat understand it too."""


@overload
def classify(session: Asker, texts: str | Messages, *, progress: bool | None = None) -> Waits[Classification]: ...
@overload
def classify(
    session: Asker, texts: list[str] | Sequence[Messages], *, progress: bool | None = None
) -> Waits[list[Classification]]: ...
@overload
def classify(
    session: Asker, *, token_ids: TokenIds | Sequence[TokenIds], progress: bool | None = None
) -> Waits[Classification | list[Classification]]: ...
def classify(session: Asker, texts: Any = None, *, token_ids: Any = None, progress: bool | None = None) -> Waits[Any]:
    """Return the class of a text, or of each of a list, by a model that has a head for sequence classification.

    The head is that of the checkpoint that was opened, also after `update_weights`.

    Args:
        texts: one text or a list, or conversations, as in `generate`.
        token_ids: token ids instead of texts, of one or of several.
        progress: draw a bar if it takes longer than a second.

    Raises:
        InvalidRequest: as `generate`, or the model has no such head.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # a cell shows errors without such frames
    requests = session._requests
    bar, head = (
        ScoringBar("classifying", "texts", requests.draws(progress)),
        requests.loaded_engine.checkpoint.uses.classifier,
    )
    if head is None:
        raise InvalidRequest(
            f"{requests.loaded_engine.source} has no head that classifies texts; score() compares options, and "
            "rerank() documents"
        )
    prompts, several = requests.prompts(texts, {"token_ids": token_ids})
    states = yield from last_states(requests, prompts, several, "last", "", bar)
    made = [Classification(head.labels, tuple(row), head.independent) for row in logits_of(head, states).tolist()]
    return made if several else made[0]


def rerank(
    session: Asker,
    query: str,
    documents: Sequence[str],
    *,
    instruction: str | None = None,
    progress: bool | None = None,
) -> Waits[Ranking]:
    """Return how relevant documents are to a query, for models that rerank as Qwen3-Reranker does.

    Each document is a question in the model's chat format, to be answered by "yes" or "no". A model that predicts
    tokens is relevant by the probability of a "yes" among the two; one that has a head with one class, by that.
    For a reranker with a format of its own, write its texts and use `classify` or `score`.

    Args:
        query: what is looked for.
        documents: the texts to rank.
        instruction: what makes a document relevant; the default is that of a web search.
        progress: draw a bar if it takes longer than a second.

    Raises:
        InvalidRequest: an argument is no text, or the model has no chat template, or cannot answer so.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # a cell shows errors without such frames
    requests = session._requests
    bar = ScoringBar("ranking", "documents", requests.draws(progress))
    checks.text("query", query, checks.LONGEST_LONG_TEXT)
    if not checks.is_sequence(documents):
        raise InvalidRequest(f"documents must be a list of texts, got {checks.preview(documents)}")
    texts = checks.long_texts("documents", documents)
    told = INSTRUCTION if instruction is None else checks.text("instruction", instruction)
    requests.check_engine()
    if requests.loaded_engine.tokenizer is not None and requests.loaded_engine.tokenizer.chat_template is None:
        raise InvalidRequest(
            "rerank() asks in the model's chat format, and the model has no chat template: give open() one as "
            "chat_template=, or write the texts yourself for classify() or score()"
        )
    prompts: list[Prompt] = [question(requests.loaded_engine.tokenizer, told, query, document) for document in texts]
    head = requests.loaded_engine.checkpoint.uses.classifier
    if head is None:
        scores = yield from _by_answer(requests, requests.loaded_engine.preparer, prompts, bar)
        return Ranking(query, texts, tuple(scores))
    if len(head.labels) > 1:
        raise InvalidRequest(
            f"rerank() takes a head with one class, and this model's has {len(head.labels)}; use classify()"
        )
    states = yield from last_states(requests, prompts, True, "last", "", bar)
    return Ranking(query, texts, tuple(map(sigmoid, logits_of(head, states)[:, 0].tolist())))


def question(tokenizer: Tokenizer | None, instruction: str, query: str, document: str) -> Conversation:
    """Return the conversation that asks whether a document is relevant, to be answered without any thinking."""
    thinks = tokenizer is not None and "enable_thinking" in names_read(tokenizer.chat_template or "")
    asked = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": asked}]
    return Conversation(messages, None, {"enable_thinking": False} if thinks else {})


def logits_of(head: Classifier, states: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return what a head gives for hidden states, (texts, labels)."""
    logits: np.ndarray[Any, np.dtype[np.float64]] = states @ head.weight.T.astype(np.float64)
    return logits


def _by_answer(
    requests: Requests, preparer: Preparer, prompts: Sequence[Prompt], bar: ScoringBar
) -> Waits[list[float]]:
    """Return the probability of a "yes" to each question, if the answer is "yes" or "no"."""
    __tracebackhide__ = True
    if preparer.tokenizer is None:
        raise InvalidRequest("the model has no tokenizer, so it can be asked nothing")
    requests.check_predicts()
    yes, no = (one_token(preparer.tokenizer, word) for word in ("yes", "no"))
    ids = yield from in_a_thread(partial(_tokenized, preparer, prompts), "rerank")
    # Of the two tokens that are allowed, the likelier is taken, and its probability is that among the two.
    params = SamplingParams(
        max_tokens=1, allowed_token_ids=frozenset({yes, no}), logprobs=0, logprobs_of="sampled", ignore_eos=True
    )
    answers = yield from computed(requests, [(each, params) for each in ids], bar)
    scores = []
    for answer in answers:
        assert answer.logprobs is not None
        taken = float(np.exp(answer.logprobs[0].logprob))
        scores.append(taken if answer.token_ids == (yes,) else 1 - taken)
    return scores


def one_token(tokenizer: Tokenizer, word: str) -> int:
    """Return the token of a word.

    Raises:
        InvalidRequest: the word is not one token.
    """
    ids = tokenizer.encode_chat(word)
    if len(ids) != 1:
        raise InvalidRequest(f"rerank() asks for the token of {word!r}, and the model writes it with {len(ids)} tokens")
    return ids[0]


def _tokenized(preparer: Preparer, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    made = [preparer.token_ids(prompt) for prompt in prompts]
    for ids in made:
        check_length(ids, preparer.capacity)
    return made
