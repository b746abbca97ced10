"""Several lanes serve as one does: the same tokens, and every operation over all of them."""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import rekindle
from rekindle.core.engine.wiring import Actors
from rekindle.core.errors import ConfigError, EngineFailed, WeightsChanged
from rekindle.core.messages import Dispatched, Message
from rekindle.core.messages.record import MessageRecord
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.settings.engine import Settings, SettingsOptions
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.cards import picture
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

LANES = 3
SMALL: SettingsOptions = {"replicas": LANES, "page_size": 16, "max_running": 2}
PROMPTS = [[number] * 40 for number in range(9)]


@pytest.fixture
def session() -> Iterator[Session]:
    with fake_session(**SMALL) as session:
        yield session


def manual_session() -> tuple[Session, list[FakeSettler]]:
    """Return a session with its ticks in flight until their release, and the settler of each lane."""
    settlers: list[FakeSettler] = []

    def compose(actors: Actors) -> Actors:
        settlers.append(FakeSettler(held=True))
        return replace(actors, settler=settlers[-1])

    return fake_session(fake_loaded_engine(fake_limits(**SMALL)).composed(compose)), settlers


def step(settlers: list[FakeSettler]) -> None:
    for settler in settlers:
        settler.step()


async def test_each_request_gets_its_own_tokens_and_every_lane_serves(session: Session) -> None:
    for answer, prompt in zip(await session.generate(token_ids=PROMPTS, max_tokens=8), PROMPTS, strict=True):
        assert answer.token_ids == expected_tokens(prompt, 8)
    lanes = session.stats.lanes
    assert all(lane.ended for lane in lanes)
    assert session.stats.scheduler.generated_tokens == sum(lane.generated_tokens for lane in lanes) == 8 * len(PROMPTS)


async def test_a_prompt_goes_where_its_prefix_is(session: Session) -> None:
    for number in range(LANES):
        await session.generate(token_ids=[number] * 64, max_tokens=2)
    for number in reversed(range(LANES)):
        again = await session.generate(token_ids=[*[number] * 64, 9, number], max_tokens=2)
        assert again.cached_tokens == 64


@pytest.mark.parametrize("settings", [{"num_pages": 9}, {"num_pages": 9, "prefix_cache": False}])
async def test_lanes_preempt_apart(settings: SettingsOptions) -> None:
    with fake_session(**SMALL | settings) as session:
        answers = await session.generate(token_ids=PROMPTS, max_tokens=60, ignore_eos=True)
        assert [answer.token_ids for answer in answers] == [expected_tokens(prompt, 60) for prompt in PROMPTS]
        assert session.stats.scheduler.preemptions > 0


async def test_stop_strings_end_requests_in_the_lane_that_has_them(byte_tokenizer: Tokenizer) -> None:
    loaded_engine = fake_loaded_engine(fake_limits(**SMALL), tokenizer=byte_tokenizer)
    with fake_session(loaded_engine) as session:
        for prompt in PROMPTS:
            text = (await session.generate(token_ids=prompt, max_tokens=12, ignore_eos=True)).text
            stopped = await session.generate(token_ids=prompt, max_tokens=12, ignore_eos=True, stop=text[2:4])
            assert (stopped.text, stopped.finish_reason) == (text[:2], "stop")
        await until(lambda: session.stats.scheduler.running == 0, "all have ended")


async def test_a_cancelled_request_leaves_its_lane() -> None:
    session, settlers = manual_session()
    async with session:
        handles = [session.submit(token_ids=prompt, max_tokens=60, ignore_eos=True) for prompt in PROMPTS[:6]]
        await until(lambda: session.stats.scheduler.running == 6, "all run", step=lambda: step(settlers))
        for handle in handles[:3]:
            handle.cancel()
        await until(lambda: [lane.running for lane in session.stats.lanes] == [1] * LANES, "three have left")
        for settler in settlers:
            settler.release()
        assert [(await handle).token_ids for handle in handles[3:]] == [
            expected_tokens(each, 60) for each in PROMPTS[3:6]
        ]


