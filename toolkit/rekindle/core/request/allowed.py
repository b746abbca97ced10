"""Tokens allowed next in a constrained output."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Allowed:
    """Tokens allowed next in the output of a constrained request.

    Attributes:
        forced: next tokens without an alternative; they count as part of the output from now on.
        bits: mask of the tokens allowed after `forced`, (vocabulary / 32,) int32, the first token in the lowest bit;
            None if complete.
        complete: True if no token may follow.
        draft: a guess of the tokens after `forced`, allowed one after the other.
        sure: the number of first tokens of the draft without an alternative.
        draft_bits: for each token of the draft, the mask of the tokens allowed after it.
    """

    forced: tuple[int, ...] = ()
    bits: Any = field(default=None, compare=False, repr=False)
    complete: bool = False
    draft: tuple[int, ...] = ()
    sure: int = 0
    draft_bits: Any = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Constrained:
    """The constraint of one request, compiled.

    Attributes:
        grammar: compiled constraint; a factory of matchers.
        first: tokens allowed at the beginning of the output.
    """

    grammar: Any = field(repr=False)
    first: Allowed
