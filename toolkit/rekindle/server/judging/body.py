"""Bodies of requests for judgements of texts: rankings, scores of pairs, classes and pooled hidden states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rekindle.core.request.checks import preview
from rekindle.formats.response import MessageForm
from rekindle.results.scores.ranking import Content
from rekindle.server.common.fields import Fields
from rekindle.server.common.pictures import check_count, content_in
from rekindle.server.judging.encoding_body import NEUTRAL, EncodingInputs, encoding_in, inputs_in

MAX_TOP = 2**31 - 1
PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
"""Names of the two sides of pairs, in vLLM's forms of a body."""
NEUTRAL_OF_RANKS: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "truncation_side": ("right",),
}
ACTIVATION = ("use_activation", "activation")
"""Names of the field for scores as probabilities."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The longest query and document, in tokens; longer ones are cut. None for no bound.

    Attributes:
        query: the bound on queries.
        document: the bound on documents.
    """

    query: int | None
    document: int | None


@dataclass(frozen=True, slots=True)
class RankRequest:
    """A request to rank documents.

    Attributes:
        query: the search query, a text or parts of a message with images.
        documents: the texts or parts to rank.
        top: the number of documents in the answer; None for all.
        with_documents: whether the answer repeats the documents.
        plain: whether the answer is a list of scores, as in text-embeddings-inference.
        lengths: the bounds on the texts.
        options: the other keywords of `session.rerank`.
    """

    query: Content
    documents: Sequence[Content]
    top: int | None
    with_documents: bool
    plain: bool
    lengths: Lengths
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A request to score pairs of texts.

    Attributes:
        pairs: a query and a document each.
        fields: the fields of the queries and of the documents.
        lengths: the bounds on the texts.
        options: the other keywords of `session.rerank`.
    """

    pairs: Sequence[tuple[Content, Content]]
    fields: tuple[str, str]
    lengths: Lengths
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """A request for classes, or for pooled hidden states.

    Attributes:
        inputs: the prompts.
        task: "classify" or "embed"; None for the one that the model is for.
        activation: whether logits become probabilities, and embeddings have length 1; None for the model's choice.
        dimensions: the length of each embedding; None for all dimensions.
        encoding: "float" for lists of numbers, "base64" for the base64 of their bytes.
        cache_salt: as in `SamplingParams`.
    """

    inputs: EncodingInputs
    task: Literal["classify", "embed"] | None
    activation: bool | None
    dimensions: int | None
    encoding: Literal["float", "base64"]
    cache_salt: str


def read_ranking(body: Fields, most: int) -> RankRequest:
    """Return the ranking requested by a body of at most `most` documents; raise ApiError if the body is invalid."""
    query = _query(body)
    plain = "documents" not in body.peek(("documents",)) and "texts" in body.peek(("texts",))
    name = "texts" if plain else "documents"
    documents = _documents(body, name, most)
    top = body.take("top_n", int)
    if top is not None and not 0 <= top <= MAX_TOP:
        body.refuse("top_n", f"must be at least 0, got {top}")
    with_documents = body.flag("return_text") if plain else body.flag("return_documents", True)
    lengths, options = _lengths(body, [query, *documents]), _rank_options(body)
    body.finish(NEUTRAL_OF_RANKS)
    return RankRequest(query, documents, top or None, with_documents, plain, lengths, options)


def read_score(body: Fields, most: int) -> ScoreRequest:
    """Return the pairs to score in a body, at most `most`; raise ApiError if the body is invalid."""
    present = body.peek([name for pair in PAIRS for name in pair])
    first, second = next((pair for pair in PAIRS if present.keys() & {pair[1]}), PAIRS[0])
    queries, documents = _documents(body, first, most), _documents(body, second, most)
    if len(queries) not in (1, len(documents)):
        body.refuse(first, f"must be one text, or as many as {second} ({len(documents)}), got {len(queries)}")
    if len(queries) == 1:
        queries = queries * len(documents)
    lengths, options = _lengths(body, [*queries, *documents]), _rank_options(body)
    body.finish(NEUTRAL_OF_RANKS)
    return ScoreRequest(list(zip(queries, documents, strict=True)), (first, second), lengths, options)


def read_classes(body: Fields, most: int, form: MessageForm) -> PoolRequest:
    """Return the texts to classify in a body, at most `most`; raise ApiError if the body is invalid."""
    inputs, activation = inputs_in(body, most, form), activation_in(body)
    salt = body.take("cache_salt", str) or ""
    body.finish(NEUTRAL)
    return PoolRequest(inputs, "classify", activation, None, "float", salt)


def read_pooling(body: Fields, most: int, form: MessageForm) -> PoolRequest:
    """Return the request for pooled states in a body; raise ApiError if the body is invalid."""
    inputs, activation = inputs_in(body, most, form), activation_in(body)
    task = body.take("task", str)
    if task not in (None, "embed", "classify"):
        body.refuse("task", f"must be embed or classify, got {preview(task)}; a state for each token is not served")
    encoding, dimensions = encoding_in(body), body.take("dimensions", int)
    salt = body.take("cache_salt", str) or ""
    body.finish(NEUTRAL)
    return PoolRequest(
        inputs,
        None if task is None else "embed" if task == "embed" else "classify",
        activation,
        dimensions,
        encoding,
        salt,
    )


def _query(body: Fields) -> Content:
    """Take a query: a text, or an object with parts of a message."""
    value = body.any("query")
    if value is None:
        body.refuse_missing("query")
    query = _content(value, "query", "query")
    if query is None:
        body.refuse("query", f"must be a text, or an object with a content, got {preview(value)}")
    return query


def _documents(body: Fields, name: str, most: int) -> list[Content]:
    """Take a text or a list of texts: strings, objects with the key "text", or with parts of a message as "content"."""
    value = body.any(name)
    if value is None:
        body.refuse_missing(name)
    values = value if isinstance(value, list) else [value]
    contents = [_content(each, name, f"{name}[{index}]") for index, each in enumerate(values)]
    documents = [each for each in contents if each is not None]
    if not documents or len(documents) < len(values):
        body.refuse(name, f"must be a text or a list of texts (or objects with a text), got {preview(value)}")
    if len(documents) > most:
        body.refuse(name, f"must have at most {most} texts, got {len(documents)}")
    check_count([{"content": list(each)} for each in documents if not isinstance(each, str)], name)
    return documents


def _content(value: Any, name: str, place: str) -> Content | None:
    """Return a text, or parts of a message in vLLM's form; None for another value."""
    match value:
        case str(text) | {"text": str(text)}:
            return text
        case {"content": [{"type": "text", "text": str(text)}]}:
            return text
        case {"content": [*parts]} if parts:
            return tuple(content_in(parts, name, f"{place}.content"))
    return None


