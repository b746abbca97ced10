"""The number of ticks that pass over a decoding request."""

from collections.abc import Collection, Iterable

from rekindle.core.messages import Plan


class Silences:
    """A count of the ticks of each request since the end of its prompt or its last row, over plans in order.

    A request without its pages counts again once its tokens are complete.

    Attributes:
        longest: the most ticks in a row between two rows of a request.
    """

    def __init__(self) -> None:
        self.longest = 0
        self._since: dict[int, int] = {}

    def see(self, plans: Iterable[Plan], late: Collection[int] = ()) -> None:
        """Take in the next plans; ticks may pass over late requests, with grammars yet to answer."""
        for plan in plans:
            for request_id in plan.preempted:
                self._since.pop(request_id, None)
            for row in plan.rows:
                self.longest = max(self.longest, self._since.get(row.request_id, 0))
            rows = {row.request_id for row in plan.rows}
            passed = self._since.keys() - rows - {*late}
            self._since = {each: 0 if each in rows else ticks + (each in passed) for each, ticks in self._since.items()}
            self._since |= {chunk.request_id: 0 for chunk in plan.chunks if chunk.completes is not None}
