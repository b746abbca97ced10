"""Bodies of requests in the form of text-embeddings-inference (TEI): vectors and classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.request.checks import preview
from rekindle.server.common.fields import Fields
from rekindle.server.common.prompts import texts
from rekindle.server.judging.encoding_body import EncodingInputs

_SIDES: Mapping[str, bool] = {"right": False, "left": True}
"""Whether the end of a cut text stays, by the direction of the cut."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "parameters": ({},),  # of Inference clients
    "truncate": (True, False),
    "truncation_direction": ("right", "Right"),
}
"""Field values of classes and similarities that are equivalent to an absent field."""


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """A request for vectors.

    Attributes:
        inputs: the texts.
        normalize: whether vectors have length 1.
        dimensions: the length of each vector; None for all dimensions.
        prompt_name: the name of the model's prompt before each text; None for its default.
    """

    inputs: EncodingInputs
    normalize: bool
    dimensions: int | None
    prompt_name: str | None


@dataclass(frozen=True, slots=True)
class PredictRequest:
    """A request for the classes of texts, or of pairs of texts.

    Attributes:
        firsts: the texts, or the first ones of pairs.
        seconds: the second ones of pairs; None for texts alone.
        is_list: whether the body has a list of texts or pairs, and so the answer a list of classes for each.
        raw: whether the answer has logits in place of probabilities.
    """

    firsts: Sequence[str]
    seconds: Sequence[str] | None
    is_list: bool
    raw: bool


def read_embed(body: Fields, most: int) -> EmbedRequest:
    """Return the request for the vectors of at most `most` texts; raise ApiError if the body is invalid."""
    prompts, side = texts(body, "inputs", most), body.take("truncation_direction", str) or "right"
    if side.lower() not in _SIDES:
        body.refuse("truncation_direction", f"must be right or left, got {preview(side)}")
    most_tokens = -1 if body.flag("truncate") else None
    request = EmbedRequest(
        EncodingInputs(prompts, most_tokens=most_tokens, keeps_end=_SIDES[side.lower()], name="inputs"),
        body.flag("normalize", True),
        body.take("dimensions", int),
        body.take("prompt_name", str),
    )
    body.finish({})
    return request


def read_predict(body: Fields, most: int) -> PredictRequest:
    """Return the request for the classes of at most `most` texts or pairs; raise ApiError if the body is invalid.

    One text is a string; a list of two strings is one pair. A list of several has a list for each: of one string, or of
    two.
    """
    value = body.any("inputs")
    if value is None:
        body.refuse_missing("inputs")
    is_list = isinstance(value, list) and len(value) > 0 and all(isinstance(each, list) for each in value)
    items: list[Any] = value if is_list else [value if isinstance(value, list) else [value]]
    lengths = {len(item) for item in items}
    if not all(isinstance(each, str) for item in items for each in item) or len(lengths) > 1 or not lengths <= {1, 2}:
        body.refuse(
            "inputs",
            "must be a text, a list of two texts for a pair, or a list of such lists, all of one text or all of two; "
            f"got {preview(value)}",
        )
    if len(items) > most:
        body.refuse("inputs", f"must have at most {most} texts, got {len(items)}")
    raw = body.flag("raw_scores")
    body.finish(NEUTRAL)
    return PredictRequest(
        [item[0] for item in items], [item[1] for item in items] if lengths == {2} else None, is_list, raw
    )


@dataclass(frozen=True, slots=True)
class SimilarityRequest:
    """A request for the similarity of texts to another.

    Attributes:
        texts: the text that the others are compared with, then the others.
        prompt_name: the name of the model's prompt before each text; None for its default.
    """

    texts: Sequence[str]
    prompt_name: str | None


def read_similarity(body: Fields, most: int) -> SimilarityRequest:
    """Return the request for the similarity of at most `most` texts; raise ApiError if the body is invalid."""
    value = body.any("inputs")
    match value:
        case {"source_sentence": str(source), "sentences": [*others]} if 0 < len(others) <= most and all(
            isinstance(each, str) for each in others
        ):
            pass
        case _:
            body.refuse("inputs", f"must have a source_sentence and from 1 to {most} sentences, got {preview(value)}")
    request = SimilarityRequest([source, *others], body.take("prompt_name", str))
    body.finish(NEUTRAL)
    return request
