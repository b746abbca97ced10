"""Notes about untrained uses of models."""

from typing import Final, Literal

from rekindle.client.requests import Requests
from rekindle.formats.checkpoints.uses import Uses

Use = Literal["rank", "embed", "score"]
"""A judgement. Classes need no note: a model without a classification head is refused."""
NOTES: Final[dict[Use, str]] = {
    "rank": "This model was not trained to rank: its relevance of a document is its guess of an answer, yes or no. A "
    "reranker such as Qwen/Qwen3-Reranker-0.6B, or an embedding model, ranks better.",
    "embed": "This model was not trained for embeddings: those of texts of unlike meanings are nearly alike. An "
    "embedding model, such as Qwen/Qwen3-Embedding-0.6B, tells them apart; pooling= also silences this note.",
    "score": "This model was trained for embeddings: its likelihoods of texts mean little. A model that generates text "
    "scores better.",
}
_NAMED: Final[dict[Use, str]] = {"rank": "rerank", "embed": "embed"}
"""A part of the names of models trained for a use."""


def note_unfit(requests: Requests, use: Use) -> None:
    """Display a note, once per session, if the model was not trained for a use."""
    name = _NAMED.get(use)
    is_named = name is not None and name in requests.engine.facts.source.lower()
    if not is_named and not _is_trained(requests.engine.facts.checkpoint.uses, use):
        requests.note_once(use, f"{NOTES[use]} This note appears once per session.")


def _is_trained(uses: Uses, use: Use) -> bool:
    embeds = uses.embedding.pooling is not None or bool(uses.embedding.unsupported_reason)
    match use:
        case "rank":
            return embeds or uses.answers is not None or uses.classifier is not None
        case "embed":
            return embeds
        case "score":
            return not embeds