async def test_weights_are_exchanged_in_all_lanes_before_the_caller_goes_on(session: Session) -> None:
    await session.generate(token_ids=PROMPTS, max_tokens=2)
    assert session.stats.scheduler.cached_pages
    records: list[MessageRecord] = []
    with session.watch(records.append):
        await session.update_weights({})
    assert Counter(each.lane for each in records if type(each.message).__name__ == "UseWeights") == {0: 1, 1: 1, 2: 1}
    assert [lane.cached_pages for lane in session.stats.lanes] == [0] * LANES


async def test_prefixes_that_were_held_before_new_weights_pin_nobody(session: Session) -> None:
    async with session.prefix(token_ids=[7] * 64) as prefix:
        await session.update_weights({})
        answers = [await prefix.generate(token_ids=[number] * 8, max_tokens=2) for number in range(2 * LANES)]
        assert len(answers) == 2 * LANES
    router = vars(session._engine.thread._serving())["_stages"]["router"]._actor
    assert not router._held_prefixes


async def test_weights_can_fail_what_runs_in_any_lane() -> None:
    session, settlers = manual_session()
    async with session:
        handles = [session.submit(token_ids=prompt, max_tokens=2000, ignore_eos=True) for prompt in PROMPTS[:6]]
        await until(lambda: session.stats.scheduler.running == 6, "all run", step=lambda: step(settlers))
        for settler in settlers:
            settler.release()
        await session.update_weights({}, in_flight="fail")
        for handle in handles:
            with pytest.raises(WeightsChanged):
                await handle


async def test_a_save_writes_what_all_lanes_have(session: Session) -> None:
    await session.generate(token_ids=PROMPTS, max_tokens=2)
    pages = session.stats.scheduler.cached_pages
    saved_pages = await session.save()
    assert sum(lane.disk_pages for lane in session.stats.lanes) == pages == 2 * len(PROMPTS)
    assert saved_pages <= pages, "some were written before, while the engine was idle"


async def test_a_pause_stops_all_lanes_and_steps_go_through_them(session: Session) -> None:
    await session.pause()
    handles = [session.submit(token_ids=prompt, max_tokens=2) for prompt in PROMPTS[:3]]
    counts: Counter[tuple[str, int | None]] = Counter()
    while (record := await session.step()) is not None:
        counts[record.actor, record.lane] += 1
        assert f"lane {record.lane} {record.actor} handled" in repr(record) or record.lane is None
    assert all(handle.done for handle in handles)
    assert {lane for actor, lane in counts if actor == "stepper"} == {0, 1, 2}
    assert {actor for actor, lane in counts if lane is None} == {"intake", "router", "detokenizer"}
    session.resume()


async def test_what_waits_is_named_by_lane(session: Session) -> None:
    await session.pause()
    session.submit(token_ids=[1, 2, 3], max_tokens=2)
    for _ in range(2):
        await session.step()
    assert list(filter(session.pending.get, session.pending)) == ["lane 0 scheduler"]
    assert {"intake", "router", "lane 2 host_tier"} < set(session.pending)


