"""Several requests are submitted at once, after all of their prompts were checked."""

from typing import Any

import pytest

import rekindle
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, expected_tokens

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

PROMPTS = [[3, 1, 4], [1, 5, 9]]


async def test_their_handles_come_draw_by_draw_of_each_prompt(session: Session) -> None:
    handles = await session.submit_all(token_ids=PROMPTS, n=2, seed=7, max_tokens=5)
    groups = await session.generate(token_ids=PROMPTS, n=2, seed=7, max_tokens=5)
    assert [await handle for handle in handles] == [answer for group in groups for answer in group]


async def test_one_prompt_gives_a_list_too(session: Session) -> None:
    (handle,) = session.submit_all_sync(token_ids=PROMPTS[0], max_tokens=5)
    assert (await handle).token_ids == expected_tokens(PROMPTS[0], 5)
    assert await session.submit_all(token_ids=PROMPTS, n=1, max_tokens=0) != []


async def test_nothing_is_submitted_unless_all_can_be_served(session: Session) -> None:
    with pytest.raises(rekindle.InvalidBatch) as caught:
        await session.submit_all(token_ids=[[3], [3] * 5000])
    assert list(caught.value.errors) == [1]
    assert session.requests == {}
    assert session.stats.scheduler.ended == 0


async def test_where_there_is_room_for_the_first_the_others_wait_for_theirs(
    held_session: Session, settler: FakeSettler
) -> None:
    first = await held_session.submit_all(token_ids=[[3, 1, 4]] * 5, max_tokens=2)
    with pytest.raises(rekindle.QueueFull, match="max_waiting is 2"):
        await held_session.submit_all(token_ids=[3], max_tokens=2)
    settler.release()
    assert {(await handle).token_ids for handle in first} == {expected_tokens([3, 1, 4], 2)}


async def test_an_error_about_a_parameter_names_it(session: Session) -> None:
    wrong: list[dict[str, Any]] = [{"top_p": 7}, {"max_tokens": -1}, {"stop": [""]}]
    for options in wrong:
        with pytest.raises(rekindle.InvalidRequest) as caught:
            await session.submit_all(token_ids=[3], **options)
        assert [caught.value.parameter] == list(options)
    with pytest.raises(rekindle.InvalidRequest) as caught:
        await session.submit_all(token_ids=[3], min_tokens=5, max_tokens=2)
    assert caught.value.parameter is None
