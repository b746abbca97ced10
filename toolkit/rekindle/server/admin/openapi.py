"""The description of the server's paths, by OpenAPI, made of its routes, their docstrings and their readers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from starlette.routing import BaseRoute, Route

from rekindle.formats.responses.formats import PLAIN
from rekindle.server.anthropic.body import read_count, read_messages
from rekindle.server.common.errors import ApiError
from rekindle.server.common.fields import Fields
from rekindle.server.common.messages import ModelTemplate
from rekindle.server.decisions.body import read_decision, read_systemone
from rekindle.server.http.endpoint import Endpoint
from rekindle.server.judging.body import read_classes, read_pooling, read_ranking, read_score
from rekindle.server.judging.cohere_body import read_cohere
from rekindle.server.judging.encoding_body import read_detokenize, read_embedding, read_tokenize
from rekindle.server.judging.tei_body import read_embed, read_predict, read_similarity
from rekindle.server.ollama.body import read_ollama_chat, read_ollama_embed, read_ollama_embedding, read_ollama_generate
from rekindle.server.openai.chat.body import read_chat
from rekindle.server.openai.completions.body import read_completion
from rekindle.server.openai.responses.body import read_response

TYPES: Final[Mapping[type[Any] | None, Mapping[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    list: {"type": "array", "items": {}},
    dict: {"type": "object"},
    None: {},
}
"""The JSON schema of a field by its type."""
_TEMPLATE: Final = ModelTemplate(PLAIN.form, frozenset())
_CHAT: Final = {"messages": [{"role": "user", "content": "Hello"}]}


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request.

    Attributes:
        reader: its reader.
        example: a body for the reader.
    """

    reader: Callable[[Fields], object]
    example: Mapping[str, Any]


BODIES: Final[Mapping[str, Body]] = {
    "/v1/chat/completions": Body(lambda body: read_chat(body, PLAIN.form), _CHAT),
    "/v1/completions": Body(lambda body: read_completion(body, 1), {"prompt": "The sea"}),
    "/v1/responses": Body(lambda body: read_response(body, PLAIN.form), {"input": "Hello"}),
    "/v1/embeddings": Body(lambda body: read_embedding(body, 1), {"input": "The sea"}),
    "/v1/messages": Body(lambda body: read_messages(body, _TEMPLATE), {**_CHAT, "max_tokens": 100}),
    "/v1/messages/count_tokens": Body(lambda body: read_count(body, _TEMPLATE), _CHAT),
    "/api/chat": Body(lambda body: read_ollama_chat(body, _TEMPLATE), _CHAT),
    "/api/generate": Body(lambda body: read_ollama_generate(body, _TEMPLATE), {"prompt": "The sea"}),
    "/api/embed": Body(lambda body: read_ollama_embed(body, 1), {"input": "The sea"}),
    "/api/embeddings": Body(read_ollama_embedding, {"prompt": "The sea"}),
    "/v1/rerank": Body(lambda body: read_ranking(body, 1), {"query": "Where is Oslo?", "documents": ["In Norway"]}),
    "/v1/score": Body(lambda body: read_score(body, 1), {"text_1": "Where is Oslo?", "text_2": "In Norway"}),
    "/v1/classify": Body(lambda body: read_classes(body, 1, PLAIN.form), {"input": "The sea"}),
    "/v1/pooling": Body(lambda body: read_pooling(body, 1, PLAIN.form), {"input": "The sea"}),
    "/embed": Body(lambda body: read_embed(body, 1), {"inputs": "The sea"}),
    "/predict": Body(lambda body: read_predict(body, 1), {"inputs": "The sea"}),
    "/similarity": Body(
        lambda body: read_similarity(body, 1), {"inputs": {"source_sentence": "The sea", "sentences": ["Water"]}}
    ),
    "/v1/embed": Body(lambda body: read_cohere(body, 1, version=1), {"texts": ["The sea"]}),
    "/v2/embed": Body(
        lambda body: read_cohere(body, 1, version=2), {"texts": ["The sea"], "input_type": "search_query"}
    ),
    "/v1/systemone": Body(
        lambda body: read_systemone(body, 1), {"state": "The sea is calm", "questions": {"calm": {"type": "noul"}}}
    ),
    "/v1/decisions": Body(
        lambda body: read_decision(body, 1),
        {"input": "The sea is calm", "questions": [{"type": "predicate", "instructions": "Is it calm?"}]},
    ),
    "/tokenize": Body(lambda body: read_tokenize(body, PLAIN.form), {"prompt": "The sea"}),
    "/detokenize": Body(read_detokenize, {"tokens": [1]}),
}
"""The bodies by path. A path without an entry is described without the fields of its body."""


