"""Attention, recurrences and convolutions of one tick, over the pages and the states of slots."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from rekindle.core.buckets import QUERY_BLOCK, Bucket
from rekindle.core.device.inputs import TickInputs
from rekindle.core.device.state import Slots
from rekindle.core.models.mixing import ScoreOptions
from rekindle.core.models.states.windows import RowOperation, compute_rows
from rekindle_kernels import api as kernels
from rekindle_kernels import states
from rekindle_kernels.chunks import blocks_in_chunks, rows_in_chunks


@dataclass(frozen=True, slots=True)
class TickMixer:
    """The `Mixer` of one tick, with separate kernel calls for prefill blocks and decode rows.

    Attributes:
        row_pages: (decode_rows,) int32, the page of each row's token; the null page for padding.
        group_ends: (blocks, QUERY_BLOCK) int32, see `group_ends_of`; None for causal attention.
    """

    inputs: TickInputs[jax.Array]
    slots: Slots
    bucket: Bucket
    page_size: int
    row_pages: jax.Array
    implementation: kernels.Implementation
    group_ends: jax.Array | None = None

    @property
    def row_positions(self) -> jax.Array:
        """The position of each decode row, (decode_rows,) int32."""
        return self.inputs.row_positions(self.slots)

    def attend(
        self, q: jax.Array, kv: jax.Array | None, pages: jax.Array, scores: ScoreOptions
    ) -> tuple[jax.Array, jax.Array]:
        """See `Mixer.attend`."""
        tokens, options = self.bucket.prefill_tokens, scores.options() | {"implementation": self.implementation}
        null_slot = len(self.slots.token) - 1
        outputs = []
        if kv is not None:
            pages = self._write(kv, pages)
        if tokens:
            table, owners = self.slots.page_table, self.inputs.block_slot
            starts = jnp.where(owners == null_slot, -1, self.inputs.block_start)
            if scores.chunk is not None:
                table, owners, starts = blocks_in_chunks(table, owners, starts, scores.chunk, self.page_size)
            block_q = q[:tokens].reshape(-1, QUERY_BLOCK, *q.shape[1:])
            until = scores.until(_ends(starts), self.group_ends)
            out = kernels.attend_blocks(block_q, pages, table, owners, starts, until, bias=scores.bias, **options)
            outputs.append(out.reshape(tokens, *q.shape[1:]))
        if self.bucket.decode_rows:
            table = self.slots.page_table[self.inputs.row_slot]
            visible = jnp.where(self.inputs.row_slot == null_slot, 0, self.row_positions + 1)
            if scores.chunk is not None:
                table, visible = rows_in_chunks(table, visible, scores.chunk, self.page_size)
            out = kernels.attend_rows(q[tokens:], pages, table, visible, **options)
            outputs.append(out)
        return jnp.concatenate(outputs), pages

    def convolve(
        self, x: jax.Array, weight: jax.Array, bias: jax.Array | None, state: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """See `Mixer.convolve`."""
        tokens, inputs, outputs = self.bucket.prefill_tokens, self.inputs, []
        if tokens:
            blocks = x[:tokens].reshape(-1, QUERY_BLOCK, x.shape[1])
            runs = self._block_places(state), inputs.block_start, inputs.block_count
            y, state = states.convolve_blocks(blocks, weight, bias, state, *runs, implementation=self.implementation)
            outputs.append(y.reshape(tokens, -1))
        if self.bucket.decode_rows:

            def by_row(state: jax.Array, slots: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
                return states.convolve_rows(x, weight, bias, state, slots, implementation=self.implementation)

            y, state = self._by_row(by_row, state, (x[tokens:],))
            outputs.append(y)
        return jnp.concatenate(outputs), state

    def recur(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        decay: jax.Array,
        beta: jax.Array | None,
        state: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """See `Mixer.recur`."""
        tokens, inputs, outputs = self.bucket.prefill_tokens, self.inputs, []
        if tokens:

            def block(x: jax.Array) -> jax.Array:
                return x[:tokens].reshape(-1, QUERY_BLOCK, *x.shape[1:])

            rates = None if beta is None else block(beta)
            runs = self._block_places(state), inputs.block_start, inputs.block_count
            o, state = states.recur_blocks(
                block(q), block(k), block(v), block(decay), rates, state, *runs, implementation=self.implementation
            )
            outputs.append(o.reshape(tokens, *o.shape[2:]))
        if self.bucket.decode_rows:

            def by_row(state: jax.Array, slots: jax.Array, *rows: jax.Array) -> tuple[jax.Array, jax.Array]:
                q, k, v, decay, *rates = rows
                beta = rates[0] if rates else None
                return states.recur_rows(q, k, v, decay, beta, state, slots, implementation=self.implementation)

            rows = (q, k, v, decay) if beta is None else (q, k, v, decay, beta)
            o, state = self._by_row(by_row, state, tuple(each[tokens:] for each in rows))
            outputs.append(o)
        return jnp.concatenate(outputs), state

    def _by_row(
        self, operation: RowOperation, state: jax.Array, rows: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """Compute decode rows. They change the states of their slots, drafted ones the states of rows."""
        inputs = self.inputs
        if not self.bucket.windows:
            return operation(state, inputs.row_slot, *rows)
        return compute_rows(operation, state, rows, inputs.row_slot, inputs.row_offset, len(self.slots.token) - 1)

    def _block_places(self, state: jax.Array) -> jax.Array:
        """Return the place of each block's slot in a layer's state; the last place is the null slot's."""
        owners = self.inputs.block_slot
        return jnp.where(owners == len(self.slots.token) - 1, len(state) - 1, owners) if self.bucket.windows else owners

    def _write(self, kv: jax.Array, pages: jax.Array) -> jax.Array:
        """Write the keys and values of blocks and of rows into their pages."""
        tokens, write = self.bucket.prefill_tokens, partial(kernels.write, implementation=self.implementation)
        if tokens:
            blocks = jnp.moveaxis(kv[:tokens].reshape(-1, QUERY_BLOCK, *kv.shape[1:]), 1, 3)
            pages = write(pages, blocks, self.inputs.block_page, self.inputs.block_start % self.page_size)
        if self.bucket.decode_rows:
            pages = write(pages, kv[tokens:, :, :, None], self.row_pages, self.row_positions % self.page_size)
        return pages


