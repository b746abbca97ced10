"""Steered requests have the tokens of hooks in transformers, and leave the rows beside them as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle_kernels.cpu.library import unavailable_reason
from tests.compilations import listen
from tests.engine.small import SMALL
from tests.waiting import PATIENCE

INSIDE = Path(__file__).parent.parent / "goldens" / "inside.npz"
FEW = ("llama-tied",)
MANY = (
    *(
        "gemma2",
        "gpt2",
        "mixtral",
        "deepseek-v3",
        "cohere",
        "gpt-oss",
        "lfm2",
        "granite",
        "falcon-h1",
        "gpt-neox",
        "nemotron-h",
    ),
    *("phi3-longrope", "llama4"),
)
SHORT: Any = SMALL | {"page_size": 32, "max_context": 192}


def begin(family: str, families: Path, **more: Any) -> rekindle.Session:
    return rekindle.open_sync(families / family, progress=False, precompile="lazy", **(SHORT | more))


def golden(family: str) -> Any:
    inside = np.load(INSIDE)
    return {name.partition("/")[2]: inside[name] for name in inside if name.startswith(f"{family}/")}


def options_of(values: Any) -> dict[str, Any]:
    return {"token_ids": values["ids"][:20].tolist(), "max_tokens": 12, "ignore_eos": True, "logprobs": 0}


def changed(values: Any) -> dict[str, Any]:
    steer = rekindle.Steering(1, values["vector"], tokens=slice(5, None))
    return {"steer": steer, "patch": [rekindle.Patch(0, values["patch"], tokens=7)]}


def logprobs(answer: rekindle.Generation) -> list[float]:
    return [token.logprob for token in answer.logprobs or ()]


@pytest.fixture
def session(families: Path) -> Iterator[rekindle.Session]:
    with begin("llama-tied", families) as session:
        yield session


@pytest.mark.wide
@pytest.mark.parametrize("family", [*FEW, *(pytest.param(family, marks=pytest.mark.wide) for family in MANY)])
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_steered_tokens_are_those_of_hooks_and_neighbours_keep_their_bits(family: str, families: Path) -> None:
    values = golden(family)
    options, changes = options_of(values), changed(values)
    with begin(family, families) as session:
        alone = session.generate_sync(**options)
        session.pause_sync()
        handles = [session.submit(**options, cache_salt="new"), session.submit(**options, **changes)]
        session.resume()
        beside, steered = [handle.result(timeout=PATIENCE) for handle in handles]
        again = session.generate_sync(**options, **changes)
    assert list(steered.token_ids) == values["greedy"].tolist() == list(again.token_ids)
    assert beside.token_ids == alone.token_ids != steered.token_ids
    if unavailable_reason() is None:
        assert logprobs(beside) == logprobs(alone), "bit for bit"


@pytest.mark.wide
def test_the_second_steering_compiles_nothing_and_slots_forget_their_steering(session: rekindle.Session) -> None:
    values = golden("llama-tied")
    options, changes = options_of(values), changed(values)
    alone, steered = session.generate_sync(**options), session.generate_sync(**options, **changes)
    session.generate_sync(**options, **changes)
    events, compilations = listen(), session.stats.compilations
    other = rekindle.Steering(-1, values["vector"], scale=0.5, part="mlp")
    session.pause_sync()
    handles = [session.submit(**options, steer=other), *(session.submit(**options) for _ in range(2))]
    session.resume()
    results = [handle.result(timeout=PATIENCE) for handle in handles]
    assert results[0].token_ids != steered.token_ids
    assert {each.token_ids for each in results[1:]} == {alone.token_ids}
    assert session.stats.compilations == compilations
    assert not events, "nothing was traced, lowered or compiled"


@pytest.mark.wide
def test_cached_prefixes_belong_to_the_changes(session: rekindle.Session) -> None:
    values = golden("llama-tied")
    prompt = {"token_ids": values["ids"].tolist(), "max_tokens": 2}

    def cached(**changes: Any) -> int:
        count: int = session.generate_sync(**prompt, **changes).cached_tokens
        return count

    first = rekindle.Steering(1, values["vector"])
    assert [cached(), cached()] == [0, 32]
    assert [cached(steer=first), cached(steer=rekindle.Steering(1, values["vector"].copy()))] == [0, 32]
    assert cached(steer=rekindle.Steering(1, values["vector"], scale=2)) == 0
    assert cached(steer=rekindle.Steering(2, values["vector"])) == 0
    assert cached(patch=rekindle.Patch(1, values["vector"], None)) == 0


@pytest.mark.wide
@pytest.mark.parametrize("more", [{"replicas": 2}, {"decode_steps": 4}, {"ticks": "combined"}], ids=str)
def test_lanes_and_several_steps_a_tick_draw_the_same_tokens(families: Path, more: Any) -> None:
    values = golden("llama-tied")
    with begin("llama-tied", families, **more) as session:
        handles = [session.submit(**options_of(values), **changed(values)) for _ in range(3)]
        for handle in handles:
            assert list(handle.result(timeout=PATIENCE).token_ids) == values["greedy"].tolist()


def test_a_look_has_the_activations_of_transformers_and_the_lens_predicts_what_is_drawn(
    session: rekindle.Session,
) -> None:
    values = golden("llama-tied")
    ids = values["ids"].tolist()
    look = session.look_sync(token_ids=ids, parts=["residual", "mlp"], layers=[0, -1], heads=[(1, 0), (2, 1)])
    scale = np.abs(values["residual"]).max()
    assert look.residual is not None
    np.testing.assert_allclose(look.residual, values["residual"][[0, -1]], rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(look.at(2, "mlp"), values["mlp"][-1], rtol=0, atol=1e-5 * scale)
    np.testing.assert_allclose(look.patterns, [values["patterns"][1, 0], values["patterns"][2, 1]], rtol=0, atol=1e-5)
    assert (look.layers, look.parts, look.attention) == ((0, 2), ("residual", "mlp"), None)
    lens = session.logit_lens_sync(look, top=3)
    answer = session.generate_sync(token_ids=ids, max_tokens=1, logprobs=2)
    assert lens.token_ids.shape == (2, len(ids), 3)
    assert lens.token_ids[-1, -1, 0] == answer.token_ids[0]
    assert lens.logprobs[-1, -1, 0] == pytest.approx(logprobs(answer)[0], abs=1e-4)
    steered = session.look_sync(token_ids=ids, **changed(values))
    assert session.logit_lens_sync(steered).token_ids[-1, 19, 0] == values["greedy"][0]
    with pytest.raises(rekindle.InvalidRequest, match="activations of 'residual', 'mlp'"):
        look.at(1)


def test_an_explanation_has_the_lens_the_pages_and_the_ticks_of_its_answer(session: rekindle.Session) -> None:
    ids = golden("llama-tied")["ids"].tolist()
    size = session.cache.page_size
    session.explain_sync(token_ids=ids, max_tokens=4, ignore_eos=True)
    explained = session.explain_sync(token_ids=ids, max_tokens=4, ignore_eos=True)
    answer, tokens = explained.generation, explained.tokens
    assert (len(tokens), explained.count) == (len(ids) + 4, len(ids) + 4)
    assert [token.is_new for token in tokens] == [False] * len(ids) + [True] * 4
    assert sum(token.is_cached for token in tokens) == answer.cached_tokens >= size
    assert all((token.tick is None) == token.is_cached for token in tokens)
    ticks = [token.tick for token in tokens if token.tick is not None]
    assert ticks == sorted(ticks)
    assert len(set(ticks[-4:])) > 1, "the first new token comes with the prompt"
    assert all(token.tick_seconds for token in tokens if token.is_new)
    lens = session.logit_lens_sync(session.look_sync(token_ids=[*ids, *answer.token_ids[:-1]]), top=3)
    for token in tokens[1:]:
        assert [text for _, text, _ in token.layers] == [each[token.position - 1][0] for each in reversed(lens.texts)]
    assert all(token.likeliest[0][0] == token.text for token in tokens[-4:]), "greedy"
    assert not session.requests


def test_a_second_look_compiles_nothing(session: rekindle.Session) -> None:
    session.logit_lens_sync(session.look_sync(token_ids=[1, 2, 3]))
    session.logit_lens_sync(session.look_sync(token_ids=list(range(40)), layers=[0, 1, 2]))
    events = listen()
    session.logit_lens_sync(session.look_sync(token_ids=list(range(9)), layers=[2, 1, 0]))
    assert not events


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steer": 3}, r"steer must be rekindle.Steering\(...\) or a list of them, got 3"),
        ({"steer": rekindle.Steering(9, np.ones(64))}, 'an index of 3 layers, or "embedding", got 9'),
        ({"steer": rekindle.Steering(0, np.ones(3))}, r"of the shape \(64,\), got the shape \(3,\)"),
        ({"steer": rekindle.Steering(0, np.full(64, np.nan))}, "got numbers that are not finite"),
        ({"steer": rekindle.Steering(0, np.ones(64), part="head")}, "one of 'residual', 'attention', 'mlp'"),  # type: ignore[arg-type]
        ({"steer": rekindle.Steering("embedding", np.ones(64), part="mlp")}, 'the part "residual" alone'),
        ({"steer": rekindle.Steering(0, np.ones(64), tokens=7)}, "positions of the 3 tokens of the prompt"),
        ({"steer": rekindle.Steering(0, np.ones(64), tokens=slice(3, 2))}, "has no position"),
        (
            {"patch": rekindle.Patch(0, np.ones((2, 64)), tokens=[1])},
            r"shape \(1, 64\), got the shape \(2, 64\)",
        ),
        ({"patch": [rekindle.Patch(0, np.ones(64), tokens=1)] * 17}, "change 17 ranges of positions"),
    ],
)
def test_changes_that_do_not_fit_are_refused_with_a_reason(
    session: rekindle.Session, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(rekindle.InvalidRequest, match=message):
        session.generate_sync(token_ids=[1, 2, 3], **options)
    with pytest.raises(rekindle.InvalidRequest, match=message):
        session.look_sync(token_ids=[1, 2, 3], **options)


def test_a_sleeping_session_says_so(session: rekindle.Session) -> None:
    session.sleep_sync()
    with pytest.raises(rekindle.InvalidRequest, match="no weights at the moment"):
        session.look_sync(token_ids=[1, 2, 3])
    session.wake_sync()
    assert session.look_sync(token_ids=[1, 2, 3]).residual is not None


def test_models_with_several_streams_are_refused(families: Path) -> None:
    with begin("gemma3n", families) as session:
        with pytest.raises(rekindle.InvalidRequest, match="one residual stream"):
            session.look_sync(token_ids=[1, 2, 3])
        with pytest.raises(rekindle.InvalidRequest, match="one residual stream"):
            session.generate_sync(token_ids=[1, 2, 3], steer=rekindle.Steering(0, [1.0]))


@pytest.mark.wide
def test_embeddings_are_changed_where_no_factor_follows(session: rekindle.Session, families: Path) -> None:
    """Patch all embeddings, as if the prompt had other tokens."""
    hello, other = [5, 6, 7, 8], [9, 10, 11, 12]
    patch = rekindle.Patch("embedding", session.look_sync(token_ids=other).embedding, tokens=[0, 1, 2, 3])
    answers = [session.generate_sync(token_ids=ids, max_tokens=1, logprobs=0) for ids in (hello, other)]
    patched = session.generate_sync(token_ids=hello, patch=patch, max_tokens=1, logprobs=0)
    assert logprobs(patched) == pytest.approx(logprobs(answers[1]), abs=1e-4)
    assert logprobs(patched) != pytest.approx(logprobs(answers[0]), abs=1e-4)
    with begin("granite", families) as scaled:
        steer = rekindle.Steering("embedding", np.ones(scaled.look_sync(token_ids=[1]).embedding.shape[1]))
        assert scaled.look_sync(token_ids=[1], steer=steer).residual is not None
        with pytest.raises(rekindle.InvalidRequest, match="multiplies its embeddings"):
            scaled.generate_sync(token_ids=[1], steer=steer)
