"""Memory of finished outputs, a source of drafts for later requests of the same namespace."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from rekindle.core.scheduler.drafts.index import GAP, LEAST_MATCH, TokenIndex, Tokens

MOST_TOKENS: Final = 1 << 15
"""Most tokens of one namespace. The oldest half is forgotten at once, so that this happens rarely."""
MOST_NAMESPACES: Final = 64


class FinishedOutputs:
    """The outputs of finished requests by namespace, within bounds, the oldest forgotten first.

    A request finds outputs of its own namespace alone. Otherwise the time of its answer would tell whether another
    user's output has the same tokens.
    """

    def __init__(self) -> None:
        self._indices: OrderedDict[str, TokenIndex] = OrderedDict()

    def add(self, namespace: str, output: Sequence[int]) -> None:
        """Add the output of a finished request."""
        if len(output) <= LEAST_MATCH:
            return
        index = self._indices.setdefault(namespace, TokenIndex())
        self._indices.move_to_end(namespace)
        index.extend([*output[-MOST_TOKENS // 2 :], GAP])
        if len(index) > MOST_TOKENS:
            index.forget(len(index) - MOST_TOKENS // 2)
        if len(self._indices) > MOST_NAMESPACES:
            self._indices.popitem(last=False)

    def following(self, namespace: str, last: Tokens) -> tuple[int, list[int]]:
        """Find the last tokens of a request; see `TokenIndex.following`."""
        index = self._indices.get(namespace)
        return (0, []) if index is None else index.following(last, own=False)

    def forget(self) -> None:
        """Forget all outputs, after a change of the weights."""
        self._indices.clear()
