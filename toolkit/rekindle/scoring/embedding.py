"""Embeddings: hidden states of the last layer, pooled, truncated and normalised as the model's authors recommend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from rekindle.client.batches.batch import Batch
from rekindle.client.batches.run import Shape
from rekindle.client.prompts import OnePrompt, Prompts, TokenIds, label_of
from rekindle.client.requests import HasRequests, Requests
from rekindle.core.checkpoints.uses import Embedding
from rekindle.core.concurrency.waits import Waits
from rekindle.core.engine.loaded_engine import LoadedEngine
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request import checks
from rekindle.core.request.params import LONGEST_SALT, SamplingParams
from rekindle.core.request.request import Pooling
from rekindle.scoring.computing import ScoringBar, wait_all

Array = np.ndarray[Any, np.dtype[np.float32]]
SMALLEST_NORM = 1e-12


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """Checked options of `embed`, completed by the model's recommendations.

    Attributes:
        pooling: the selection of hidden states, "last" or "mean".
        normalize: whether to scale the embedding to length 1.
        dimensions: the number of leading components to keep.
        prompt_prefix: the instruction in front of each text.
    """

    pooling: Pooling
    normalize: bool
    dimensions: int
    prompt_prefix: str

    @classmethod
    def of(
        cls, loaded_engine: LoadedEngine, pooling: Any, normalize: Any, dimensions: Any, instruction: Any
    ) -> "EmbedOptions":
        """Check the options of a call.

        Raises:
            InvalidRequest: an option is invalid, or the model's recommended method is not supported.
        """
        own, hidden = loaded_engine.checkpoint.uses.embedding, loaded_engine.model.hidden_size
        if pooling is not None and pooling not in get_args(Pooling):
            raise InvalidRequest(
                f'pooling must be "last" or "mean", got {checks.preview(pooling)}; the first token of a causal model '
                "attends to nothing after it"
            )
        if pooling is None and own.unsupported_reason:
            raise InvalidRequest(
                f"{loaded_engine.source} recommends a method for embeddings that is not supported: "
                f"{own.unsupported_reason}. Set pooling= to make them without it"
            )
        normalised = checks.unless_none(checks.boolean)("normalize", normalize)
        if normalised is None:
            normalised = True if own.normalize is None else own.normalize
        size = hidden if dimensions is None else checks.integer("dimensions", dimensions, 1, hidden)
        return cls(pooling or own.pooling or "last", normalised, size, prompt_prefix(own, instruction))


def prompt_prefix(own: Embedding, instruction: Any) -> str:
    """Return the text of an instruction, given by the name of a model's prompt or as text.

    Raises:
        InvalidRequest: the instruction is no str, or is a single word without a prompt of this name.
    """
    name = own.default_prompt if instruction is None else checks.text("instruction", instruction)
    if not name:
        return ""
    if name in own.prompts:
        return own.prompts[name]
    if name.isidentifier():
        names = ", ".join(own.prompts) or "none"
        raise InvalidRequest(
            f"the model has no instruction named {name!r} (it has: {names}); an instruction as text has more than one "
            "word"
        )
    return name


def embed(
    session: HasRequests,
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
    """Return the embedding of a text, or of each text of a list: hidden states after the last layer and its norm.

    Omitted options follow the model's files (`1_Pooling`, `modules.json` and `config_sentence_transformers.json`). The
    default without those files is the hidden state of the last token, scaled to length 1.

    Args:
        texts: one text or conversation, or a list, as in `generate`. An empty list gives an array without rows.
        pooling: "last" takes the hidden state of the last token and reuses cached prefixes; "mean" takes the mean over
            all tokens, so every token is computed.
        normalize: whether to scale each embedding to length 1.
        dimensions: the number of leading components to keep, for models trained for truncation; applied before
            normalisation.
        instruction: the name of one of the model's prompts, such as "query", or the text itself, put before each text.
        token_ids: token ids in place of texts; of one text, or of several.
        cache_salt: as in `SamplingParams`.
        progress: whether to draw a progress bar for a call that takes longer than a second.

    Returns:
        Array of shape (dimensions,) for one text or (texts, dimensions) for a list, float32.

    Raises:
        InvalidRequest: as `generate`, or an option is invalid, or the model's recommended method is not supported.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    requests = session._requests
    options = EmbedOptions.of(requests.loaded_engine, pooling, normalize, dimensions, instruction)
    bar = ScoringBar("embedding", "texts", requests.draws_progress(progress))
    prompts, several = requests.prompts(texts, {"token_ids": token_ids})
    instructed = [_instructed(prompt, options.prompt_prefix) for prompt in prompts]
    states = yield from last_states(requests, instructed, several, options.pooling, cache_salt, bar)
    vectors = states[:, : options.dimensions]
    if options.normalize:
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SMALLEST_NORM)
    embeddings = vectors.astype(np.float32)
    return embeddings if several else embeddings[0]


def last_states(
    requests: Requests,
    prompts: Sequence[Prompt | Exception],
    several: bool,
    pooling: Pooling,
    cache_salt: str,
    bar: ScoringBar,
) -> Waits[np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the pooled hidden state of each prompt after the final norm, shape (prompts, hidden), float64."""
    __tracebackhide__ = True
    requests.check_engine()
    params = SamplingParams(max_tokens=0, cache_salt=checks.text("cache_salt", cache_salt, LONGEST_SALT))
    batch = Batch(
        prompts=prompts,
        labels=[label_of(prompt, "") for prompt in prompts],
        variants=[params],
        shape=Shape(several, None),
        errors="raise",
        preparer=requests.loaded_engine.preparer,
        submit=lambda prompt, params, _: requests.compute(prompt, params, pooling),
    )
    handles = yield from wait_all((yield from batch.start()), bar)
    if not handles:
        return np.zeros((0, requests.loaded_engine.model.hidden_size))
    return np.stack([handle.record.mean_state() for handle in handles])


def _instructed(prompt: Prompt | Exception, instruction: str) -> Prompt | Exception:
    if not instruction or isinstance(prompt, Exception):
        return prompt
    if not isinstance(prompt, str):
        return InvalidRequest("an instruction applies to texts only; leave it out for messages and token ids")
    return instruction + prompt
