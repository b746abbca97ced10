"""On a CPU the logits of a token have the same bits, however its prompt was cut and whatever stands beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.assembly.weights.load import load_decoder
from rekindle.core.device.state import empty_pages
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.mixing import LayerMemory, ScoreOptions
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle_kernels import api
from rekindle_kernels.cpu.library import unavailable_reason

PAGE, TOKENS, OTHERS = 16, 48, 7
Array = np.ndarray[Any, np.dtype[Any]]

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=f"no native kernels: {unavailable_reason()}")


class Told:
    """One request that is told in parts, as blocks of a prompt or as rows, beside rows of another request."""

    def __init__(self, decoder: Decoder, ids: Array, kv_dtype: str):
        self._config, self._ids, self._dtype = decoder.config, ids, jnp.dtype(kv_dtype)
        self._graph, self._state = nnx.split(decoder)
        self._run = jax.jit(self._part, static_argnames=("blocks", "rows"))

    def logits(self, cuts: Sequence[int], *, blocks: bool, others: int) -> Array:
        """Return (TOKENS, vocabulary) float32.

        Args:
            cuts: the sizes of the parts; multiples of 16 where they are told as blocks.
            others: rows of another request that are computed with each part.
        """
        pages, begin, parts = empty_pages(self._config, 1 + 2 * TOKENS // PAGE, PAGE, self._dtype, "cpu"), 0, []
        for cut in cuts:
            ids = np.concatenate([self._ids[begin : begin + cut], self._ids[:others]])
            positions = np.concatenate([np.arange(begin, begin + cut), np.arange(others)]).astype(np.int32)
            logits, pages = self._run(self._state, pages, ids, positions, blocks=blocks, rows=others)
            parts.append(np.asarray(logits)[:cut])
            begin += cut
        return np.concatenate(parts)

    def _part(self, state: Any, pages: Any, ids: jax.Array, positions: jax.Array, *, blocks: bool, rows: int) -> Any:
        decoder = nnx.merge(self._graph, state)
        own = np.arange(len(ids)) < len(ids) - rows
        first_page = jnp.where(own, 1, 1 + TOKENS // PAGE)
        tables = first_page[:, None] + jnp.arange(TOKENS // PAGE)[None]
        mixer: Any = InParts(positions, tables, len(ids) - rows if blocks else 0)
        hidden, memory = decoder(ids, positions, LayerMemory(pages), mixer)
        return decoder.logits(hidden), memory.pages


@dataclass(frozen=True)
class InParts:
    """A mixer that takes the first `blocks` tokens in blocks of 16, the others as rows."""

    positions: jax.Array
    tables: jax.Array
    blocks: int

    def attend(self, q: jax.Array, kv: jax.Array, pages: jax.Array, scores: ScoreOptions) -> Any:
        positions, tables, blocks = self.positions, self.tables, self.blocks
        how = scores.options() | {"implementation": "cpu"}
        ids = tables[jnp.arange(len(q)), positions // PAGE]
        pages = api.write(pages, kv[:, :, :, None], ids, positions % PAGE, implementation="cpu")
        rows = api.attend_rows(q[blocks:], pages, tables[blocks:], positions[blocks:] + 1, **how)
        starts = positions[:blocks:16]
        first = api.attend_blocks(
            q[:blocks].reshape(-1, 16, *q.shape[1:]), pages, tables[:1], jnp.zeros_like(starts), starts, **how,
        )  # fmt: skip
        return jnp.concatenate([first.reshape(blocks, *q.shape[1:]), rows]), pages


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("float32", "float32"), marks=pytest.mark.wide),
        pytest.param(("bfloat16", "bfloat16"), marks=pytest.mark.wide),
        ("float32", "int8"),
    ],
)
def told(request: pytest.FixtureRequest, families: Path) -> Told:
    """Return the story of one request, once for each dtype of weights and pages."""
    dtype, kv_dtype = request.param
    checkpoint = open_checkpoint(families / "qwen3")
    decoder = load_decoder(checkpoint.config, checkpoint.tensors, jnp.dtype(dtype), implementation="cpu")
    ids = np.random.default_rng(0).integers(checkpoint.config.vocab_size, size=TOKENS).astype(np.int32)
    return Told(decoder, ids, kv_dtype)


@pytest.fixture(scope="module")
def whole(told: Told) -> Array:
    """Return the logits of the prompt in one part, alone."""
    return told.logits([TOKENS], blocks=True, others=0)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_logits_have_the_same_bits_in_any_chunks_and_batch(told: Told, whole: Array, data: st.DataObject) -> None:
    blocks = data.draw(st.booleans(), "blocks")
    sizes = st.sampled_from([16, 32] if blocks else [1, 2, 5, 16])
    others = data.draw(st.sampled_from([0, 1, OTHERS]), "others")
    cuts: list[int] = []
    while (left := TOKENS - sum(cuts)) > 0:
        cuts.append(min(left, data.draw(sizes, "size")))
    logits = told.logits(cuts, blocks=blocks, others=others)
    np.testing.assert_array_equal(logits.view(np.int32), whole.view(np.int32))
