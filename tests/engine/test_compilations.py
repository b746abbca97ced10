"""In ahead-of-time mode, no request makes anything compile after `open`."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.core.policy import Ticks
from rekindle.settings.engine import SettingsOptions
from tests.compilations import COMPILED
from tests.waiting import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore::rekindle.ParametersIgnored")  # some are mixed with temperature 0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a cache directory of these tests alone, in which no program is stored yet."""
    directory = tmp_path_factory.mktemp("cache")
    directory.chmod(0o700)
    return directory


@pytest.mark.parametrize(
    ("ticks", "programs"),
    [
        ("alternate", 8),
        pytest.param("prefill-first", 8, marks=pytest.mark.deep),
        pytest.param("combined", 10, marks=pytest.mark.wide),
    ],
)
def test_nothing_is_compiled_after_open(
    ticks: Ticks,
    programs: int,
    families: Path,
    cache: Path,
    compilations: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run mixed lengths and parameters, requests that join, cancels, and restarts for want of pages."""
    monkeypatch.setenv("REKINDLE_CACHE", str(cache))
    rng = np.random.default_rng(0)
    with rekindle.open_sync(
        families / "llama-tied",
        progress=False,
        ticks=ticks,
        page_size=16,
        num_pages=21,
        max_running=8,
        max_prefill_tokens=128,
        max_context=256,
        prefill_buckets=(128,),
        decode_buckets=(2, 8),
        precompile="all",
        disk_cache_bytes=0,
    ) as session:
        assert compilations.count(COMPILED) >= session.stats.compilations
        assert session.stats.compilations + session.stats.loads == programs
        compilations.clear()
        handles = []
        for i in range(40):
            handles.append(
                session.submit(
                    token_ids=rng.integers(0, 512, rng.integers(1, 120)).tolist(),
                    max_tokens=int(rng.integers(1, 120)),
                    temperature=float(rng.choice([0.0, 0.7, 1.5])),
                    top_k=int(rng.choice([0, 1, 40])),
                    top_p=float(rng.choice([1.0, 0.9])),
                    min_p=float(rng.choice([0.0, 0.1])),
                    seed=i,
                    ignore_eos=bool(i % 2),
                    stop_token_ids=[3, 4],
                    min_tokens=int(rng.choice([0, 1])),
                    repetition_penalty=float(rng.choice([1.0, 1.2])),
                    frequency_penalty=float(rng.choice([0.0, 0.5])),
                    presence_penalty=float(rng.choice([0.0, -0.5])),
                    logit_bias={7: 1.0} if i % 3 else {},
                    allowed_token_ids=range(500) if i % 4 == 0 else None,
                    bad_words=[[1, 2], [5]] if i % 5 == 0 else [],
                    logprobs=int(rng.integers(0, 20)) if i % 3 == 0 else None,
                    prompt_logprobs=int(rng.integers(0, 20)) if i % 4 == 0 else None,
                )
            )
            if i % 5 == 0:
                handles[int(rng.integers(len(handles)))].cancel()
            if i % 10 == 0:  # beside those that generate, and out of what they cached
                texts = rng.integers(0, 512, (3, 40)).tolist()
                session.embed_sync(token_ids=texts, pooling="mean" if i else "last")
                session.perplexity_sync(token_ids=texts[0], window=int(rng.integers(2, 40)))
            if i % 7 == 0:
                next(iter(session.stream_sync(token_ids=[5, 6, 7], max_tokens=9)), None)
        for handle in handles:
            with suppress(rekindle.RequestCancelled):
                handle.result(timeout=PATIENCE)
        assert session.stats.scheduler.preemptions > 0, "the pool was meant to be short"
        assert session.stats.unexpected_compilations == 0
        assert compilations == []


@pytest.mark.wide
def test_just_in_time_mode_compiles_each_bucket_once(families: Path) -> None:
    with rekindle.open_sync(families / "llama-tied", progress=False, precompile="lazy", restore="off") as session:
        assert session.stats.compilations == 1, "the program that makes the empty state"
        first = session.generate_sync(token_ids=[1, 2, 3], max_tokens=4, ignore_eos=True)
        assert session.stats.compilations == 3, "one prefill and one decode bucket"
        second = session.generate_sync(token_ids=[1, 2, 3], max_tokens=4, ignore_eos=True)
        assert second.token_ids == first.token_ids
        assert session.stats.compilations == 3
        for _ in range(2):
            session.generate_sync(token_ids=[1, 2, 3], max_tokens=4, repetition_penalty=1.1, logprobs=3)
            assert session.stats.compilations == 4, "the program that enters a slot"


@pytest.mark.wide
def test_programs_are_evicted_least_recently_used_first_and_made_again(families: Path) -> None:
    """Use two programs by turns where there is room for one: the prefill step, and that which enters a slot."""
    settings: SettingsOptions = {"precompile": "lazy", "restore": "off", "max_executables": 1}
    asked: dict[str, Any] = {"token_ids": [1, 2, 3], "max_tokens": 1, "logit_bias": {7: 1.0}}
    with rekindle.open_sync(families / "llama-tied", progress=False, **settings) as session:
        session.generate_sync(**asked)
        assert session.stats.unexpected_compilations == 0
        with pytest.warns(RuntimeWarning, match="evicted, because max_executables=1") as told:
            session.generate_sync(**asked)
        assert session.stats.programs == 1
        assert session.stats.compilations == 1 + 4
        assert session.stats.unexpected_compilations == len(told) == 2
