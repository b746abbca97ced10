"""Embeddings: hidden states of the last layer, pooled, cut and normalised as the model's authors do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from rekindle.client.batches.batch import Batch
from rekindle.client.batches.run import Shape
from rekindle.client.prompts import OnePrompt, Prompts, TokenIds, asked
from rekindle.client.requests import Asker, Requests
from rekindle.core.checkpoints.uses import Embedding
from rekindle.core.concurrency.waits import Waits
from rekindle.core.engine.loaded_engine import LoadedEngine
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request import checks
from rekindle.core.request.params import LONGEST_SALT, SamplingParams
from rekindle.core.request.request import Pooling
from rekindle.scoring.computing import ScoringBar, ended

Array = np.ndarray[Any, np.dtype[np.float32]]
SMALLEST_NORM = 1e-12


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """The keywords of `embed`, checked, with the model's own in place of those that are not given.

    Attributes:
        pooling: which hidden states make the embedding.
        normalize: whether it is divided by its length.
        dimensions: how many of its first numbers are kept.
        before: the text to put before each text.
    """

    pooling: Pooling
    normalize: bool
    dimensions: int
    before: str

    @classmethod
    def of(
        cls, loaded_engine: LoadedEngine, pooling: Any, normalize: Any, dimensions: Any, instruction: Any
    ) -> "EmbedOptions":
        """Check the keywords of a call.

        Raises:
            InvalidRequest: one is none of the accepted values, or the model's own way is not served.
        """
        own, hidden = loaded_engine.checkpoint.uses.embedding, loaded_engine.model.hidden_size
        if pooling is not None and pooling not in get_args(Pooling):
            raise InvalidRequest(
                f'pooling must be "last" or "mean", got {checks.preview(pooling)}; the first token of a model that '
                "reads from left to right has seen nothing of the text"
            )
        if pooling is None and own.unserved:
            raise InvalidRequest(
                f"{loaded_engine.source} makes embeddings in a way that is not served: {own.unserved}. With pooling= "
                "they are made without that"
            )
        normalised = checks.unless_none(checks.boolean)("normalize", normalize)
        if normalised is None:
            normalised = True if own.normalize is None else own.normalize
        kept = hidden if dimensions is None else checks.integer("dimensions", dimensions, 1, hidden)
        return cls(pooling or own.pooling or "last", normalised, kept, before(own, instruction))


def before(own: Embedding, instruction: Any) -> str:
    """Return the text of an instruction that is given by its name or as it is.

    Raises:
        InvalidRequest: it is no text, or a single word that is the name of none.
    """
    name = own.default_prompt if instruction is None else checks.text("instruction", instruction)
    if not name:
        return ""
    if name in own.prompts:
        return own.prompts[name]
    if name.isidentifier():
        known = ", ".join(own.prompts) or "none"
        raise InvalidRequest(
            f"the model has no instruction named {name!r} (it has: {known}); one that is given as it is, is more than "
            "a word"
        )
    return name


def embed(
    session: Asker,
    texts: OnePrompt | Prompts = None,
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    instruction: str | None = None,
    token_ids: TokenIds | Sequence[TokenIds] | None = None,
    cache_salt: str = "",
    progress: bool | None = None,
) -> Waits[Array]:
    """Return the embedding of a text, or of each of a list: hidden states after the last layer and its norm.

    What is not given is as the model's authors do it, if their files say (`1_Pooling`, `modules.json` and
    `config_sentence_transformers.json`), and else the state of the last token at length 1.

    Args:
        texts: one text or a list, or conversations, as in `generate`. An empty list gives an array without rows.
        pooling: "last" takes the state of the last token; what is cached of a text is not computed again. "mean"
            takes the mean of all states, so all of the text is computed.
        normalize: divide each embedding by its length.
        dimensions: keep so many of the first numbers, for models that were trained for it; this comes before they
            are normalised.
        instruction: the name of a prompt of the model's, such as "query", or a text as it is, to put before each.
        token_ids: token ids instead of texts, of one or of several.
        cache_salt: as in `SamplingParams`.
        progress: draw a bar if it takes longer than a second.

    Returns:
        (dimensions,) float32 for one text, (texts, dimensions) for a list.

    Raises:
        InvalidRequest: as `generate`, or an argument has none of the accepted values, or the model's own way of
            making embeddings is not served.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # a cell shows errors without such frames
    requests = session._requests
    options = EmbedOptions.of(requests.loaded_engine, pooling, normalize, dimensions, instruction)
    bar = ScoringBar("embedding", "texts", requests.draws(progress))
    prompts, several = requests.prompts(texts, {"token_ids": token_ids})
    instructed = [_instructed(prompt, options.before) for prompt in prompts]
    states = yield from last_states(requests, instructed, several, options.pooling, cache_salt, bar)
    vectors = states[:, : options.dimensions]
    if options.normalize:
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SMALLEST_NORM)
    made = vectors.astype(np.float32)
    return made if several else made[0]


def last_states(
    requests: Requests,
    prompts: Sequence[Prompt | Exception],
    several: bool,
    pooling: Pooling,
    cache_salt: str,
    bar: ScoringBar,
) -> Waits[np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the pooled hidden state of each prompt after the final norm, (prompts, hidden) float64."""
    __tracebackhide__ = True
    requests.check_engine()
    params = SamplingParams(max_tokens=0, cache_salt=checks.text("cache_salt", cache_salt, LONGEST_SALT))
    batch = Batch(
        prompts=prompts,
        asked=[asked(prompt, "") for prompt in prompts],
        variants=[params],
        shape=Shape(several, None),
        errors="raise",
        preparer=requests.loaded_engine.preparer,
        submit=lambda prompt, params, _: requests.compute(prompt, params, pooling),
    )
    handles = yield from ended((yield from batch.begun()), bar)
    if not handles:
        return np.zeros((0, requests.loaded_engine.model.hidden_size))
    return np.stack([handle.record.mean_state() for handle in handles])


def _instructed(prompt: Prompt | Exception, instruction: str) -> Prompt | Exception:
    if not instruction or isinstance(prompt, Exception):
        return prompt
    if not isinstance(prompt, str):
        return InvalidRequest("an instruction is put before texts; leave it out for messages and token ids")
    return instruction + prompt
