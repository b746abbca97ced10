"""The queue of pages by their last use keeps few stale entries, whatever is put and popped."""

from dataclasses import dataclass

from rekindle.core.scheduler.cache.ledger import OldestFirst


@dataclass(eq=False)
class Member:
    last_used: int
    depth: int = 0


def test_members_that_are_popped_leave_no_stale_majority() -> None:
    queue, members = OldestFirst[Member](), [Member(number) for number in range(200)]
    for member in members:
        queue.put(member)
    for member in members[68:]:
        queue.discard(member)
        queue.check()
    for member in members[:68]:
        assert queue.pop() is member
        queue.check()
    assert queue.pop() is None
