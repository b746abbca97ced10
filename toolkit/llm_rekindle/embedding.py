"""Models for embeddings, as `llm` calls them."""

from collections.abc import Iterable, Iterator

import llm

from llm_rekindle.registry import Entry
from llm_rekindle.sessions import session_of


class RekindleEmbedding(llm.EmbeddingModel):  # type: ignore[misc]
    """A model for embeddings.

    Attributes:
        entry: the model.
        model_id: the id in `llm`.
        batch_size: the most texts in one call.
    """

    batch_size = 256

    def __init__(self, entry: Entry):
        self.entry, self.model_id = entry, entry.model_id

    def embed_batch(self, items: Iterable[str | bytes], *, key: str | None = None) -> Iterator[list[float]]:
        """Yield the embedding of each text, computed together.

        Args:
            items: the texts; `llm` refuses other data before.
            key: nothing, since no model here needs a key.

        Raises:
            RekindleError: as in `session.embed`.
        """
        texts = [str(item) for item in items]
        session = session_of(self.entry.model)
        yield from session.embed_sync(texts, progress=False).tolist()
