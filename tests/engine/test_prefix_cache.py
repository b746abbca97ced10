"""Whatever the prefix cache finds, in any tier, the tiny models give the same tokens as without a cache."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.core.engine.actors.host_tier import HostTier
from rekindle.core.scheduler.scheduler import Scheduler
from rekindle.settings.engine import SettingsOptions
from tests.engine.sampled import MIXED, SEEDED
from tests.engine.small import SMALL
from tests.waiting import PATIENCE

PAGE = 16
HOST_PAGES = 112
"""The pages of the host tier; the pool has a quarter as many."""
IN_MEMORY: SettingsOptions = {"precompile": "all", "disk_cache_bytes": 0}
COMBINED: SettingsOptions = {"ticks": "combined", "prefill_chunk": 16, "overlap": False}
WAYS: dict[str, tuple[str, SettingsOptions]] = {
    "llama-tied": ("llama-tied", {}),
    "qwen3, combined ticks, chunks of 16, no overlap": ("qwen3", COMBINED),
    "qwen2, longest prefix first": ("qwen2", {"policy": "longest-prefix"}),
    "llama3-rope": ("llama3-rope", {}),
    "llama-tied, int8": ("llama-tied", {"kv_dtype": "int8"}),
}
WIDE = ("qwen3, combined ticks, chunks of 16, no overlap", "llama-tied, int8")
PAGE_BYTES = {"qwen3": 24576, "llama-tied": 12288, "qwen2": 12288, "llama3-rope": 12288}
INT8_BYTES = 3840
"""The bytes of a page of llama-tied in int8: heads of 16 numbers and a scale."""
GREEDY: dict[str, Any] = {}
PENALTY: dict[str, Any] = {"repetition_penalty": 1.3}
NEW = 20

Ask = tuple[list[int], dict[str, Any]]


def tokens(seed: int, count: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 512, count).tolist()
    return ids


DOCUMENT = tokens(0, 5 * PAGE)
ASKS: list[Ask] = [
    ([*DOCUMENT, *tokens(place, count)], options)
    for place, (count, options) in enumerate(((0, GREEDY), (1, SEEDED), (5, MIXED), (15, PENALTY), (16, GREEDY)), 1)
]
OTHERS: list[Ask] = [(tokens(100 + place, 7 + 30 * place), options) for place, options in enumerate((MIXED, GREEDY))]


@dataclass
class Pair:
    """A session with a small cache, and one without any."""

    cached: rekindle.Session
    plain: rekindle.Session
    answers: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def expected(self, ask: Ask) -> tuple[int, ...]:
        """Return the answer of the session without a cache."""
        key = repr(ask)
        if key not in self.answers:
            answer = self.plain.generate_sync(token_ids=ask[0], max_tokens=NEW, ignore_eos=True, **ask[1])
            assert answer.cached_tokens == 0
            self.answers[key] = answer.token_ids
        return self.answers[key]

    def check_together(self, asks: Sequence[Ask]) -> list[int]:
        """Submit all requests at once and check the answers; return the number of tokens each found in the cache."""
        handles = [
            self.cached.submit(token_ids=prompt, max_tokens=NEW, ignore_eos=True, **options) for prompt, options in asks
        ]
        answers = [handle.result(timeout=PATIENCE) for handle in handles]
        for ask, answer in zip(asks, answers, strict=True):
            assert answer.token_ids == self.expected(ask)
        return [answer.cached_tokens for answer in answers]

    def crowd_out(self, seed: int, pages: int) -> None:
        """Let other requests use this many pages, one after the other."""
        for turn in range(pages // 7):
            self.cached.generate_sync(token_ids=tokens(seed + turn, 7 * PAGE), max_tokens=1)

    def assert_nothing_is_left(self) -> None:
        """Check the pages (each free or evictable), the host entries (each known) and the sums of tokens."""
        scheduler, host_tier = (
            self.cached._engine.facts.lanes[0].actors.scheduler,
            self.cached._engine.facts.lanes[0].actors.host_tier,
        )
        assert isinstance(scheduler, Scheduler)
        assert isinstance(host_tier, HostTier)
        for _ in range(100):  # a save may still be on its way
            self.cached.generate_sync(token_ids=[1], max_tokens=1)
            if len(host_tier) == self.cached.stats.scheduler.host_pages:
                break
        stats = self.cached.stats.scheduler
        assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)
        assert len(host_tier) == stats.host_pages <= HOST_PAGES
        assert stats.prompt_tokens == stats.device_hit_tokens + stats.host_hit_tokens + stats.computed_tokens
        scheduler.look(lambda tree: scheduler.check())


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, families: Path) -> Iterator[Pair]:
    family, way = WAYS[request.param]
    kv_dtype = way.get("kv_dtype")
    page_bytes = INT8_BYTES if kv_dtype == "int8" else PAGE_BYTES[family]
    small: SettingsOptions = {**SMALL, **IN_MEMORY, **way, "host_cache_bytes": HOST_PAGES * page_bytes}
    none: SettingsOptions = {**SMALL, **IN_MEMORY, "kv_dtype": kv_dtype, "prefix_cache": False, "precompile": "lazy"}
    with (
        rekindle.open_sync(families / family, progress=False, **small) as cached,
        rekindle.open_sync(families / family, progress=False, **none) as plain,
    ):
        yield Pair(cached, plain)


EVERY_WAY = pytest.mark.parametrize(
    "pair",
    [
        pytest.param(way, marks=pytest.mark.wide if way in WIDE else pytest.mark.deep if at else ())
        for at, way in enumerate(WAYS)
    ],
    indirect=True,
)
ONE_WAY = pytest.mark.parametrize("pair", ["llama-tied"], indirect=True)


@EVERY_WAY
def test_tokens_are_those_of_no_cache_wherever_the_pages_are(pair: Pair, compilations: list[str]) -> None:
    """Hold cold, warm, offloaded, onloaded and pruned, and with hits of both tiers beside misses; compile nothing."""
    for ask in [*ASKS, *OTHERS]:
        pair.expected(ask)
    compilations.clear()

    assert pair.check_together(ASKS) == [0, 80, 80, 80, 80], "cold; they wait for the one that computes"
    assert pair.check_together(ASKS) == [64, 80, 80, 80, 80], "warm"
    assert [pair.check_together([ask])[0] for ask in ASKS] == [64, 80, 80, 80, 80], "and one by one"
    assert pair.cached.stats.scheduler.host_hit_tokens == 0

    for turn in range(3):
        pair.crowd_out(1000 * (turn + 1), 28)
        before = pair.cached.stats.scheduler
        other = OTHERS[turn % 2]
        assert min(pair.check_together([ASKS[-1], other, *ASKS[:-1]])[2:]) >= 64
        after = pair.cached.stats.scheduler
        assert after.host_hit_tokens - before.host_hit_tokens >= 80, "onloaded"
        assert after.device_hit_tokens > before.device_hit_tokens, "beside hits"
        assert after.computed_tokens > before.computed_tokens + len(other[0]) // PAGE, "and misses"

    pair.crowd_out(5000, 2 * HOST_PAGES)
    assert pair.check_together(ASKS[:1]) == [0], "pruned"
    assert pair.check_together(ASKS) == [64, 80, 80, 80, 80]

    pair.assert_nothing_is_left()
    assert pair.cached.stats.unexpected_compilations == 0
    assert compilations == []


@ONE_WAY
@pytest.mark.parametrize("count", [2, 16])
def test_identical_requests_compute_the_prompt_once_and_agree(pair: Pair, count: int) -> None:
    """Hold also where they outnumber the slots; each computes at least the last token, which gives the next."""
    prompt = tokens(50 + count, 100)
    expected = pair.expected((prompt, {}))
    before = pair.cached.stats.scheduler
    answers = pair.cached.generate_sync(token_ids=[prompt] * count, max_tokens=NEW, ignore_eos=True)
    after = pair.cached.stats.scheduler
    assert [answer.token_ids for answer in answers] == [expected] * count
    assert sorted(answer.cached_tokens for answer in answers) == [0] + [96] * (count - 1)
    assert after.computed_tokens - before.computed_tokens == 100 + 4 * (count - 1)


@ONE_WAY
def test_several_draws_compute_the_prompt_once(pair: Pair) -> None:
    prompt = tokens(60, 100)
    options: dict[str, Any] = {"max_tokens": NEW, "ignore_eos": True, **SEEDED}
    before = pair.cached.stats.scheduler.computed_tokens
    draws = pair.cached.generate_sync(token_ids=prompt, n=3, **options)
    assert pair.cached.stats.scheduler.computed_tokens - before == 100 + 2 * 4
    assert draws == pair.plain.generate_sync(token_ids=prompt, n=3, **options)
    assert len({draw.token_ids for draw in draws}) == 3


@ONE_WAY
def test_the_next_turn_finds_what_was_generated_and_penalties_know_all_of_it(pair: Pair) -> None:
    turn = tokens(70, 40)
    for place in range(4):
        ask: Ask = (turn, MIXED)
        (hits,) = pair.check_together([ask])
        assert hits == (len(turn) - 5) // PAGE * PAGE if place else hits == 0
        turn = [*turn, *pair.expected(ask), *tokens(71 + place, 4)]


@ONE_WAY
def test_a_salt_shares_with_its_like_alone(pair: Pair) -> None:
    prompt = tokens(80, 50)
    for salt in ("", "one", "other", "one "):
        cold = pair.cached.generate_sync(token_ids=prompt, max_tokens=NEW, ignore_eos=True, cache_salt=salt)
        warm = pair.cached.generate_sync(token_ids=prompt, max_tokens=NEW, ignore_eos=True, cache_salt=salt)
        assert (cold.cached_tokens, warm.cached_tokens) == (0, 48)
        assert cold.token_ids == warm.token_ids == pair.expected((prompt, {}))


@ONE_WAY
def test_log_probabilities_of_cached_prompts_are_those_of_no_cache(pair: Pair) -> None:
    prompt = tokens(90, 70)
    options: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True, "logprobs": 3}
    expected = pair.plain.generate_sync(token_ids=prompt, prompt_logprobs=2, **options)
    pair.cached.generate_sync(token_ids=prompt, **options)

    hit = pair.cached.generate_sync(token_ids=prompt, **options)
    assert (hit.cached_tokens, hit.token_ids, hit.prompt_logprobs) == (64, expected.token_ids, None)
    same_scores(hit.logprobs, expected.logprobs)

    whole = pair.cached.generate_sync(token_ids=prompt, prompt_logprobs=2, **options)
    assert whole.cached_tokens == 0, "log-probabilities of the prompt take computing it"
    same_scores(whole.logprobs, expected.logprobs)
    same_scores(whole.prompt_logprobs, expected.prompt_logprobs)


Scores = Sequence[rekindle.TokenLogprob | None] | None


def same_scores(mine: Scores, theirs: Scores) -> None:
    assert mine is not None
    assert theirs is not None
    for one, other in zip(mine, theirs, strict=True):
        assert (one is None) == (other is None)
        if one and other:
            assert (one.token_id, one.rank) == (other.token_id, other.rank)
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [top.token_id for top in one.top] == [top.token_id for top in other.top]


@ONE_WAY
def test_statistics_count_every_prompt_token_once_and_say_where_it_was(pair: Pair) -> None:
    """Check this because another engine's "hit rate" was that of cached pages among all pages."""
    before = pair.cached.stats.scheduler
    prompts = [[*tokens(110, 48), *tokens(111 + place, place)] for place in range(6)]
    answers = [pair.cached.generate_sync(token_ids=prompt, max_tokens=3, ignore_eos=True) for prompt in prompts]
    after = pair.cached.stats.scheduler
    total = sum(map(len, prompts))
    hits = sum(answer.cached_tokens for answer in answers)
    assert hits == 48 * 5, "the first is a miss, and the others share three pages"
    assert after.prompt_tokens - before.prompt_tokens == total
    assert after.device_hit_tokens - before.device_hit_tokens == hits
    assert after.host_hit_tokens == before.host_hit_tokens
    assert after.computed_tokens - before.computed_tokens == total - hits
    assert (after.ended - before.ended, after.generated_tokens - before.generated_tokens) == (6, 18)
    assert after.cached_pages <= after.pages


