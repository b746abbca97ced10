"""A call may ask for several draws and leave out defaults, and is refused where it does not fit the model."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import rekindle
from rekindle import Generation
from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import InvalidRequest, ParametersIgnored
from rekindle.core.request.params import SamplingParams, draws
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import VOCAB_SIZE, expected_tokens, fake_limits, fake_loaded_engine, fake_session

pytestmark = pytest.mark.anyio

PROMPT = [3, 1, 4]
SEEDED: dict[str, Any] = {"max_tokens": 6, "temperature": 1.0, "seed": 11}


def expected_draws(prompt: list[int], n: int, seed: int = 11) -> list[tuple[int, ...]]:
    """Return the fake model's tokens for each draw of a seed."""
    seeds = [one.seed or 0 for one in draws(SamplingParams(seed=seed), n)]
    return [expected_tokens(prompt, 6, draw=seed) for seed in seeds]


def token_ids(generations: list[Generation]) -> list[tuple[int, ...]]:
    return [generation.token_ids for generation in generations]


# n


@pytest.mark.parametrize("n", [1, 3, 40])
async def test_n_draws_of_one_prompt_are_a_list(session: Session, n: int) -> None:
    generations = await session.generate(token_ids=PROMPT, n=n, **SEEDED)
    assert token_ids(generations) == expected_draws(PROMPT, n)
    assert session.generate_sync(token_ids=PROMPT, n=n, **SEEDED)[-1].token_ids == generations[-1].token_ids


async def test_n_draws_of_each_prompt_are_a_list_for_each(session: Session, texts: Session) -> None:
    prompts = [[5], PROMPT, [7, 7]]
    groups = await session.generate(token_ids=prompts, n=2, **SEEDED)
    assert [token_ids(group) for group in groups] == [expected_draws(prompt, 2) for prompt in prompts]
    groups = session.generate_sync(token_ids=[PROMPT], n=1, **SEEDED)
    assert [token_ids(group) for group in groups] == [expected_draws(PROMPT, 1)]
    one = await texts.generate("a", n=2, **SEEDED)
    assert [generation.usage.prompt_tokens for generation in one] == [1, 1]
    assert [len(group) for group in await texts.generate(["a", "b"], n=3, **SEEDED)] == [3, 3]


async def test_the_first_draw_is_the_call_without_n_and_the_others_are_requests_of_their_own(session: Session) -> None:
    alone = await session.generate(token_ids=PROMPT, **SEEDED)
    generations = await session.generate(token_ids=PROMPT, n=3, **SEEDED)
    assert alone.token_ids == generations[0].token_ids
    second = draws(SamplingParams(seed=11), 3)[1].seed
    again = await session.generate(token_ids=PROMPT, **{**SEEDED, "seed": second})
    assert again.token_ids == generations[1].token_ids


@pytest.mark.parametrize("ask", [{"temperature": 1.0}, {}])
async def test_draws_without_a_seed_differ(session: Session, ask: dict[str, Any]) -> None:
    free = await session.generate(token_ids=PROMPT, n=20, max_tokens=6, **ask)
    assert len(set(token_ids(free))) > 10


async def test_draws_at_temperature_0_are_alike_and_the_line_that_asks_for_them_is_warned(session: Session) -> None:
    with pytest.warns(ParametersIgnored, match="so n would have no effect: ") as records:
        greedy = await session.generate(token_ids=PROMPT, n=3, max_tokens=6, temperature=0)
    with pytest.warns(ParametersIgnored) as blocking_records:
        assert session.generate_sync(token_ids=PROMPT, n=3, max_tokens=6, temperature=0)[1].text == greedy[1].text
    assert token_ids(greedy) == [expected_tokens(PROMPT, 6)] * 3
    assert [warning.filename for warning in (*records, *blocking_records)] == [__file__] * 2


@pytest.mark.parametrize("n", [0, -1, True, 1.5, "2"])
async def test_n_is_a_count_and_nothing_is_left_of_a_call_that_says_otherwise(session: Session, n: Any) -> None:
    with pytest.raises(InvalidRequest, match="n must be an integer from 1"):
        await session.generate(token_ids=PROMPT, n=n)
    assert not session._engine.client._handles


async def test_one_stream_and_one_handle_are_of_one_draw(session: Session) -> None:
    ask: Any = {"token_ids": PROMPT, "n": 2}
    for call in (session.stream, session.stream_sync, session.submit):
        with pytest.raises(InvalidRequest, match=r"n is for generate\(\)"):
            call(**ask)


async def test_an_unknown_keyword_is_named_at_the_call_with_the_one_that_was_meant(session: Session) -> None:
    misspelled: Any = {"token_id": PROMPT}
    for call in (session.stream, session.stream_sync, session.show_sync, session.submit, session.generate_sync):
        with pytest.raises(InvalidRequest, match=r"^unknown keyword 'token_id'; did you mean token_ids\?$"):
            call(**misspelled)
    with pytest.raises(InvalidRequest, match=r"unknown keyword 'temprature'; did you mean temperature\?"):
        await session.generate(token_ids=PROMPT, temprature=1.0)  # type: ignore[call-overload]
    assert not session._engine.client._handles


# Defaults


