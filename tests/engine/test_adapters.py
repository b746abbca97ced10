"""Adapters serve beside each other: each request has the tokens of merged weights, and swaps compile nothing."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import rekindle
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.lora import LowRank
from rekindle_kernels.cpu.library import unavailable_reason
from tests.compilations import listen
from tests.engine.small import SMALL
from tests.unit.lora import config_of, merged, random_parts, saved, tensors_of
from tests.waiting import PATIENCE

PROMPT = list(range(1, 80))
ASKED: dict[str, Any] = {"token_ids": PROMPT, "max_tokens": 12, "ignore_eos": True, "logprobs": 2}
SCORED: dict[str, Any] = {"token_ids": PROMPT[:40], "max_tokens": 0, "prompt_logprobs": 1}
LONG: dict[str, Any] = {"token_ids": [5, 6, 7] * 20, "max_tokens": 150, "ignore_eos": True}
RANK = 3
ROOM: Any = SMALL | {"max_adapters": 2, "max_adapter_rank": RANK}


@pytest.fixture(scope="module")
def model(families: Path) -> Path:
    """Return a model with a head of its own, biases, and keys of fewer heads than queries."""
    return families / "qwen2"


@pytest.fixture(scope="module")
def adapters(model: Path) -> list[dict[str, LowRank]]:
    """Return three adapters of all layers and the head."""
    return [random_parts(open_checkpoint(model).config, RANK, seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def expected(model: Path, adapters: list[dict[str, LowRank]]) -> list[tuple[Any, Any]]:
    """Return the answers to `ASKED` and `SCORED` by the model alone, and by each of the merged models."""
    checkpoint = open_checkpoint(model)
    with rekindle.open_sync(model, progress=False, precompile="lazy", prefix_cache=False, **SMALL) as session:
        answers = [(session.generate_sync(**ASKED), session.generate_sync(**SCORED))]
        for parts in adapters:
            session.update_weights_sync(merged(checkpoint.config, checkpoint.tensors, parts))
            answers.append((session.generate_sync(**ASKED), session.generate_sync(**SCORED)))
    assert len({answer.token_ids for answer, _ in answers}) == len(answers), "they differ"
    return answers


@pytest.fixture(scope="module")
def directory(adapters: list[dict[str, LowRank]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("adapters") / "first", adapters[0])


@pytest.fixture
def session(model: Path, directory: Path) -> Iterator[rekindle.Session]:
    """Return a session with the first adapter."""
    with rekindle.open_sync(model, progress=False, precompile="lazy", adapters={"one": directory}, **ROOM) as session:
        yield session


def put(session: rekindle.Session, name: str, parts: dict[str, LowRank]) -> None:
    session.add_adapter_sync(name, tensors=tensors_of(parts), config=config_of(parts))


def logprobs(generation: rekindle.Generation) -> list[float]:
    return [each.logprob for each in (*(generation.logprobs or ()), *(generation.prompt_logprobs or ())) if each]


def assert_as(answer: rekindle.Generation, other: rekindle.Generation) -> None:
    assert answer.token_ids == other.token_ids
    np.testing.assert_allclose(logprobs(answer), logprobs(other), rtol=0, atol=2e-5)


def test_answers_and_scores_are_those_of_merged_weights_alone_and_in_a_mixed_batch(
    session: rekindle.Session, adapters: list[dict[str, LowRank]], expected: list[tuple[Any, Any]]
) -> None:
    put(session, "two", adapters[1])
    names = [None, "one", "two"]
    alone = [[session.generate_sync(adapter=name, **asked) for asked in (ASKED, SCORED)] for name in names]
    for own, others in zip(alone, expected, strict=False):
        for answer, other in zip(own, others, strict=True):
            assert_as(answer, other)
    for order in (names, names[::-1], ["two", None, "one", None]):
        for place, asked in enumerate((ASKED, SCORED)):
            session.pause_sync()  # so that all are in the same ticks
            handles = [session.submit(adapter=name, cache_salt=str(order), **asked) for name in order]
            session.resume()
            answers = [handle.result(timeout=PATIENCE) for handle in handles]
            for name, answer in zip(order, answers, strict=True):
                assert_as(answer, alone[names.index(name)][place])
                if unavailable_reason() is None:
                    assert logprobs(answer) == logprobs(alone[names.index(name)][place]), "bit for bit"


@pytest.mark.skipif(unavailable_reason() is not None, reason="only native kernels keep rows apart")
def test_rows_without_an_adapter_have_the_bits_of_a_session_without_adapters(
    session: rekindle.Session, expected: list[tuple[Any, Any]]
) -> None:
    session.pause_sync()
    handles = [session.submit(adapter=name, **asked) for name in (None, "one") for asked in (ASKED, SCORED)]
    session.resume()
    answers = [handle.result(timeout=PATIENCE) for handle in handles]
    for answer, other in zip(answers, expected[0], strict=False):
        assert (answer.token_ids, logprobs(answer)) == (other.token_ids, logprobs(other))


def test_embeddings_scores_and_prefixes_take_adapters_too(
    session: rekindle.Session, model: Path, adapters: list[dict[str, LowRank]], expected: list[tuple[Any, Any]]
) -> None:
    checkpoint = open_checkpoint(model)
    vectors = [session.embed_sync(token_ids=PROMPT, adapter=name, pooling="mean") for name in (None, "one")]
    perplexities = [session.perplexity_sync(token_ids=PROMPT, adapter=name) for name in (None, "one")]
    with session.prefix_sync(token_ids=PROMPT[:64], adapter="one") as prefix:
        answer = prefix.generate_sync(**(ASKED | {"token_ids": PROMPT[64:]}))
        assert (answer.token_ids, answer.cached_tokens) == (expected[1][0].token_ids, 64)
        with pytest.raises(rekindle.InvalidRequest, match="adapter is an option of session"):
            prefix.generate_sync(token_ids=[1], adapter="one")
    with pytest.raises(rekindle.InvalidRequest, match="there is no adapter 'oen'; the session has 'one'"):
        session.embed_sync(token_ids=PROMPT, adapter="oen")
    session.update_weights_sync(merged(checkpoint.config, checkpoint.tensors, adapters[0]))
    np.testing.assert_allclose(session.embed_sync(token_ids=PROMPT, pooling="mean"), vectors[1], rtol=0, atol=1e-5)
    assert float(session.perplexity_sync(token_ids=PROMPT)) == pytest.approx(float(perplexities[1]), rel=1e-5)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-2


def test_prefixes_belong_to_the_numbers_of_an_adapter_and_not_to_its_name(
    session: rekindle.Session, adapters: list[dict[str, LowRank]]
) -> None:
    def cached(name: str | None) -> int:
        return session.generate_sync(token_ids=PROMPT, max_tokens=1, adapter=name).cached_tokens

    assert [cached(name) for name in (None, "one", None, "one")] == [0, 0, 64, 64]
    put(session, "two", adapters[1])
    assert [cached("two"), cached("two")] == [0, 64]
    put(session, "one", adapters[1])
    assert cached("one") == 64, "the numbers of the second adapter"
    put(session, "one", adapters[2])
    assert cached("one") == 0
    put(session, "one", adapters[0])
    assert cached("one") == 64, "the first numbers again"


@pytest.mark.wide
def test_swaps_under_load_compile_nothing_and_requests_end_with_the_adapter_that_they_began_with(
    session: rekindle.Session, adapters: list[dict[str, LowRank]], expected: list[tuple[Any, Any]]
) -> None:
    """Ask from two threads, for the model alone and for whatever adapter there is, while it is replaced."""
    tokens = [answer.token_ids for answer, _ in expected]
    for name in (None, "one"):
        session.generate_sync(adapter=name, **ASKED)
    put(session, "one", adapters[0])  # the second one comes over another path on the host
    events, compilations, stop = listen(), session.stats.compilations, threading.Event()
    answers: dict[str | None, list[Any]] = {None: [], "one": []}

    def ask(name: str | None) -> None:
        while not stop.is_set():
            answers[name].append(session.generate_sync(adapter=name, **ASKED).token_ids)

    threads = [threading.Thread(target=ask, args=(name,)) for name in answers]
    for thread in threads:
        thread.start()
    try:
        for turn in range(9):
            put(session, "one", adapters[turn % 3])
            count = len(answers["one"])
            done = threading.Event()
            while len(answers["one"]) < count + 2 and not done.wait(0.01):
                pass
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert session.stats.compilations == compilations
    assert not events, "nothing was traced, lowered or compiled"
    assert set(answers[None]) == {tokens[0]}
    assert set(answers["one"]) == set(tokens[1:])
    assert session.adapters["one"].requests == 0


@pytest.mark.wide
def test_a_removed_adapter_is_refused_at_once_and_serves_who_named_it_before(
    session: rekindle.Session, adapters: list[dict[str, LowRank]]
) -> None:
    alone = session.generate_sync(adapter="one", **LONG).token_ids
    session.pause_sync()
    running = session.submit(adapter="one", **LONG)
    while not running.record.pieces.items:
        session.step_sync()
    waiting = session.submit(adapter="one", **LONG)
    assert session.adapters["one"].requests == 2
    session.remove_adapter_sync("one")
    assert session.adapters == {}
    with pytest.raises(rekindle.InvalidRequest, match="there is no adapter 'one'; the session has none"):
        session.submit(adapter="one", **LONG)
    with pytest.raises(rekindle.InvalidRequest, match="there is no adapter 'one'"):
        session.remove_adapter_sync("one")
    session.resume()
    put(session, "one", adapters[1])
    other = session.submit(adapter="one", **LONG)
    assert [each.result(timeout=PATIENCE).token_ids for each in (running, waiting)] == [alone, alone]
    assert other.result(timeout=PATIENCE).token_ids != alone
    put(session, "two", adapters[0])
    assert session.generate_sync(adapter="two", **LONG).token_ids == alone


def test_new_weights_and_a_sleep_leave_adapters_as_they_are(
    session: rekindle.Session, model: Path, adapters: list[dict[str, LowRank]], expected: list[tuple[Any, Any]]
) -> None:
    checkpoint = open_checkpoint(model)
    session.generate_sync(adapter="one", **ASKED)
    compilations = session.stats.compilations
    session.update_weights_sync(merged(checkpoint.config, checkpoint.tensors, adapters[1]))
    both = session.generate_sync(adapter="one", **ASKED)
    assert both.cached_tokens == 0
    assert session.generate_sync(**ASKED).token_ids == expected[2][0].token_ids
    session.sleep_sync()
    waiting = session.submit(adapter="one", **ASKED)
    session.wake_sync(model)
    assert waiting.result(timeout=PATIENCE).token_ids == expected[1][0].token_ids != both.token_ids
    assert session.stats.compilations == compilations


@pytest.mark.wide
def test_a_session_after_a_restart_finds_programs_and_prefixes_of_the_same_numbers(
    model: Path, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give the adapter another name the second time; the first session is without any at first."""
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path))
    with rekindle.open_sync(model, progress=False, precompile="lazy", **ROOM) as session:
        session.add_adapter_sync("one", directory)
        first = session.generate_sync(adapter="one", **ASKED)
        assert session.stats.compilations
        session.save_sync(progress=False)
    with rekindle.open_sync(model, progress=False, precompile="lazy", adapters={"uno": directory}, **ROOM) as session:
        again = session.generate_sync(adapter="uno", **ASKED)
        assert (again.token_ids, again.cached.disk) == (first.token_ids, 64)
        assert session.stats.compilations == 1, "the copy of pages into the pool, which the first did not need"
        assert session.generate_sync(**ASKED).cached_tokens == 0


