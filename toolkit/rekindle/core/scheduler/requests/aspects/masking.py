"""Mask of a constrained request."""

from dataclasses import dataclass, field
from typing import Any

from rekindle.core.request.constraint import Allowed


@dataclass(slots=True, eq=False)
class Masking:
    """The allowed next tokens of one request, by the latest answer of the grammars actor.

    Attributes:
        allowed: the tokens allowed after the request's tokens; None without a constraint.
        is_pending: whether the answer for the newest token is pending.
        late: whether the pending answer is late, so that ticks continue without the request.
        constrained: whether the request has a constraint; stored, because each row of each tick needs it.
    """

    allowed: Allowed | None = None
    is_pending: bool = False
    late: bool = False
    constrained: bool = field(init=False)

    def __post_init__(self) -> None:
        self.constrained = self.allowed is not None

    @property
    def draft_bits(self) -> Any:
        """The masks after each token of its draft."""
        return () if self.allowed is None else self.allowed.draft_bits

    @property
    def bits(self) -> Any:
        """The mask of allowed next tokens, as the device takes it; None for all."""
        return None if self.allowed is None else self.allowed.bits
