"""The outputs of a tick. A stored program knows their class, and a start with it needs no code of the step."""

from dataclasses import dataclass

import jax

NOT_FINITE, NONE_LEFT = -1, -2
"""Values in place of a token, for logits with a NaN or infinity, and for logits of nothing but minus infinity."""
NOT_COMPUTED = -3
"""Value in place of a token: the row has ended or reached its limit before this step, or follows a wrong draft."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TickOutputs:
    """Outputs of a tick for the host. Scores are packed by `scores.score`, and zeros unless requested.

    Attributes:
        tokens: (samples + decode_rows, row_tokens) int32, first for completed prompts, then for decode rows, each with
            its tokens in order; see `Bucket.row_tokens`. A negative value is an error code from `sample`, or
            `NOT_COMPUTED`.
        scores: (samples + decode_rows, row_tokens, columns) int32, the scores of these tokens.
        prompt_scores: (prefill_tokens, columns) int32, the score of each prompt token's successor in the prompt.
        sums: (samples, hidden) float32, the requested sum of each chunk's hidden states.
        proposals: (samples + decode_rows,) int32, the draft head's guess of the token after the last of each row; None
            without a draft head.
        states: (prefill_tokens, hidden) float32, the hidden states; None for a model with an output projection.
    """

    tokens: jax.Array
    scores: jax.Array
    prompt_scores: jax.Array
    sums: jax.Array
    proposals: jax.Array | None = None
    states: jax.Array | None = None
