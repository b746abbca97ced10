"""Count the least reads and operations of SmolLM2-135M, for the ratios to the machine's limits."""

from collections.abc import Sequence

LAYERS, HIDDEN, FEED_FORWARD, VOCABULARY = 30, 576, 1536, 49_152
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64

_PROJECTIONS = HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS) + 3 * HIDDEN * FEED_FORWARD
LAYER_WEIGHTS = LAYERS * _PROJECTIONS
HEAD_WEIGHTS = HIDDEN * VOCABULARY  # the embedding, used a second time for the logits

BYTES = {"float32": 4, "bfloat16": 2}


def weight_bytes(dtype: str) -> int:
    """Return the bytes of weights read by every step."""
    return BYTES[dtype] * (LAYER_WEIGHTS + HEAD_WEIGHTS)


def kv_bytes(dtype: str, context: int) -> int:
    """Return the bytes of keys and values read by a decoded token at this context."""
    return BYTES[dtype] * 2 * LAYERS * KV_HEADS * HEAD_DIM * context


def prefill_flops(length: int) -> int:
    """Return the operations of a prompt of `length` tokens, up to its first new token."""
    attention = 4 * LAYERS * HEADS * HEAD_DIM * length * (length + 1) // 2
    return 2 * LAYER_WEIGHTS * length + attention + 2 * HEAD_WEIGHTS


def decode_flops(context: int) -> int:
    """Return the operations of one decoded token with attention to `context` tokens."""
    return 2 * (LAYER_WEIGHTS + HEAD_WEIGHTS) + 4 * LAYERS * HEADS * HEAD_DIM * context


def batch_flops(lengths: Sequence[int], new_tokens: int) -> int:
    """Return the operations of prompts of some lengths with `new_tokens` each, if nothing is computed twice."""
    decoded = sum(decode_flops(length + step) for length in lengths for step in range(1, new_tokens))
    return sum(map(prefill_flops, lengths)) + decoded


def shared_flops(requests: int, prefix: int, rest: int, new_tokens: int) -> int:
    """Return the operations of prompts with a common prefix of `prefix` tokens, if it is computed once."""
    saved = (requests - 1) * (prefill_flops(prefix) - 2 * HEAD_WEIGHTS)  # a prefix alone asks for no logits
    return batch_flops([prefix + rest] * requests, new_tokens) - saved
