"""Weights are swapped between requests: nothing compiles, nothing stale is found, and no request mixes two models."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import rekindle
from rekindle.assembly.loading import filling
from rekindle.core.errors import LogitsNotFinite
from rekindle.core.messages import NewWeights
from tests.engine.small import SMALL
from tests.waiting import PATIENCE, until

PROMPT = list(range(1, 80))
ASKED: dict[str, Any] = {"token_ids": PROMPT, "max_tokens": 12, "ignore_eos": True}
LONG: dict[str, Any] = {"token_ids": [5, 6, 7] * 20, "max_tokens": 150, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(families: Path) -> Path:
    return families / "qwen2"


@pytest.fixture(scope="module")
def others(model: Path) -> dict[str, Any]:
    """Return weights of the same structure that give other tokens."""
    tensors = load_file(model / "model.safetensors")
    return {name: array * 1.5 if "q_proj" in name else array for name, array in tensors.items()}


@pytest.fixture(scope="module")
def expected(model: Path, others: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return the tokens of `ASKED` and `LONG` by the other weights, from a session without a cache."""
    with rekindle.open_sync(model, progress=False, precompile="lazy", prefix_cache=False, **SMALL) as session:
        session.update_weights_sync(others)
        return session.generate_sync(**ASKED).token_ids, session.generate_sync(**LONG).token_ids


@pytest.fixture
def session(model: Path) -> Iterator[rekindle.Session]:
    with rekindle.open_sync(model, progress=False, precompile="all", **SMALL) as session:
        yield session


def started(session: rekindle.Session) -> rekindle.Handle:
    """Submit a long request, and pause the engine at its first token, before it can end."""
    session.pause_sync()
    running = session.submit(**LONG)
    while not running.record.pieces.items:
        session.step_sync()
    return running


def update_meanwhile(session: rekindle.Session, weights: Any, *, leave: bool = False, **options: Any) -> None:
    """Request other weights of a paused session; once the message is sent, leave the wait or resume the engine."""

    async def update() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(session.update_weights, weights, **options))
            await until(
                lambda: any(isinstance(each, NewWeights) for each in session.pending["scheduler"]),
                "the scheduler was to hear of other weights",
            )
            if leave:
                tasks.cancel_scope.cancel()
            else:
                session.resume()

    anyio.run(update)


def test_weights_that_diverged_fail_each_request_with_words_and_sound_ones_give_the_same_tokens_as_before(
    session: rekindle.Session, model: Path
) -> None:
    """Ask in each way with numbers of the logits or the states; their leftovers in pages harm nobody."""
    tensors = load_file(model / "model.safetensors")
    name = next(name for name in tensors if "layers.1" in name and "v_proj.weight" in name)
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 1, "top_p": 0.9, "top_k": 9, "min_p": 0.01, "logprobs": 2},
        {"temperature": 1.0, "seed": 1, "repetition_penalty": 1.2, "allowed_token_ids": [3, 4]},
        {"max_tokens": 0, "prompt_logprobs": 1},
    ]
    expected = [session.generate_sync(**(ASKED | way)) for way in ways]
    session.update_weights_sync(tensors | {name: np.full_like(tensors[name], np.nan)})
    handles = [session.submit(**(ASKED | way)) for way in ways]
    for handle in handles:
        with pytest.raises(LogitsNotFinite, match="diverged"):
            handle.result(timeout=PATIENCE)
    with pytest.raises(LogitsNotFinite, match="hidden states"):
        session.embed_sync(token_ids=[5, 6, 7])
    session.update_weights_sync(model)
    again = [session.generate_sync(**(ASKED | way)) for way in ways]
    assert [each.token_ids for each in again] == [each.token_ids for each in expected]
    assert [each.prompt_logprobs for each in again] == [each.prompt_logprobs for each in expected]
    assert session.stats.scheduler.free_pages == session.stats.scheduler.pages


def test_other_weights_give_other_tokens_without_a_stale_prefix_or_a_compilation(
    session: rekindle.Session, model: Path, others: dict[str, Any], expected: tuple[Any, Any]
) -> None:
    before = session.generate_sync(**ASKED)
    compilations = session.stats.compilations
    session.update_weights_sync(others)
    after = session.generate_sync(**ASKED)
    assert after.token_ids == expected[0] != before.token_ids
    assert after.cached_tokens == 0
    assert session.generate_sync(**ASKED).cached_tokens == 64
    session.update_weights_sync(model)
    again = session.generate_sync(**ASKED)
    assert (again.token_ids, again.cached_tokens) == (before.token_ids, 0)
    assert session.stats.compilations == compilations
    assert session.stats.scheduler.free_pages == session.stats.scheduler.pages


