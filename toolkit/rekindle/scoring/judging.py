"""Classification of texts, and reranking of documents: by a head, by embeddings, or by the likelihood of "yes"."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, overload

import numpy as np

from rekindle.assembly.preparing import Preparer
from rekindle.client.batches.batch import invalid_batch
from rekindle.client.calls.options import Messages, TokenIds
from rekindle.client.requests import HasRequests, Requests
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Conversation, Prompt
from rekindle.core.request import checks
from rekindle.core.request.accepted import LONGEST_SALT
from rekindle.core.request.request import check_length
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.uses import Activation, Classifier, Embedding
from rekindle.formats.rendering.template import template_variables
from rekindle.results.facts.settings import SamplingParams
from rekindle.results.scores.classes import Classification, activated
from rekindle.results.scores.ranking import Ranking
from rekindle.scoring.computing import ScoringBar, compute_all
from rekindle.scoring.embedding import EmbedOptions, last_states, normalized, prompt_prefix
from rekindle.scoring.fitness import note_unfit

INSTRUCTION: Final = "Given a web search query, retrieve relevant passages that answer the query"
"""Default instruction of Qwen3-Reranker."""
_DOCUMENT: Final = "document {}"
"""Name of a document in errors, with its index."""
_SYSTEM: Final = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
"""System prompt of Qwen3-Reranker's training; other chat models follow it too."""
Writer = Callable[[str], Prompt]
"""Writer of the prompt with a text."""


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
        requests.loaded_engine.checkpoint.uses.classifier,
    )
    if head is None:
        raise InvalidRequest(
            "the model has no head that classifies texts; score() compares options, and rerank() compares documents"
        )
    prompts, several = requests.pooled_prompts(
        texts,
        {
            "token_ids": token_ids,
            "chat_template_kwargs": chat_template_kwargs,
            "continue_final_message": continue_final_message,
        },
    )
    states = yield from last_states(requests, prompts, several, "last", cache_salt, adapter, bar)
    rows = logits_of(head, states.rows).tolist()
    classes = [Classification(head.labels, tuple(row), head.activation) for row in rows]
    return classes if several else classes[0]