def group_ends_of(inputs: TickInputs[jax.Array], *, whole_texts: bool) -> jax.Array:
    """Return the end of the positions shown to each token of blocks, (blocks, QUERY_BLOCK) int32.

    They are the positions up to the end of its image, or of its prompt; for other tokens, up to its own position. All
    tokens of the image or the prompt from this one on are in the tick.

    Args:
        inputs: the inputs of the tick.
        whole_texts: whether tokens see their whole prompt, rather than their image.
    """
    own = _ends(inputs.block_start)
    if whole_texts:
        return jnp.maximum(own, inputs.block_length[:, None])
    in_image = inputs.embedded >= 0
    follows = (inputs.block_slot[1:] == inputs.block_slot[:-1]) & (inputs.block_start[1:] == own[:-1, -1])
    joined = jnp.ones(own.shape, bool).at[:, -1].set(jnp.append(follows, False)).reshape(-1)
    places = jnp.arange(len(in_image), dtype=jnp.int32)
    is_last = ~(joined & jnp.append(in_image[1:], False))
    last = lax.cummin(jnp.where(is_last, places, len(places)), reverse=True)
    return own + jnp.where(in_image, last - places, 0).reshape(own.shape)


def _ends(starts: jax.Array) -> jax.Array:
    """Return the position after each token of blocks with these starts, (blocks, QUERY_BLOCK) int32."""
    return starts[:, None] + jnp.arange(1, QUERY_BLOCK + 1, dtype=jnp.int32)[None]