def test_what_has_started_finishes_on_the_old_weights_and_what_has_not_waits(
    session: rekindle.Session, others: dict[str, Any], expected: tuple[Any, Any]
) -> None:
    old = session.generate_sync(**LONG).token_ids
    running = started(session)
    update_meanwhile(session, others)
    assert running.done
    assert running.result().token_ids == old
    assert session.generate_sync(**LONG).token_ids == expected[1]


def test_what_has_started_can_be_ended_instead(session: rekindle.Session, others: dict[str, Any]) -> None:
    running = started(session)
    update_meanwhile(session, others, in_flight="fail")
    with pytest.raises(rekindle.WeightsChanged, match="submit it again"):
        running.result(timeout=PATIENCE)
    assert len(session.generate_sync(**ASKED).token_ids) == 12


def test_what_has_started_goes_on_with_the_new_weights_as_if_its_tokens_were_its_prompt(
    session: rekindle.Session, others: dict[str, Any]
) -> None:
    running = started(session)
    update_meanwhile(session, others, in_flight="keep")
    tokens = running.result(timeout=PATIENCE).token_ids
    compilations = session.stats.compilations
    start = len(running.record.pieces.items[0].token_ids)
    suffixes = {
        before: session.generate_sync(
            token_ids=[*LONG["token_ids"], *tokens[:before]], max_tokens=150 - before, ignore_eos=True
        ).token_ids
        for before in range(start, start + 4)  # a few ticks were in flight
    }
    assert any(tokens[before:] == suffix for before, suffix in suffixes.items())
    assert session.stats.compilations == compilations
    assert session.stats.scheduler.free_pages == session.stats.scheduler.pages


def test_a_prefix_handle_outlives_its_weights(
    session: rekindle.Session, others: dict[str, Any], expected: tuple[Any, Any]
) -> None:
    with session.prefix_sync(token_ids=PROMPT[:64]) as prefix:
        session.update_weights_sync(others)
        continued = prefix.generate_sync(token_ids=PROMPT[64:], max_tokens=12, ignore_eos=True)
        assert (continued.token_ids, continued.cached_tokens) == (expected[0], 0)
    assert session.stats.scheduler.free_pages == session.stats.scheduler.pages


def test_weights_that_do_not_fit_change_nothing(
    session: rekindle.Session, others: dict[str, Any], families: Path
) -> None:
    before = session.generate_sync(**ASKED)
    with pytest.raises(rekindle.CheckpointError, match=r"the given weights: missing model\.embed_tokens.* Give all"):
        session.update_weights_sync({})
    with pytest.raises(rekindle.CheckpointError, match=r"model\.norm\.weight must have the shape"):
        session.update_weights_sync({**others, "model.norm.weight": np.zeros(3, np.float32)})
    with pytest.raises(rekindle.UnsupportedModel, match="same structure: expected family 'qwen2'"):
        session.update_weights_sync(families / "llama-tied")
    with pytest.raises(rekindle.ModelNotFound):
        session.update_weights_sync("/nowhere/at/all")
    wrong: Any = "later"
    with pytest.raises(rekindle.InvalidRequest, match="in_flight must be 'finish', 'keep' or 'fail', got 'later'"):
        session.update_weights_sync(others, in_flight=wrong)
    after = session.generate_sync(**ASKED)
    assert (after.token_ids, after.cached_tokens) == (before.token_ids, 64)


@pytest.mark.anyio
async def test_it_can_be_awaited(session: rekindle.Session, others: dict[str, Any], expected: tuple[Any, Any]) -> None:
    await session.update_weights({name: jnp.asarray(array) for name, array in others.items()})
    assert (await session.generate(**ASKED)).token_ids == expected[0]


@pytest.mark.wide
def test_shared_arrays_are_used_where_they_are_and_outlive_the_session(
    model: Path, others: dict[str, Any], expected: tuple[Any, Any]
) -> None:
    arrays = {name: jnp.asarray(array) for name, array in others.items()}
    places = {array.unsafe_buffer_pointer() for name, array in arrays.items() if "norm" in name or "embed" in name}
    with rekindle.open_sync(model, progress=False, precompile="lazy", implementation="xla", **SMALL) as session:
        session.update_weights_sync(arrays)
        assert not places & weight_places(session)
        session.update_weights_sync(arrays, share=True)
        assert places <= weight_places(session)
        norm = arrays.pop("model.norm.weight")
        norm.delete()
        assert session.generate_sync(**ASKED).token_ids == expected[0]
        halves = {name: jnp.asarray(array, jnp.bfloat16) for name, array in others.items()}
        session.update_weights_sync(halves, share=True)
        assert not {array.unsafe_buffer_pointer() for array in halves.values()} & weight_places(session)
    assert not any(array.is_deleted() for array in arrays.values())