async def test_a_trace_draws_each_lane(session: Session, tmp_path: Any) -> None:
    with session.trace() as trace:
        await session.generate(token_ids=PROMPTS, max_tokens=3)
    timeline = trace.timeline()
    words = "".join(picture(timeline.svg).itertext())
    drawn_here: list[int] = []
    for lane in range(LANES):
        assert f"lane {lane}" in words
        section = timeline.text.split("lane ")[1 + lane]
        drawn_here += [request for request in range(9) if f"request {request} " in section]
    assert sorted(drawn_here) == list(range(9)), "each request is in the picture of one lane"
    assert timeline.text.count("40 + 3, length") == len(PROMPTS)
    trace.to_perfetto(tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text()
    assert all(f'"lane {lane} {name}"' in text for lane in range(LANES) for name in ("ticks", "stepper", "running"))


async def test_the_cache_is_shown_by_lane(session: Session) -> None:
    await session.generate(token_ids=PROMPTS, max_tokens=3)
    cache = session.cache
    assert cache.nodes == sum(lane.nodes for lane in cache.lanes) == 2 * len(PROMPTS)
    drawing = cache.draw()
    assert [line for line in drawing.text.splitlines() if line.startswith("lane")] == ["lane 0", "lane 1", "lane 2"]
    assert "lane 2" in "".join(picture(drawing.svg).itertext())


async def test_numbers_are_shown_by_lane(session: Session) -> None:
    await session.generate(token_ids=PROMPTS, max_tokens=3)
    assert "in 3 lanes" in repr(session)
    head, *rows = repr(session.stats).splitlines()
    assert head.split() == ["all", "lane", "0", "lane", "1", "lane", "2"]
    assert next(row.split()[1:] for row in rows if "generated_tokens" in row) == [
        "27",
        *(str(lane.generated_tokens) for lane in session.stats.lanes),
    ]
    assert "lane 1" in session.stats._repr_mimebundle_()["text/html"]
    metrics = session.metrics_text()
    assert "rekindle_generated_tokens_total 27" in metrics
    assert f'rekindle_lane_generated_tokens_total{{lane="1"}} {session.stats.lanes[1].generated_tokens}' in metrics


async def test_ticks_are_logged_by_lane(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rekindle.ticks")
    await session.generate(token_ids=PROMPTS, max_tokens=3)
    await until(lambda: session.stats.scheduler.running == 0, "all have ended")
    lines = [record.getMessage() for record in caplog.records]
    assert all(any(line.startswith(f"lane {lane} prefill:") for line in lines) for lane in range(LANES))


async def test_a_stuck_tick_of_one_lane_fails_its_requests_alone() -> None:
    settlers: list[FakeSettler] = []

    def compose(actors: Actors) -> Actors:
        settlers.append(FakeSettler(held=True))
        return replace(actors, settler=settlers[-1])

    loaded_engine = fake_loaded_engine(fake_limits(**SMALL)).composed(compose)
    loaded_engine = replace(loaded_engine, settings=replace(loaded_engine.settings, watchdog_timeout=PATIENCE))
    async with fake_session(loaded_engine) as session:
        stuck = session._engine.thread._serving()._watchdogs[1]
        handles = [session.submit(token_ids=prompt, max_tokens=3) for prompt in PROMPTS[:3]]
        await until(lambda: session.stats.scheduler.running == 3, "each lane had its request")
        with stuck._changed:
            stuck._timeout = 0.05
            stuck._changed.notify()
        settlers[0].release()
        settlers[2].release()
        with pytest.raises(rekindle.StepTimeout):
            await handles[1]
        assert session.stuck is not None
        assert session.stuck.startswith("lane 1 stuck in tick 1")
        assert [len((await handles[number]).token_ids) for number in (0, 2)] == [3, 3]
        before = session.stats.lanes[1].ended
        await session.generate(token_ids=PROMPTS, max_tokens=3)
        assert session.stats.lanes[1].ended == before, "no further request fails there"
        settlers[1].release()
        await until(lambda: session.stuck is None, "the tick ended")
        stuck._timeout = PATIENCE
        assert (await session.generate(token_ids=PROMPTS[1], max_tokens=3)).token_ids == expected_tokens(PROMPTS[1], 3)


async def test_an_error_in_one_lane_ends_the_engine_and_nobody_waits() -> None:
    class Failing(FakeSettler):
        async def handle(self, message: Message) -> list[Message]:
            if isinstance(message, Dispatched) and any(each.request_id == 4 for each in message.sample_rows):
                raise RuntimeError("the device is gone")
            return await super().handle(message)

    async with fake_session(fake_loaded_engine(fake_limits(**SMALL), settler=Failing())) as session:
        handles = [session.submit(token_ids=prompt, max_tokens=400, ignore_eos=True) for prompt in PROMPTS]
        for handle in handles:
            with pytest.raises(EngineFailed, match="the device is gone"):
                await handle


async def test_a_function_routes(byte_tokenizer: Tokenizer) -> None:
    def route(request: Any, lanes: Any) -> int:
        return len(request.prompt) % len(lanes)

    with fake_session(**SMALL | {"route": route}) as session:
        await session.generate(token_ids=[[1] * size for size in (3, 6, 4, 9)], max_tokens=2)
        assert [lane.ended for lane in session.stats.lanes] == [3, 1, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"replicas": 0}, "replicas must be an integer of at least 1, or a rekindle.Ray, got 0"),
        ({"route": "nearest"}, "route must be one of 'prefix', 'round-robin', 'shortest-queue' or a function"),
    ],
)
def test_settings_that_are_none_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**settings)