@ONE_WAY
def test_the_hottest_prefix_survives_and_is_shown_first(pair: Pair) -> None:
    """Check this because another engine dropped the hottest prefixes first."""
    hot = tokens(120, 4 * PAGE)
    pair.cached.generate_sync(token_ids=hot, max_tokens=1)
    before = pair.cached.stats.scheduler.host_hit_tokens
    for turn in range(40):
        pair.crowd_out(10_000 + 10 * turn, 14)
        assert pair.cached.generate_sync(token_ids=[*hot, turn], max_tokens=1).cached_tokens == 64
    assert pair.cached.stats.scheduler.host_hit_tokens == before, "it never left the device"
    hottest = pair.cached.cache.hottest[0]
    assert (list(hottest.tokens), hottest.hits, hottest.device_pages, hottest.held_pages) == (hot, 40, 4, 0)
    lines = repr(pair.cached.cache).splitlines()
    assert lines[0].startswith(f"<rekindle prefix cache: {pair.cached.cache.nodes} pages of 16 tokens; ")
    assert lines[1].startswith(f"  <40 hits, 4 pages: token ids [{hot[0]}, {hot[1]}, ")


@ONE_WAY
def test_a_held_prefix_stays_on_the_device_while_others_need_all_other_pages(pair: Pair) -> None:
    document = tokens(130, 10 * PAGE)
    with pair.cached.prefix_sync(token_ids=document) as prefix:
        storm = [(tokens(140 + place, 100), GREEDY) for place in range(12)]
        longest = [(tokens(160, 16 * PAGE - NEW), GREEDY)]
        pair.check_together([*storm, *longest])
        host_hits = pair.cached.stats.scheduler.host_hit_tokens
        answer = prefix.generate_sync(token_ids=[7], max_tokens=NEW, ignore_eos=True)
        assert answer.cached_tokens == 160
        assert answer.token_ids == pair.expected(([*document, 7], {}))
        assert pair.cached.stats.scheduler.host_hit_tokens == host_hits
    pair.assert_nothing_is_left()


