"""The card of each object is, word for word, its file in goldens/cards."""

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from rekindle import CachedTokens, Generation, Stats, Timings, Usage
from rekindle.client.handle import Handle
from rekindle.client.submission import Submission
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Started, Text
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.notebook.board.board import Board
from rekindle.notebook.board.board_html import board_html
from rekindle.notebook.board.rates import Rate
from rekindle.results.answers import Answers
from rekindle.results.facts.restored import RestoreReport
from rekindle.results.facts.stats import SchedulerStats
from rekindle.results.heat_map import MOST_TOKENS, heat_map
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from rekindle.views.records import (
    ChunkRecord,
    DispatchRecord,
    EndRecord,
    JoinRecord,
    PlanRecord,
    ReadbackRecord,
    StartRecord,
    StopRecord,
    TokensRecord,
)
from rekindle.views.timeline.drawing import draw
from rekindle.views.timeline.requests import Timeline
from tests.compilations import programs_of
from tests.unit.board_facts import COUNTS, EMPTY, FACTS
from tests.unit.cards import Page, as_read, assert_card, read, readable
from tests.unit.traces import recorded, traced
from tests.unit.trees import published, viewed

STATS = Stats(SchedulerStats(running=2, pages=364), programs=8, loads=0, compilations=8, unexpected_compilations=0)


def generated(text: str, *token_ids: int, **facts: Any) -> Generation:
    usage, timings = Usage(24, len(token_ids)), Timings(0.012, 0.1, 1.1)
    generation = Generation(text, token_ids, "length", None, None, None, (), None, usage, timings, CachedTokens())
    return replace(generation, **facts)


