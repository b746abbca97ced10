"""How many ticks pass over a request that decodes."""

from collections.abc import Collection, Iterable

from rekindle.core.messages import Plan


class Silences:
    """Follows plans in order, and counts for each request the ticks since its prompt was complete or it had a row.

    A request that loses its pages is not counted until its tokens are complete again.

    Attributes:
        longest: the most ticks in a row that passed over a request which had a row before and after them.
    """

    def __init__(self) -> None:
        self.longest = 0
        self._since: dict[int, int] = {}

    def see(self, plans: Iterable[Plan], late: Collection[int] = ()) -> None:
        """Take in the next plans; ticks may pass over late requests, whose grammars have not answered."""
        for plan in plans:
            for request_id in plan.preempted:
                self._since.pop(request_id, None)
            for row in plan.rows:
                self.longest = max(self.longest, self._since.get(row.request_id, 0))
            rows = {row.request_id for row in plan.rows}
            passed = self._since.keys() - rows - {*late}
            self._since = {each: 0 if each in rows else ticks + (each in passed) for each, ticks in self._since.items()}
            self._since |= {chunk.request_id: 0 for chunk in plan.chunks if chunk.completes is not None}