def weight_places(session: rekindle.Session) -> set[int]:
    """Return the addresses of a session's weights."""
    stepper: Any = session._engine.facts.lanes[0].actors.stepper
    return {array.unsafe_buffer_pointer() for array in stepper._state.weights}


def test_a_session_that_slept_has_freed_its_device_and_gives_the_same_tokens_without_a_compilation(
    session: rekindle.Session, others: dict[str, Any], expected: tuple[Any, Any]
) -> None:
    before, compilations, memory = session.generate_sync(**ASKED), session.stats.compilations, session.memory
    live = sum(array.nbytes for array in jax.live_arrays())
    session.sleep_sync()
    freed = live - sum(array.nbytes for array in jax.live_arrays())
    assert freed >= memory.weights + memory.pool
    assert (session.memory.weights, session.memory.pool) == (0, 0)
    waiting = session.submit(**ASKED)
    session.wake_sync()
    assert waiting.result(timeout=PATIENCE).token_ids == before.token_ids
    assert (session.memory.weights, session.memory.pool) == (memory.weights, memory.pool)
    running = started(session)
    sleeping = session.submit(**ASKED)
    session.resume()
    session.sleep_sync(in_flight="keep")
    session.wake_sync(others)
    assert sleeping.result(timeout=PATIENCE).token_ids == expected[0]
    assert running.result(timeout=PATIENCE).weights_version[-1][0] == session.weights_version == 1
    assert session.stats.compilations == compilations
    assert session.stats.scheduler.free_pages == session.stats.scheduler.pages


def test_a_closed_session_says_so(session: rekindle.Session, others: dict[str, Any]) -> None:
    session.close_sync()
    with pytest.raises(rekindle.SessionClosed):
        session.update_weights_sync(others)


def test_a_wait_that_is_left_keeps_the_old_weights(session: rekindle.Session, others: dict[str, Any]) -> None:
    """Leave the wait, as an interrupt does, while a started request has still to finish."""
    before = session.generate_sync(**ASKED)
    running = started(session)
    update_meanwhile(session, others, leave=True)
    session.resume()
    assert len(running.result(timeout=PATIENCE).token_ids) == 150
    assert session.generate_sync(**ASKED) == before


def test_a_session_of_shapes_alone_compiles_and_serves_once_it_has_all_tensors(
    model: Path, others: dict[str, Any], expected: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(filling, "load")  # which reads the model's weights
    with rekindle.open_sync(model, progress=False, precompile="all", weights=None, **SMALL) as session:
        session.precompiled_sync(progress=False)
        compilations = session.stats.compilations
        assert "without weights" in repr(session)
        for ask in (session.submit, session.generate_sync):
            with pytest.raises(rekindle.NoWeights, match="has no weights yet: give it all tensors"):
                ask(**ASKED)
        with pytest.raises(rekindle.CheckpointError, match="Give all"):
            session.update_weights_sync({"lm_head.weight": others["lm_head.weight"]})
        session.sleep_sync()
        with pytest.raises(rekindle.InvalidRequest, match="or there were none"):
            session.wake_sync()
        with pytest.raises(rekindle.NoWeights):
            session.submit(**ASKED)
        session.wake_sync(others)
        assert session.generate_sync(**ASKED).token_ids == expected[0]
        assert (session.stats.compilations, session.weights_version) == (compilations, 1)


@pytest.mark.wide
def test_new_weights_of_a_quantized_session_are_quantized(model: Path, others: dict[str, Any]) -> None:
    originals = load_file(model / "model.safetensors")
    with rekindle.open_sync(model, progress=False, quantize="int8", precompile="all", **SMALL) as session:
        first = session.generate_sync(**ASKED).token_ids
        compiled = session.stats.compilations
        session.update_weights_sync(others)
        second = session.generate_sync(**ASKED).token_ids
        session.update_weights_sync({name: jnp.asarray(array) for name, array in originals.items()})
        assert first == session.generate_sync(**ASKED).token_ids != second
        assert session.stats.compilations == compiled