def rerank(
    session: HasRequests,
    query: str,
    documents: Sequence[str],
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
        query: the search query.
        documents: the texts to rank.
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
        InvalidRequest: the query or a document is not a text, the model has no chat template or cannot answer in this
            format, or its logits need a larger `max_logprobs` in `open`.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    requests = session._requests
    checks.text("query", query, checks.LONGEST_LONG_TEXT)
    if not checks.is_sequence(documents):
        raise InvalidRequest(f"documents must be a list of texts, got {checks.preview(documents)}")
    checks.unless_none(checks.text)("instruction", instruction)
    checks.boolean("activation", activation)
    bar = ScoringBar("ranking", "documents", requests.draws_progress(progress))
    most = SamplingParams.from_options({"truncate_prompt_tokens": truncate_prompt_tokens}).truncate_prompt_tokens
    texts, salt = checks.long_texts("documents", documents), checks.text("cache_salt", cache_salt, LONGEST_SALT)
    call = _RankingCall(query, texts, instruction, activation, most, salt, adapter, bar)
    requests.check_engine()
    uses = requests.loaded_engine.checkpoint.uses
    if uses.classifier is not None:
        return (yield from _by_class(requests, call, uses.classifier))
    if uses.embedding.pooling is not None or uses.embedding.unsupported_reason:
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

    query: str
    documents: tuple[str, ...]
    instruction: str | None
    activation: bool
    most: int | None
    cache_salt: str
    adapter: str | None
    bar: ScoringBar

    def ranking(self, scores: Iterable[float], tokens: int) -> Ranking:
        """Return the ranking by scores, for prompts with so many tokens together."""
        return Ranking(self.query, self.documents, tuple(scores), tokens, self.activation)

    def ranking_of(self, logits: Sequence[float], activation: Activation, tokens: int) -> Ranking:
        """Return the ranking by logits, as scores by the model's activation unless the call wants logits."""
        if not self.activation or activation == "identity":
            return replace(self, activation=False).ranking(logits, tokens)
        return self.ranking([activated((logit,), activation)[0] for logit in logits], tokens)


def _by_similarity(requests: Requests, call: _RankingCall, defaults: Embedding) -> Waits[Ranking]:
    """Return the ranking by the cosine similarity of embeddings, which have no logits."""
    __tracebackhide__ = True
    pooling = EmbedOptions.of(requests.loaded_engine, None, None, None, None).pooling
    writers = _for_embedding(defaults, call.instruction, len(call.documents))
    prompts = yield from _fitted(requests, writers, (call.query, *call.documents), call.most)
    states = yield from last_states(
        requests, prompts, True, pooling, call.cache_salt, call.adapter, call.bar, _query_or_document
    )
    vectors = normalized(states.rows)
    return replace(call, activation=True).ranking((vectors[1:] @ vectors[0]).tolist(), states.prompt_tokens)


def _by_class(requests: Requests, call: _RankingCall, head: Classifier) -> Waits[Ranking]:
    """Return the ranking by the probability of a head's only class."""
    __tracebackhide__ = True
    prompts = yield from _questions(requests, call, output=0)
    if (classes := len(head.labels)) > 1:
        raise InvalidRequest(
            f"rerank() needs a head with one class, but the head of this model has {classes}; use classify()"
        )
    states = yield from last_states(
        requests, prompts, True, "last", call.cache_salt, call.adapter, call.bar, _DOCUMENT.format
    )
    logits = logits_of(head, states.rows)[:, 0].tolist()
    return call.ranking_of(logits, head.activation, states.prompt_tokens)


def _questions(requests: Requests, call: _RankingCall, output: int) -> Waits[list[Prompt]]:
    """Return the questions about the documents, with room for `output` tokens behind them."""
    writer = _question_writer(requests.loaded_engine.tokenizer, call.instruction, call.query)
    return (yield from _fitted(requests, [writer] * len(call.documents), call.documents, call.most, output))


def _fitted(
    requests: Requests, writers: Sequence[Writer], texts: Sequence[str], most: int | None, output: int = 0
) -> Waits[list[Prompt]]:
    """Return the prompts with texts, each without the end of its text if there are more than `most` tokens.

    With -1 as `most`, a prompt may fill the context up to the room for `output` tokens.
    """
    pairs = list(zip(writers, texts, strict=True))
    if most is None:
        return [write(text) for write, text in pairs]
    preparer = requests.loaded_engine.preparer
    length = preparer.capacity - output if most == -1 else most
    return (yield from in_a_thread(lambda: [_fit(preparer, write, text, length) for write, text in pairs], "rerank"))


def _fit(preparer: Preparer, write: Writer, text: str, most: int) -> Prompt:
    """Return the prompt with a text, without the end of the text if there are more than `most` tokens.

    Raises:
        InvalidRequest: the prompt has more tokens even without the text.
    """
    if preparer.tokenizer is not None:
        text = preparer.tokenizer.near(text, most, at_end=False)
    prompt = write(text)
    excess = preparer.count(prompt) - most
    if excess <= 0 or preparer.tokenizer is None:
        return prompt
    tokens = preparer.tokenizer.encode_chat(text)
    while excess > 0 and tokens:  # the end of a cut text may take more tokens than before, so once may not suffice
        tokens = tokens[: max(0, len(tokens) - excess)]
        prompt = write(preparer.tokenizer.decode(tokens))
        excess = preparer.count(prompt) - most
    if excess > 0:
        raise InvalidRequest.of(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens must be at least {most + excess}, since the prompt has as many tokens without the "
            f"document; got {most}",
        )
    return prompt


def _for_embedding(defaults: Embedding, instruction: str | None, documents: int) -> list[Writer]:
    """Return the writers of the prompts of a query and of documents, which put the model's prompt before each."""
    of_query, of_document = (
        prompt_prefix(defaults, name if own is None and name in defaults.prompts else own)
        for name, own in (("query", instruction), ("document", None))
    )
    return [of_query.__add__, *([of_document.__add__] * documents)]


def _question_writer(tokenizer: Tokenizer | None, instruction: str | None, query: str) -> Writer:
    """Return the writer of the question about a document."""
    if tokenizer is not None and tokenizer.chat_template is None:
        raise InvalidRequest(
            "rerank() needs the model's chat template, and the model has none: pass chat_template= to open(), or write "
            "the texts yourself for classify() or score()"
        )
    instruct = INSTRUCTION if instruction is None else instruction
    return partial(question, tokenizer, instruct, query)


def question(tokenizer: Tokenizer | None, instruction: str, query: str, document: str) -> Conversation:
    """Return the conversation for judging a document's relevance, with reasoning disabled."""
    thinks = tokenizer is not None and "enable_thinking" in template_variables(tokenizer.chat_template or "")
    content = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": content}]
    return Conversation(messages, None, {"enable_thinking": False} if thinks else {})


def logits_of(head: Classifier, states: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the logits of a classification head for hidden states, shape (texts, labels), float64."""
    logits: np.ndarray[Any, np.dtype[np.float64]] = states @ head.weight.T.astype(np.float64)
    return logits


def _by_answer(requests: Requests, call: _RankingCall) -> Waits[Ranking]:
    """Return the ranking by the probability of "yes" against "no" as the answer to each question."""
    __tracebackhide__ = True
    preparer = requests.loaded_engine.preparer
    if preparer.tokenizer is None:
        raise InvalidRequest("the model has no tokenizer, so rerank() cannot write its questions")
    requests.check_predicts()
    activation = call.activation
    if not activation and (most := requests.loaded_engine.limits.max_logprobs) < 2:
        raise InvalidRequest(
            f"rerank(activation=False) reads the log-probabilities of two tokens, and the session has {most} at most: "
            "raise max_logprobs in open()"
        )
    note_unfit(requests, "rank")
    yes, no = (one_token(preparer.tokenizer, word) for word in ("yes", "no"))
    prompts = yield from _questions(requests, call, output=1)
    ids = yield from in_a_thread(partial(_tokenize, preparer, prompts), "rerank")
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
    answers = yield from compute_all(requests, [(each, params) for each in ids], call.bar)
    scores = []
    for answer in answers:
        assert answer.logprobs is not None
        if activation:
            probability = float(np.exp(answer.logprobs[0].logprob))
            scores.append(probability if answer.token_ids == (yes,) else 1 - probability)
        else:
            by_token = {each.token_id: each.logprob for each in answer.logprobs[0].top}
            scores.append(by_token[yes] - by_token[no])
    return call.ranking(scores, sum(map(len, ids)))


def one_token(tokenizer: Tokenizer, word: str) -> int:
    """Return the token id of a word.

    Raises:
        InvalidRequest: the word is not one token.
    """
    ids = tokenizer.encode_chat(word)
    if len(ids) != 1:
        raise InvalidRequest(f"rerank() needs {word!r} as one token, but the model's tokenizer gives {len(ids)} tokens")
    return ids[0]


def _query_or_document(index: int) -> str:
    """Return the name of a prompt in a ranking by similarity, where the query is before the documents."""
    return _DOCUMENT.format(index - 1) if index else "the query"


def _tokenize(preparer: Preparer, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Return the tokens of questions about documents.

    Raises:
        InvalidBatch: some questions are too long.
    """
    sequences, bad = [preparer.token_ids(prompt) for prompt in prompts], dict[int, Exception]()
    for index, ids in enumerate(sequences):
        try:
            check_length(ids, preparer.capacity)
        except InvalidRequest as error:
            bad[index] = error
    if bad:
        raise invalid_batch(bad, len(prompts), _DOCUMENT.format)
    return sequences