def openapi(routes: Iterable[BaseRoute], version: str, *, needs_key: bool) -> dict[str, Any]:
    """Return the description of an application.

    Args:
        routes: its routes.
        version: the version of the server.
        needs_key: whether requests need a key.
    """
    paths: dict[str, Any] = {}
    for route in routes:
        if isinstance(route, Route):
            path = route.path.replace(":path}", "}")
            paths.setdefault(path, {}).update(_operations(route))
    key = {"key": {"type": "http", "scheme": "bearer"}, "x-api-key": {"type": "apiKey", "in": "header"}}
    key["x-api-key"]["name"] = "x-api-key"
    secured = {"components": {"securitySchemes": key}, "security": [{"key": []}, {"x-api-key": []}]}
    head = {"openapi": "3.1.0", "info": {"title": "Rekindle", "version": version}}
    return {**head, "paths": paths, **(secured if needs_key else {})}


def _operations(route: Route) -> dict[str, Any]:
    """Return the description of each method of a route; HEAD is left out."""
    answer = route.endpoint.answer if isinstance(route.endpoint, Endpoint) else route.endpoint
    responses = {"200": {"description": "the answer"}, "default": {"description": "an error"}}
    operation: dict[str, Any] = {"summary": _summary(answer), "responses": responses}
    names = [part[1:].partition(":")[0].rstrip("}") for part in route.path.split("/") if part.startswith("{")]
    schema = {"type": "string"}
    parameters = [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
    parameters += [query.description for query in getattr(answer, "queries", ())]
    if parameters:
        operation["parameters"] = parameters
    if isinstance(route.endpoint, Endpoint):
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _schema(_body_path(route.path))}},
        }
    return {method.lower(): operation for method in sorted(route.methods or ()) if method != "HEAD"}


def _summary(answer: object) -> str:
    """Return the text after the path in the first line of a docstring, or the name of the function in words."""
    name = getattr(answer, "__name__", type(answer).__name__).replace("_", " ")
    line = (answer.__doc__ or "").partition("\n")[0]
    text = line.partition(": ")[2].removesuffix(".") or name
    return text[:1].upper() + text[1:]


def _body_path(path: str) -> str:
    return path if path in BODIES else f"/v1/{path.rpartition('/v2/')[2].removeprefix('/')}"


@cache
def _schema(path: str) -> dict[str, Any]:
    """Return the JSON schema of a body: the fields in use by its reader, and the necessary ones."""
    if path not in BODIES:
        return {"type": "object"}
    body = BODIES[path]
    fields = Fields(body.example)
    body.reader(fields)
    properties = {name: dict(TYPES.get(kind, {})) for name, kind in fields.supported.items()}
    required = [name for name in body.example if not _reads_without(body, name)]
    with_model = {"model": {"type": "string"}, **dict(sorted(properties.items()))}
    return {"type": "object", "properties": with_model, "required": required, "examples": [dict(body.example)]}


def _reads_without(body: Body, name: str) -> bool:
    """Return True if the reader accepts its example without a field."""
    try:
        body.reader(Fields({key: value for key, value in body.example.items() if key != name}))
    except ApiError:
        return False
    return True
