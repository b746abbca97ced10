"""A logits processor of the user's own: it is traced when a session is opened, and compiled into every step."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from rekindle.core.buckets import MAX_PROCESSOR_ARGS
from rekindle.core.device.sampling.adjustments import RECENT, Adjustments
from rekindle_kernels.penalties import GENERATED, IN_PROMPT

CALLBACK = re.compile(r"custom_call @xla\w*python")
"""How a call back into Python is lowered."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class LogitsRow:
    """All that a logits processor knows of a request whose next token is to be chosen.

    Attributes:
        position: () int32, the number of its tokens so far, prompt and output.
        in_prompt: (vocabulary,) bool, whether the prompt has each token.
        counts: (vocabulary,) int32, how often the output has each token so far.
        recent: (15,) int32, its newest tokens, oldest first; -1 before its start.
        args: (8,) float32, its `processor_args`, followed by zeros.
    """

    position: jax.Array
    in_prompt: jax.Array
    counts: jax.Array
    recent: jax.Array
    args: jax.Array

    @classmethod
    def of(cls, slot: Adjustments, position: jax.Array) -> "LogitsRow":
        """Return what is known of one slot, whose state has no axis of slots."""
        in_prompt = (slot.marks & IN_PROMPT) != 0
        return cls(position, in_prompt, slot.marks // GENERATED, slot.recent, slot.processor_args)


@dataclass(frozen=True, slots=True)
class LogitsProcessor:
    """A traced function of the logits of one request.

    Attributes:
        name: of the function, with a digest of all that it computes, constants and closures included.
    """

    name: str
    _jaxpr: ClosedJaxpr

    @classmethod
    def traced(cls, function: Callable[[Any, Any], Any], vocabulary: int) -> "LogitsProcessor":
        """Trace `function(logits, row)`, which is called here, once.

        Raises:
            ValueError: it fails, does not return logits, or calls back into Python.
        """
        name = getattr(function, "__name__", type(function).__name__)
        logits, row = _shapes(vocabulary)
        try:
            jaxpr = jax.make_jaxpr(function)(logits, row)
        except Exception as error:
            raise ValueError(
                f"logits_processor {name} must be traceable by JAX, as (logits, row) -> logits with one float32 for "
                f"each of {vocabulary} tokens and a rekindle.LogitsRow; it raised {type(error).__name__}: {error}"
            ) from error
        out = jaxpr.out_avals
        if len(out) != 1 or out[0].shape != (vocabulary,) or not jnp.issubdtype(out[0].dtype, jnp.floating):
            got = ", ".join(each.str_short() for each in out) or "nothing"
            raise ValueError(f"logits_processor {name} must return logits, float32[{vocabulary}], got {got}")
        # What is lowered has the closures and constants of the function too, and not its comments.
        text = jax.jit(jaxpr_as_fun(jaxpr)).lower(*jax.tree.leaves((logits, row))).as_text()
        if jaxpr.effects or CALLBACK.search(text):
            raise ValueError(
                f"logits_processor {name} must compute with JAX alone: a compiled program that is stored cannot call "
                "back into Python, as jax.debug.print, jax.pure_callback and io_callback do"
            )
        return cls(f"{name} #{hashlib.sha256(text.encode()).hexdigest()[:16]}", jaxpr)

    def __call__(
        self, columns: jax.Array, positions: jax.Array, adjustments: Adjustments, owners: jax.Array
    ) -> jax.Array:
        """Process each row by itself; the arguments and the result are as of `adjust`."""
        function = jaxpr_as_fun(self._jaxpr)

        def one(logits: jax.Array, position: jax.Array, slot: Adjustments) -> jax.Array:
            processed: jax.Array = function(logits, *jax.tree.leaves(LogitsRow.of(slot, position)))[0]
            return processed.astype(jnp.float32)

        slots = jax.tree.map(lambda state: state[owners], adjustments)
        processed: jax.Array = jax.vmap(one, in_axes=(1, 0, 0), out_axes=1)(columns, positions, slots)
        return processed


def _shapes(vocabulary: int) -> tuple[jax.ShapeDtypeStruct, LogitsRow]:
    """Return the shapes of the arguments of a processor."""

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