def token_logprob(text: str, logprob: float, rank: int, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    return TokenLogprob(7, text, logprob, rank, top, text.encode())


def test_the_card_of_a_generation_is_that_of_its_file() -> None:
    stopped: dict[str, Any] = {"finish_reason": "stop"}
    states = {
        "text": generated("\nOne,\ntwo", 5, 6, 7),
        "one token": generated("One", 5, usage=Usage(1, 1)),
        "cached": generated("One", 5, cached=CachedTokens(device=16, disk=1)),
        "token ids alone": generated("", 5, 6),
        "nothing": generated(""),
        "of a prompt": generated("One", 5, prompt="Count."),
        "of a long prompt": generated("One", 5, prompt="Count\n" + "and count " * 30),
        "stop string": generated("One", 5, 2, **stopped, stopped_by="\n\n"),
        "end token": generated("One", 5, 2, **stopped, stopped_by=0),
        "end token with a text": generated("", 7, **stopped, stopped_by=7, end_token="</s>"),
    }
    assert_card("generation", {state: readable(generation) for state, generation in states.items()})


def test_the_card_of_a_heat_map_is_that_of_its_file() -> None:
    tokens = [
        None,
        token_logprob(" sure", 0.0, 1),
        token_logprob(" <odd>\n", -8.0, 300, (token_logprob(" sure", -0.1, 1),)),
        token_logprob("", -1, 2),
    ]
    assert_card("heat_map", {"tokens": as_read(read(heat_map(tokens)))})


def test_a_heat_map_counts_tokens_of_images() -> None:
    image, word = token_logprob("<image>", -3.0, 9), replace(token_logprob(" cat", -0.5, 1), token_id=8)
    text = read(heat_map([None, *[image] * 64, word, image], image.token_id)).text
    assert text.startswith("·[64 image tokens] cat[1 image token]")
    page = read(heat_map([*[image] * 1000, *[word] * 500], image.token_id))
    assert page.text.startswith("[1,000 image tokens] cat cat")
    assert page.text.count(" cat") == MOST_TOKENS - 1
    assert "… 101 more tokens" in page.text
    assert any("place 1000" in value for _, value in page.attributes), "places are those of the prompt"


def test_the_card_of_a_handle_is_that_of_its_file() -> None:
    handle = Handle(1, Submission((1,), SamplingParams(logprobs=0)), lambda _: None)
    states = {"waiting": readable(handle)}
    handle.send()
    handle.record.deliver(Started(1, (5,) * 24, None, cached=CachedTokens(device=16)))
    handle.record.deliver(Text(1, "One", (7,), None, logprobs=(token_logprob("One", -0.5, 2),)))
    states["running"] = readable(handle, measured=True)
    handle.record.fail(RuntimeError("the device\nis gone"))
    states["failed"] = readable(handle, measured=True)
    ended = Handle(1, Submission((1,), SamplingParams()), lambda _: None)
    ended.send()
    for message in (Started(1, (1,), None, CachedTokens()), Text(1, "One", (7,), "length")):
        ended.record.deliver(message)
    states["ended"] = readable(ended, measured=True)
    cancelled_handle = Handle(1, Submission((1,), SamplingParams()), lambda _: None)
    cancelled_handle.cancel()
    assert_card("handle", states | {"cancelled": readable(cancelled_handle, measured=True)})


def test_the_cards_of_a_stream_and_a_prefix_are_those_of_their_files() -> None:
    with fake_session() as session:
        stream = session.stream(token_ids=[3, 1, 4], max_tokens=2)
        assert len(list(stream)) == 2
        streams = {"ended": readable(stream, measured=True)}
        released, active = (session.prefix_sync(token_ids=[1, 2, 3]) for _ in range(2))
        released.release()
        states = {"held": readable(active), "released": readable(released)}
    assert_card("prefix", states | {"gone with its session": readable(active)})
    assert_card("stream", streams)


def preparing(ready: int, count: int) -> list[Future[Any]]:
    """Return the futures of some programs, the first ones ready."""
    futures: list[Future[Any]] = [Future() for _ in range(count)]
    for future in futures[:ready]:
        future.set_result(None)
    return futures


def test_the_card_of_a_session_is_that_of_its_file() -> None:
    settings: dict[str, Any] = {"num_pages": 9, "page_size": 16, "max_context": 100, "max_running": 3}
    with fake_session(**settings, restore="off") as session:
        states = {"idle": readable(session, measured=True)}
        session.pause_sync()
        states["paused"] = readable(session, measured=True)
        session.resume()
    states["closed"] = readable(session)
    for compiled in (True, False):
        loaded_engine = fake_loaded_engine(fake_limits(**settings))
        loaded_engine = replace(loaded_engine, programs=replace(programs_of(loaded_engine), preparing=preparing(4, 13)))
        programs_of(loaded_engine).executables[0].builder.compilations = int(compiled)
        with fake_session(loaded_engine, restore="off") as session:
            states["compiling" if compiled else "loading"] = readable(session, measured=True)
    assert_card("session", states)


def test_the_card_of_stats_is_that_of_its_file() -> None:
    hits = SchedulerStats(prompt_tokens=200, device_hit_tokens=100, host_hit_tokens=50, computed_tokens=50)
    assert "by where they were found" not in readable(SchedulerStats()), "it has found none"
    busy = SchedulerStats(
        waiting=22_700,
        pages=364,
        free_pages=300,
        evictable_pages=200,
        cached_pages=201,
        disk_states=1,
        forced_tokens=3,
        preemptions=2,
        device_losses=1,
        moved_pages=4,
        drafts=1200,
        drafted_tokens=4800,
        accepted_tokens=3840,
        accepted_at={1: 1100, 2: 900},
        undrafted={"penalties": 1, "steering": 2000},
    )
    lanes = replace(STATS, scheduler=busy, unexpected_compilations=1, lanes=(busy, hits))
    states = {"a session's": readable(STATS), "a scheduler's": readable(hits), "of lanes": readable(lanes)}
    ruled_out = replace(hits, undrafted={"bad_words": 3})
    assert "| drafts | ruled out for 3 requests by bad_words\n" in readable(ruled_out)
    assert len({hits, replace(hits), ruled_out}) == 2
    assert_card("stats", states)


def test_the_card_of_what_was_restored_is_that_of_its_file() -> None:
    differences = {"statics": ('"num_pages": 40', '"num_pages": 33'), "salt": ("0.9\n\x1b[31m", "")}
    long = tuple("; ".join(f"{name}: {pages} x float32[2, 3]" for name in range(99)) for pages in (129, 65))
    restored = RestoreReport(8, 8, 1, 1200, 76800, 2.314, 33.84, {})
    states = {
        "all": replace(restored, compile_seconds=0.0),
        "some": replace(restored, programs=3),
        "one was damaged": replace(restored, programs=7),
        "beside a cold start": replace(restored, cold_seconds=23.4, to_compile=5),
        "what differs": replace(restored, differences=differences),
        "what differs is long": RestoreReport(0, 0, 6, 0, 0, 2.314, 0.0, {"arguments": (long[0], long[1])}),
    }
    assert_card("restored", {state: readable(each) for state, each in states.items()})


def test_the_card_of_a_cache_is_that_of_its_file() -> None:
    tree = PrefixTree(4)
    published(tree, "begins <one> way", hits=2)
    published(tree, "begins otherwise", hits=3)
    tree.lock(tree.match("", [ord(letter) for letter in "begins otherwise"])[-1])
    published(tree, "same", salt="secret")
    for node in tree.next_to_offload(2):
        tree.add_host_copy(node, 1)
    states = {"prefixes": viewed(tree), "drawn": viewed(tree).draw(), "nothing drawn": viewed(PrefixTree(4)).draw()}
    assert_card("cache", {state: readable(each) for state, each in states.items()})


def test_the_card_of_a_trace_is_that_of_its_file() -> None:
    def planned(
        tick: int, *rows: int, chunks: tuple[ChunkRecord, ...] = (), preempted: tuple[int, ...] = ()
    ) -> list[Any]:
        return [PlanRecord(tick, chunks, rows, 0, preempted), DispatchRecord(tick), ReadbackRecord(tick)]

    facts = [
        *(JoinRecord(name, 40 if name == 1 else 20, False) for name in (1, 2, 3)),
        *(StartRecord(1, 40, 16), StartRecord(2, 20, 0), EndRecord(9, "rejected", "no tokenizer")),
        *planned(1, chunks=(ChunkRecord(1, 16, 24, True), ChunkRecord(2, 0, 16, False))),
        *(TokensRecord(1, (1,)), JoinRecord(4, 64, True)),
        *(*planned(2, 1, chunks=(ChunkRecord(2, 16, 4, True),)), TokensRecord(2, (1, 2))),
        *(
            *planned(3, 1, preempted=(2,)),
            TokensRecord(3, (1,)),
            *planned(4, 1),
            TokensRecord(4, (1,)),
            StopRecord(1, 3),
            EndRecord(1, "stop", ""),
        ),
        *(*planned(5, chunks=(ChunkRecord(2, 0, 21, True),)), TokensRecord(5, (2,)), EndRecord(3, "cancelled", "")),
        *(
            *planned(6, 2, chunks=(ChunkRecord(4, 0, 64, False),)),
            TokensRecord(6, (2,)),
            EndRecord(4, "held", ""),
            EndRecord(2, "length", ""),
        ),
    ]
    timeline = draw(Timeline(recorded(*facts)))
    trace, _ = traced()
    with fake_session() as session:
        new = session.trace()
    assert "timeline trace.timeline()" in readable(trace)
    assert_card("trace", {"not begun": readable(new), "its timeline": readable(timeline)})


def test_the_card_of_answers_is_that_of_its_file() -> None:
    good, bad = generated("One,\ntwo", 5, 6, 7), InvalidRequest("the prompt is empty")
    one: Answers[Any] = Answers([good, bad, None], ["a", "<b>" + "word " * 40, "c"])
    draws: Answers[Any] = Answers([Answers([good, good], ["a", "a"]), Answers([good, good], ["b", "b"])], ["a", "b"])
    states = {"each outcome": one, "several draws": draws, "none": Answers[Any]([])}
    assert_card("answers", {state: readable(answers) for state, answers in states.items()})


def test_the_card_of_a_dashboard_is_that_of_its_file() -> None:
    busy = Rate(now=148.25, mean=120.5, seconds=60.3, history=(100.0, 200.0))
    single = replace(EMPTY.stats, scheduler=replace(COUNTS, prompt_tokens=1, running=1))
    drafts = replace(COUNTS, drafts=1200, drafted_tokens=4800, accepted_tokens=3840)
    states = {
        "busy": Board(FACTS, busy),
        "nothing done": Board(EMPTY, Rate()),
        "one of each": Board(replace(EMPTY, stats=single, restored_pages=1), Rate()),
        "failed": Board(replace(EMPTY, state="failed: no more <b>", has_ended=True), Rate()),
        "with drafts": Board(replace(EMPTY, stats=replace(EMPTY.stats, scheduler=drafts)), Rate()),
    }
    assert_card(
        "dashboard",
        {state: f"{board}\n\n---- HTML\n\n{as_read(Page(board_html(board)))}" for state, board in states.items()},
    )