@pytest.mark.wide
def test_all_programs_for_adapters_are_prepared_where_they_are_expected(model: Path, directory: Path) -> None:
    with rekindle.open_sync(model, progress=False, precompile="all", adapters={"one": directory}, **ROOM) as session:
        memory, loaded = session.memory, session.stats.compilations + session.stats.loads
        session.generate_sync(adapter="one", **ASKED)
        assert session.stats.compilations + session.stats.loads == loaded
        assert memory.adapters > 0
        assert "adapters" in repr(memory)
    with rekindle.open_sync(model, progress=False, precompile="lazy", restore="off", **SMALL) as session:
        assert session.memory.adapters == 0
        session.generate_sync(**ASKED)
        programs = session.stats.programs
        session.add_adapter_sync("one", directory)
        assert session.memory.adapters > 0
        assert session.stats.programs == programs + 1, "that puts an adapter into its place"


@pytest.mark.wide
def test_several_steps_a_tick_and_lanes_give_the_same_tokens(
    model: Path, directory: Path, expected: list[tuple[Any, Any]]
) -> None:
    options: Any = {"progress": False, "precompile": "lazy", "adapters": {"one": directory}}
    for more in ({"decode_steps": 4}, {"replicas": 2}, {"prefill": "cpu:0", "decode": "cpu:0", "prefill_from": 16}):
        with rekindle.open_sync(model, **options, **(ROOM | more)) as session:
            handles = [session.submit(adapter=name, **ASKED) for name in ("one", None, "one", None)]
            answers = [handle.result(timeout=PATIENCE).token_ids for handle in handles]
            assert answers == 2 * [expected[1][0].token_ids, expected[0][0].token_ids]


