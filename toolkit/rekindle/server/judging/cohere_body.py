"""Bodies of requests for vectors in the form of Cohere's API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from rekindle.core.request.checks import preview
from rekindle.server.common.fields import Fields
from rekindle.server.common.prompts import texts
from rekindle.server.judging.encoding_body import EmbeddingRequest, EncodingInputs

VectorType = Literal["float", "base64", "binary", "ubinary"]
PROMPTS: Final[Mapping[str, tuple[str, ...]]] = {
    "search_query": ("search_query", "query", "retrieval.query"),
    "search_document": ("search_document", "document", "passage", "retrieval.passage"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}
"""Names of a model's prompt for each type of input."""


@dataclass(frozen=True, slots=True)
class CohereRequest:
    """A request for vectors.

    Attributes:
        embedding: the request.
        types: the types of each vector in the answer; empty for lists of numbers alone, in the form of the first
            version of the API.
    """

    embedding: EmbeddingRequest
    types: Sequence[VectorType]


def read_cohere(body: Fields, most: int, *, version: int) -> CohereRequest:
    """Return the request for the vectors of at most `most` texts; raise ApiError if the body is invalid.

    Args:
        version: the version of the API, 1 or 2.
    """
    inputs = _inputs(body, most)
    kind, cut = body.take("input_type", str), (body.take("truncate", str) or "END").upper()
    if kind not in PROMPTS and not (kind is None and version == 1):
        body.refuse("input_type", f"must be one of {', '.join(PROMPTS)}, got {preview(kind)}")
    if cut not in ("NONE", "START", "END"):
        body.refuse("truncate", f"must be NONE, START or END, got {preview(cut)}")
    longest = body.take("max_tokens", int)
    if longest is not None and longest < 1:
        body.refuse("max_tokens", f"must be at least 1, got {longest}")
    types = _types(body) or (("float",) if version > 1 else ())
    dimensions = body.take("output_dimension", int)
    body.finish({"priority": (0,)})
    if longest is None and cut != "NONE":
        longest = -1
    cuttable = EncodingInputs(inputs, most_tokens=longest, keeps_end=cut == "START", name="texts")
    prompts = () if kind is None else PROMPTS[kind]
    return CohereRequest(EmbeddingRequest(cuttable, dimensions, "float", "", prompts=prompts), types)


def _inputs(body: Fields, most: int) -> list[Any]:
    """Take the texts of a body, from `texts` or from parts of text in `inputs`."""
    if (items := body.items("inputs", dict)) is None:
        if body.peek(("images",)):
            body.refuse("images", "cannot be embedded here: give texts, or messages with images to /v1/embeddings")
        return list(texts(body, "texts", most))
    contents = []
    for item in items:
        match item:
            case {"content": [{"type": "text", "text": str(text)}]}:
                contents.append(text)
            case _:
                body.refuse("inputs", f"must be objects with one text as content, got {preview(item)}")
    if not 0 < len(contents) <= most:
        body.refuse("inputs", f"must have from 1 to {most} texts, got {len(contents)}")
    return contents


def _types(body: Fields) -> tuple[VectorType, ...]:
    types: list[Any] = body.items("embedding_types", str) or []
    for each in types:
        if each not in get_args(VectorType):
            reason = "; whole numbers of 8 bits need a calibration" if each in ("int8", "uint8") else ""
            body.refuse("embedding_types", f"must be float, base64, binary or ubinary, got {preview(each)}{reason}")
    return tuple(dict.fromkeys(types))