@ONE_WAY
def test_what_cannot_fit_beside_held_prefixes_is_turned_away_and_others_go_on(pair: Pair) -> None:
    handles = [pair.cached.prefix_sync(token_ids=tokens(170 + place, 10 * PAGE)) for place in range(2)]
    large = pair.cached.submit(token_ids=tokens(172, 130), max_tokens=2)
    small = pair.cached.submit(token_ids=tokens(173, 60), max_tokens=2)
    with pytest.raises(rekindle.PromptTooLong, match=r"prefixes that are held leave 8 of \d+; release"):
        large.result(timeout=PATIENCE)
    assert len(small.result(timeout=PATIENCE).token_ids) == 2
    handles[0].release()
    assert len(pair.cached.generate_sync(token_ids=tokens(172, 130), max_tokens=2).token_ids) == 2
    handles[1].release()
    pair.assert_nothing_is_left()


# The soak


def soak(pair: Pair, requests: int) -> None:
    """Ask about documents that together need eight times the pool, and about the first ones most often."""
    rng = np.random.default_rng(9)
    documents = [tokens(200 + place, 6 * PAGE) for place in range(36)]
    sampling = [GREEDY, SEEDED, MIXED, PENALTY]
    asks: list[Ask] = [
        ([*documents[min(int(rng.exponential(10.0)), 35)], *tokens(300 + tail, 4 + 6 * tail)], sampling[tail])
        for tail in rng.integers(0, 4, requests)
    ]
    under_way: deque[tuple[rekindle.Handle, Ask, bool]] = deque()
    hits = 0
    for ask in asks:
        handle = pair.cached.submit(token_ids=ask[0], max_tokens=NEW, ignore_eos=True, **ask[1])
        under_way.append((handle, ask, rng.random() < 0.2))
        if under_way[-1][2]:
            for _ in range(int(rng.integers(3))):
                next(iter(handle), None)
            handle.cancel()
        while len(under_way) > 8:
            hits += check_one(pair, *under_way.popleft())
    while under_way:
        hits += check_one(pair, *under_way.popleft())
    stats = pair.cached.stats.scheduler
    assert hits > requests * PAGE, "a soak without hits would say little"
    assert stats.host_hit_tokens > 0
    pair.assert_nothing_is_left()


def check_one(pair: Pair, handle: rekindle.Handle, ask: Ask, cancelled: bool) -> int:
    with suppress(rekindle.RequestCancelled):
        answer = handle.result(timeout=PATIENCE)
        assert answer.token_ids == pair.expected(ask)
        return answer.cached_tokens
    assert cancelled, "only who asked for it is cancelled"
    return 0


@pytest.mark.wide
@ONE_WAY
def test_a_soak_of_shared_prefixes_and_cancels_leaves_nothing_and_answers_right(pair: Pair) -> None:
    soak(pair, 150)


@ONE_WAY
@pytest.mark.deep
def test_a_long_soak_of_shared_prefixes_and_cancels_leaves_nothing_and_answers_right(pair: Pair) -> None:
    soak(pair, 2000)