def test_arrays_of_jax_are_taken_and_what_does_not_fit_changes_nothing(
    session: rekindle.Session, adapters: list[dict[str, LowRank]], expected: list[tuple[Any, Any]]
) -> None:
    arrays = {name: jnp.asarray(array) for name, array in tensors_of(adapters[1]).items()}
    session.add_adapter_sync("two", tensors=arrays, config=config_of(adapters[1]))
    assert session.generate_sync(adapter="two", **ASKED).token_ids == expected[2][0].token_ids
    with pytest.raises(rekindle.InvalidRequest, match="has 2 adapters, as many as it has room for: 'one', "):
        put(session, "three", adapters[2])
    large = {name: LowRank(np.repeat(part.a, 2, 0), np.repeat(part.b, 2, 1), 1) for name, part in adapters[2].items()}
    with pytest.raises(rekindle.UnsupportedModel, match="has rank 6, and this session has room for rank 3"):
        put(session, "one", large)
    wrong: list[dict[str, Any]] = [{"tensors": arrays}, {"config": {}}, {"path": "x", "config": {}}]
    for arguments in wrong:
        with pytest.raises(rekindle.InvalidRequest, match="an adapter is the path of its directory, or tensors= and"):
            session.add_adapter_sync("one", **arguments)
    with pytest.raises(rekindle.InvalidRequest, match=r'add_adapter\("name", "DIRECTORY"\)'):
        session.add_adapter_sync("adapters/one")
    with pytest.raises(rekindle.InvalidRequest, match="at least one character"):
        session.add_adapter_sync("", "path")
    with pytest.raises(rekindle.ModelNotFound):
        session.add_adapter_sync("one", "/nowhere/at/all")
    assert session.generate_sync(adapter="one", **ASKED).token_ids == expected[1][0].token_ids
    assert list(session.adapters) == ["one", "two"]


def test_settings_without_room_for_the_adapters_of_open_are_refused(model: Path, directory: Path) -> None:
    def open_with(**more: Any) -> None:
        options: Any = SMALL | more
        rekindle.open_sync(model, progress=False, precompile="lazy", **options)

    with pytest.raises(rekindle.ConfigError, match="max_adapters is 1, and adapters has 2"):
        open_with(adapters={"a": directory, "b": directory}, max_adapters=1)
    with pytest.raises(rekindle.ConfigError, match="max_adapter_rank is 2, and 'a' has rank 3"):
        open_with(adapters={"a": directory}, max_adapter_rank=2)
    with pytest.raises(rekindle.ConfigError, match="adapters must map names to directories"):
        open_with(adapters=[directory])
    with pytest.raises(rekindle.ConfigError, match="adapters are for a session in one process"):
        open_with(adapters={"a": directory}, replicas=rekindle.Ray(2))
    with pytest.raises(rekindle.ModelNotFound, match="no adapter_config"):
        open_with(adapters={"a": model})
    with pytest.raises(rekindle.ConfigError, match="max_adapters must be an integer of at least 1"):
        open_with(max_adapters=0)