def _lengths(body: Fields, contents: Sequence[Content]) -> Lengths:
    bounds = []
    is_plain = all(isinstance(each, str) for each in contents)
    for name in ("max_tokens_per_query", "max_tokens_per_doc"):
        bound = body.take(name, int)
        if bound is not None and not 0 <= bound <= MAX_TOP:
            body.refuse(name, f"must be at least 0, got {bound}")
        if bound and not is_plain:
            body.refuse(name, "is for texts alone: leave it out for images")
        bounds.append(bound or None)  # 0 means no bound, as in vLLM
    return Lengths(*bounds)


def _rank_options(body: Fields) -> dict[str, Any]:
    """Take the keywords of `session.rerank` beside the texts."""
    variables = body.take_fields("chat_template_kwargs")
    instruction = body.take("instruction", str)
    if variables is not None:
        instruction = variables.take("instruction", str) or instruction
        variables.finish({})
    raw = activation_in(body) is False or body.flag("raw_scores")
    most = body.take("truncate_prompt_tokens", int)
    if body.flag("truncate") and most is None:
        most = -1  # in the form of text-embeddings-inference
    options = {"activation": not raw, "truncate_prompt_tokens": most}
    return {"instruction": instruction, "cache_salt": body.take("cache_salt", str) or "", **options}


def activation_in(body: Fields) -> bool | None:
    """Take the wish for probabilities in place of logits; None if absent."""
    return next((value for name in ACTIVATION if (value := body.take(name, bool)) is not None), None)
