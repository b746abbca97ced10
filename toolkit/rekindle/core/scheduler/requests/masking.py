"""The mask of a constrained request."""

from dataclasses import dataclass, field
from typing import Any

from rekindle.core.request.allowed import Allowed


@dataclass(slots=True, eq=False)
class Masking:
    """The tokens that may follow, as far as the grammars have said.

    Attributes:
        allowed: what may follow the tokens of the request; None if it is not constrained.
        asked: whether the grammars are being asked what may follow the newest of them.
        late: whether ticks go on without the request meanwhile.
        constrained: whether it is, which is asked for each row of each tick.
    """

    allowed: Allowed | None = None
    asked: bool = False
    late: bool = False
    constrained: bool = field(init=False)

    def __post_init__(self) -> None:
        self.constrained = self.allowed is not None

    @property
    def bits(self) -> Any:
        """The tokens that may be sampled next, as the device takes them; None for all."""
        return None if self.allowed is None else self.allowed.bits
