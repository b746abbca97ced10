"""The user's logits processor: traced when a session opens, and compiled into every step."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from rekindle.core.buckets import MAX_PROCESSOR_ARGS
from rekindle.core.content import content_digest
from rekindle.core.device.sampling.adjustments import RECENT, Adjustments
from rekindle_kernels.penalties import GENERATED, IN_PROMPT

CALLBACK = re.compile(r"custom_call @xla\w*python")
"""Pattern of a lowered Python callback."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class LogitsRow:
    """A request's state for a logits processor, at the choice of its next token.

    Attributes:
        position: () int32, the number of tokens so far, prompt and output.
        in_prompt: (vocabulary,) bool, whether the prompt has each token.
        counts: (vocabulary,) int32, the count of each token in the output so far.
        recent: (15,) int32, the newest tokens, oldest first; -1 before the request's start.
        args: (8,) float32, the request's `processor_args`, followed by zeros.
    """

    position: jax.Array
    in_prompt: jax.Array
    counts: jax.Array
    recent: jax.Array
    args: jax.Array

    @classmethod
    def of(cls, slot: Adjustments, position: jax.Array) -> "LogitsRow":
        """Return the row of one slot, from its state without the axis of slots."""
        in_prompt = (slot.marks & IN_PROMPT) != 0
        return cls(position, in_prompt, slot.marks // GENERATED, slot.recent, slot.processor_args)


@dataclass(frozen=True, slots=True)
class LogitsProcessor:
    """A traced function of the logits of one request.

    Attributes:
        name: the function's name with a digest of its computation, including constants and closures.
    """

    name: str
    _jaxpr: ClosedJaxpr

    @classmethod
    def trace(cls, function: Callable[[Any, Any], Any], vocabulary: int) -> "LogitsProcessor":
        """Trace `function(logits, row)` by calling it once, with all functions inside of it.

        Raises:
            ValueError: the function fails, does not return logits, or contains a Python callback.
        """
        name = getattr(function, "__name__", type(function).__name__)
        logits, row = _shapes(vocabulary)
        try:
            with _traced_anew():
                jaxpr = jax.make_jaxpr(lambda logits, row: function(logits, row))(logits, row)
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"logits_processor {name} must be traceable by JAX, as (logits, row) -> logits with one float32 for "
                f"each of {vocabulary} tokens and a rekindle.LogitsRow; it raised {type(error).__name__}: {error}"
            ) from error
        out = jaxpr.out_avals
        if len(out) != 1 or out[0].shape != (vocabulary,) or not jnp.issubdtype(out[0].dtype, jnp.floating):
            got = ", ".join(each.str_short() for each in out) or "nothing"
            raise ValueError(f"logits_processor {name} must return logits, float32[{vocabulary}], got {got}")
        # The lowered text includes closures and constants, but not comments. Some versions of JAX leave large ones out.
        text = jax.jit(jaxpr_as_fun(jaxpr)).lower(*jax.tree.leaves((logits, row))).as_text()
        if jaxpr.effects or CALLBACK.search(text):
            raise ValueError(
                f"logits_processor {name} must not call back into Python, as jax.debug.print, jax.pure_callback and "
                "io_callback do: a stored program cannot contain callbacks"
            )
        return cls(f"{name} #{content_digest([text, jaxpr.consts])[:16]}", jaxpr)

    def __call__(
        self, columns: jax.Array, positions: jax.Array, adjustments: Adjustments, owners: jax.Array
    ) -> jax.Array:
        """Process each row separately; arguments and result as in `adjust`."""
        function = jaxpr_as_fun(self._jaxpr)

        def one(logits: jax.Array, position: jax.Array, slot: Adjustments) -> jax.Array:
            result: jax.Array = function(logits, *jax.tree.leaves(LogitsRow.of(slot, position)))[0]
            return result.astype(jnp.float32)

        slots = jax.tree.map(lambda state: state[owners], adjustments)
        result: jax.Array = jax.vmap(one, in_axes=(1, 0, 0), out_axes=1)(columns, positions, slots)
        return result


def _traced_anew() -> AbstractContextManager[None]:
    """Return a context in which JAX traces functions again, because globals may have changed.

    JAX remembers the traces of functions passed to jit, scan, vmap and others, also of functions inside of functions.
    """
    if not hasattr(jax, "make_user_context"):  # an older JAX
        jax.clear_caches()
        return nullcontext()
    context: AbstractContextManager[None] = _context_of_traces()(object())
    return context


@cache
def _context_of_traces() -> Any:
    """Make a context for JAX's memory of traces; once, because JAX then forgets all traces."""
    return jax.make_user_context(None)


def _shapes(vocabulary: int) -> tuple[jax.ShapeDtypeStruct, LogitsRow]:
    """Return the shapes of a processor's arguments."""

    def vector(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    row = LogitsRow(
        position=vector(jnp.int32),
        in_prompt=vector(jnp.bool_, vocabulary),
        counts=vector(jnp.int32, vocabulary),
        recent=vector(jnp.int32, RECENT),
        args=vector(jnp.float32, MAX_PROCESSOR_ARGS),
    )
    return vector(jnp.float32, vocabulary), row