@pytest.fixture
def recommended() -> Iterator[Session]:
    """Open a session on a model whose authors recommend sampling parameters."""
    defaults = {"temperature": 1.0, "seed": 5, "max_tokens": 4, "stop_token_ids": [250]}
    with fake_session(replace(fake_loaded_engine(fake_limits()), defaults=defaults)) as session:
        yield session


async def test_what_the_models_authors_recommend_is_taken_unless_a_call_says_otherwise(recommended: Session) -> None:
    assert recommended.sampling_defaults == SamplingParams(
        temperature=1.0, seed=5, max_tokens=4, stop_token_ids=frozenset({250})
    )
    assert (await recommended.generate(token_ids=PROMPT)).token_ids == expected_tokens(PROMPT, 4, draw=5)
    generation = recommended.generate_sync(token_ids=PROMPT, max_tokens=2, seed=9)
    assert generation.token_ids == expected_tokens(PROMPT, 2, draw=9)
    assert recommended.submit(token_ids=PROMPT, temperature=0).result().token_ids == expected_tokens(PROMPT, 4)
    streamed = [piece.token_ids async for piece in recommended.stream(token_ids=PROMPT, seed=9)]
    assert sum(streamed, ()) == expected_tokens(PROMPT, 4, draw=9)
    generations = await recommended.generate(token_ids=PROMPT, n=2, max_tokens=6, seed=11)
    assert token_ids(generations) == expected_draws(PROMPT, 2)


async def test_a_model_that_recommends_nothing_has_our_defaults(session: Session) -> None:
    assert session.sampling_defaults == SamplingParams()


def test_what_a_model_recommends_and_rekindle_has_not_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_engine = replace(fake_loaded_engine(fake_limits()), unserved=("num_beams", "typical_p"))
    monkeypatch.setattr("rekindle.session.opening.build", lambda *_, **__: loaded_engine)
    with pytest.warns(
        UserWarning, match="a-model: .* num_beams, typical_p, which Rekindle does not support"
    ) as records:
        session = rekindle.open_sync("a-model", progress=False)
    with session:
        assert session.generate_sync(token_ids=PROMPT, max_tokens=2).token_ids == expected_tokens(PROMPT, 2)
    assert [each.filename for each in records] == [__file__]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_warning_while_the_model_is_read_is_about_the_line_that_opens_it(
    is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object, **__: object) -> LoadedEngine:
        warn("the stored prefixes are not used")
        return fake_loaded_engine(fake_limits())

    monkeypatch.setattr("rekindle.session.opening.build", build)
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        if is_async:
            async with rekindle.open("a-model", progress=False):
                pass
        else:
            rekindle.open_sync("a-model", progress=False).close_sync()
    assert [each.filename for each in records] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="stored prefixes"):
            rekindle.open_sync("a-model", progress=False)


# Beside a model


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_token_ids", [VOCAB_SIZE]),
        ("allowed_token_ids", [1, VOCAB_SIZE]),
        ("logit_bias", {VOCAB_SIZE: 1.0}),
        ("bad_words", [[1], [2, VOCAB_SIZE]]),
    ],
)
async def test_token_ids_outside_the_vocabulary_are_an_error_at_the_call(
    session: Session, name: str, value: Any
) -> None:
    ask: Any = {"token_ids": PROMPT, name: value}
    for call in (session.submit, session.stream, session.generate_sync):
        with pytest.raises(InvalidRequest, match=f"{name} must be from 0 to 250, got 251"):
            call(**ask)
    with pytest.raises(InvalidRequest, match=name):
        await session.generate(n=2, **ask)
    assert not session._engine.client._handles


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": "x"}, "the model has no tokenizer, so stop strings cannot be found; use stop_token_ids"),
        (
            {"skip_special_tokens": False},
            "the model has no tokenizer, so there is no text: leave out skip_special_tokens",
        ),
        ({"bad_words": [[1], "x"]}, "the model has no tokenizer, so bad_words must be sequences of token ids"),
    ],
)
async def test_what_takes_a_tokenizer_is_refused_without_one(
    session: Session, texts: Session, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await session.generate(token_ids=PROMPT, **options)
    assert len((await texts.generate(token_ids=PROMPT, max_tokens=2, **options)).token_ids) == 2


async def test_bans_that_leave_nothing_fail_alone(session: Session) -> None:
    other = session.submit(token_ids=PROMPT, max_tokens=5)
    with pytest.raises(InvalidRequest, match="together may leave no token to choose: each of the 1 allowed"):
        await session.generate(token_ids=PROMPT, allowed_token_ids=[5], bad_words=[[5]])
    assert (await other).token_ids == expected_tokens(PROMPT, 5)


# Bad words


async def test_a_bad_word_is_banned_at_the_start_and_after_a_space(byte_tokenizer: Tokenizer) -> None:
    space, a, b = (byte_tokenizer.encode(letter)[0] for letter in " A~")
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer)) as texts:
        ask: dict[str, Any] = {"allowed_token_ids": [space, a, b], "max_tokens": 40}
        free = await texts.generate("x", **ask)
        assert " ~" in free.text
        assert "A~" in free.text
        spaced = await texts.generate("x", **ask, bad_words=[" A~"])
        assert " A~" not in spaced.text
        assert "A~" in spaced.text
        both = await texts.generate("x", **ask, bad_words=["A~"])
        assert "A~" not in both.text
        by_ids = await texts.generate("x", **ask, bad_words=[[a, b], (space, a, b)])
        assert by_ids.token_ids == both.token_ids
