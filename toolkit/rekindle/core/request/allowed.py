"""The tokens that may come next in a constrained output."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that may follow those of a constrained request that are known.

    Attributes:
        forced: the tokens that have to come first, since nothing else may; they are known from now on.
        bits: which tokens may follow these, (vocabulary / 32,) int32, the first in the lowest bit; None if complete.
        complete: whether nothing may follow any more.
    """

    forced: tuple[int, ...] = ()
    bits: Any = field(default=None, compare=False, repr=False)
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Constrained:
    """A constraint as one request is held to it.

    Attributes:
        grammar: the compiled constraint, of which a matcher is made.
        first: what its output may begin with.
    """

    grammar: Any = field(repr=False)
    first: Allowed
