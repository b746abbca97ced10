"""Captured activations are those of a look at prompt and answer, and leave other requests as they are."""

import copy
import json
import logging
import pickle
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.assembly.capturing import Capturing
from rekindle.assembly.looking import Looks
from rekindle.core.concurrency.feed import Feed
from rekindle.core.messages import Message, NewWeights
from rekindle.core.models.inspection.inputs import Look
from rekindle.core.request.params import SamplingParams
from rekindle.notebook.log import LOG
from rekindle.notebook.progress import awaited_programs
from rekindle.server import app
from tests.compilations import listen, programs_of
from tests.engine.small import SMALL
from tests.unit.asgi import ask
from tests.waiting import PATIENCE

PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16, 17]]
OPTIONS: Any = {"max_tokens": 12, "ignore_eos": True, "logprobs": 0}
SHORT: Any = SMALL | {"page_size": 32, "max_context": 192}
"""The shapes of test_steering.py; its programs are in the run's store."""


def begin(families: Path, family: str = "llama-tied", **more: Any) -> rekindle.Session:
    return rekindle.open_sync(families / family, progress=False, precompile="lazy", **(SHORT | more))


@pytest.fixture(scope="module")
def session(families: Path) -> Iterator[rekindle.Session]:
    with begin(families) as session:
        yield session


def looks(session: rekindle.Session) -> int:
    """Return the number of ready programs of looks."""
    (executables,) = programs_of(session._engine.facts).executables
    return sum(isinstance(key, Look) for key in executables._ready)


def same_as_a_look(session: rekindle.Session, answer: rekindle.Generation, **changes: Any) -> None:
    """Compare captured activations with a look at prompt and answer, bit for bit."""
    captured = answer.activations
    assert captured is not None
    assert (captured.token_ids, len(captured.tokens)) == (answer.token_ids, len(answer.token_ids))
    ids = [*answer.prompt_token_ids, *answer.token_ids]
    look = session.look_sync(token_ids=ids, layers=captured.layers, parts=captured.parts, **changes)
    for layer in captured.layers:
        for part in captured.parts:
            array = captured.at(layer, part)
            assert array.shape == (len(answer.token_ids), 64)
            assert array.dtype == np.float32
            np.testing.assert_array_equal(array, look.at(layer, part)[len(answer.prompt_token_ids) :])
            from_the_end = layer - len(session._engine.facts.model.layers)
            np.testing.assert_array_equal(captured.at(from_the_end, part), array)
            np.testing.assert_array_equal(look.at(from_the_end, part), look.at(layer, part))
    np.testing.assert_array_equal(captured.embedding, look.embedding[len(answer.prompt_token_ids) :])


@pytest.mark.wide
def test_others_in_a_batch_keep_their_tokens_and_run_no_look(session: rekindle.Session) -> None:
    alone = [session.generate_sync(token_ids=ids, **OPTIONS) for ids in PROMPTS]
    assert looks(session) == 0
    assert [answer.activations for answer in alone] == [None] * 3
    session.pause_sync()
    captures: list[dict[str, Any]] = [{"capture": [0, -1]}, {}, {"capture": ["mlp", 1, "attention"]}]
    handles = [session.submit(token_ids=ids, **OPTIONS, **more) for ids, more in zip(PROMPTS, captures, strict=True)]
    acts: list[str] = []
    with session.watch(lambda record: acts.append(f"{record.actor} {type(record.message).__name__}")):
        session.resume()
        answers = [handle.result(timeout=PATIENCE) for handle in handles]
    assert answers == alone, "the same tokens, texts and log-probabilities"
    assert acts.count("stepper Inspect") == 2
    for answer in (answers[0], answers[2]):
        same_as_a_look(session, answer)
    one, none, other = [answer.activations for answer in answers]
    assert one is not None
    assert other is not None
    assert none is None
    assert (one.layers, one.parts) == ((0, 2), ("residual",))
    assert (other.layers, other.parts) == ((1,), ("attention", "mlp"))


@pytest.mark.wide
def test_the_lens_of_what_is_captured_predicts_as_the_steps_drew(session: rekindle.Session) -> None:
    """Compare the lens with the log-probabilities of the decode steps."""
    answer = session.generate_sync(token_ids=PROMPTS[0], capture=[1, 2], **OPTIONS)
    assert answer.activations is not None
    lens = session.logit_lens_sync(answer.activations, top=1)
    assert lens.token_ids[1, :-1, 0].tolist() == list(answer.token_ids[1:]), "greedy"
    steps = [token.logprob for token in answer.logprobs or ()]
    assert lens.logprobs[1, :-1, 0] == pytest.approx(steps[1:], abs=1e-4)


def test_a_second_capture_compiles_nothing(session: rekindle.Session) -> None:
    session.generate_sync(token_ids=PROMPTS[0], capture=[0, 1], **OPTIONS)
    events, compilations = listen(), session.stats.compilations
    answers = session.generate_sync(token_ids=PROMPTS, capture=["mlp", 2, 1], **OPTIONS)
    assert not events
    assert session.stats.compilations == compilations
    for answer in answers:
        same_as_a_look(session, answer)


def test_samples_streams_branches_steering_and_ends_have_their_activations(session: rekindle.Session) -> None:
    options = OPTIONS | {"capture": [0, -1], "temperature": 1.5, "seed": 3}
    samples = session.generate_sync(token_ids=PROMPTS[0], n=2, **options)
    assert samples[0].token_ids != samples[1].token_ids
    stream = session.stream_sync(token_ids=PROMPTS[1], **options)
    pieces = [token for piece in stream for token in piece.token_ids]
    streamed = stream.handle.generation
    assert streamed is not None
    assert list(streamed.token_ids) == pieces
    branch = samples[0].branch(at=3, token=7, logprobs=None).result(timeout=PATIENCE)
    ended = session.generate_sync(token_ids=PROMPTS[1], **(options | {"stop_token_ids": pieces[4]}))
    assert ended.finish_reason == "stop"
    for answer in (*samples, streamed, branch, ended):
        same_as_a_look(session, answer)
    none = session.generate_sync(token_ids=PROMPTS[0], **(OPTIONS | {"max_tokens": 0, "capture": "mlp"})).activations
    assert none is not None
    assert none.at(1, "mlp").shape == (0, 64)


@pytest.mark.wide
def test_steered_requests_have_the_activations_under_their_steering(session: rekindle.Session) -> None:
    options = OPTIONS | {"capture": [0, -1]}
    steer = rekindle.Steering(1, np.ones(64), scale=3.0, tokens=slice(1, None))
    steered = session.generate_sync(token_ids=PROMPTS[0], steer=steer, **options)
    same_as_a_look(session, steered, steer=steer)
    whole = [*steered.prompt_token_ids, *steered.token_ids]
    plain = session.look_sync(token_ids=whole, layers=[0, 2]).at(2)[len(steered.prompt_token_ids) :]
    assert steered.activations is not None
    assert np.abs(steered.activations.at(2) - plain).max() > 0.1


def test_arrays_survive_copies_and_pickles_and_are_told_on_the_card(session: rekindle.Session) -> None:
    answer = session.generate_sync(token_ids=PROMPTS[0], capture=[0, "mlp"], **OPTIONS)
    assert answer.activations is not None
    for other in (pickle.loads(pickle.dumps(answer)), copy.copy(answer)):
        np.testing.assert_array_equal(other.activations.at(0, "mlp"), answer.activations.at(0, "mlp"))
    words = "mlp of layers 0, 12 x 64"
    bundle: Any = answer._repr_mimebundle_()
    assert words in bundle["text/plain"]
    assert words in bundle["text/html"]
    assert "activations" not in answer.to_dict()
    assert rekindle.Generation.from_dict(answer.to_dict()).activations is None


def test_a_cancelled_capture_ends_without_its_look(session: rekindle.Session) -> None:
    """Cancel a finished request of the engine, and a running one."""
    session.pause_sync()
    handle = session.submit(token_ids=PROMPTS[0], capture=[0, 1], **OPTIONS)
    while not handle.record.capturing:
        session.step_sync()
    assert not handle.done
    handle.cancel()
    assert handle.done
    running = session.submit(token_ids=PROMPTS[0], capture=[0, 1], **OPTIONS)
    running.cancel()
    session.resume()
    for each in (handle, running):
        with pytest.raises(rekindle.RequestCancelled):
            each.result(timeout=PATIENCE)
    same_as_a_look(session, session.generate_sync(token_ids=PROMPTS[0], capture=[0, 1], **OPTIONS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capture": 3}, "capture names layer 3, and the model has 3 layers"),
        ({"capture": 0, "n": 2**16, "max_tokens": 180}, "of 11,796,480 tokens may take 6.04 GB, more than 4.29 GB"),
        ({"capture": [0], "adapter": "none"}, "there is no adapter"),
    ],
)
def test_what_cannot_be_captured_is_refused(session: rekindle.Session, options: Any, message: str) -> None:
    with pytest.raises(rekindle.InvalidRequest, match=message):
        session.generate_sync(token_ids=PROMPTS[0], **options)


def test_the_engine_is_asked_once_the_program_is_ready_or_not_at_all() -> None:
    """Look at the questions to the engine: a look without its program would hold up the ticks."""
    programs: list[Future[Any]] = []
    questions: list[Message] = []
    ends: list[Any] = []

    def obtain(key: Look) -> Future[Any]:
        programs.append(Future())
        return programs[-1]

    def ask(question: Callable[[int], Message]) -> Feed[Any]:
        questions.append(question(0))
        return Feed()

    executables: Any = SimpleNamespace(obtain=obtain)
    capturing = Capturing(Looks(64, 3, 8), executables, None, ask=ask, error=lambda: None)
    for _ in range(2):
        capturing.begin(SamplingParams.from_options({"capture": 1}), (1, 2), (3,), ends.append)
    assert (len(programs), questions, ends) == (2, [], [])
    programs[0].set_result(None)
    assert (len(questions), ends) == (1, [])
    programs[1].set_exception(error := RuntimeError("no compiler"))
    assert (len(questions), ends) == (1, [error])


def test_maps_are_refused(session: rekindle.Session) -> None:
    with pytest.raises(rekindle.InvalidRequest, match="map keeps no activations"):
        session.map_sync(["a"], capture=0)


@pytest.mark.wide
def test_new_weights_and_ends_of_sessions_end_a_capture(families: Path) -> None:
    with begin(families) as session:
        session.pause_sync()
        changed = session.submit(token_ids=PROMPTS[0], capture=[0, 1], **OPTIONS)
        while not changed.record.generated:
            session.step_sync()
        other = Thread(target=partial(session.update_weights_sync, families / "llama-tied", in_flight="keep"))
        other.start()
        while not any(isinstance(each, NewWeights) for queue in session.pending.values() for each in queue):
            sleep(0.001)
        session.resume()
        other.join(timeout=PATIENCE)
        with pytest.raises(rekindle.WeightsChanged, match="generate again"):
            changed.result(timeout=PATIENCE)
        same_as_a_look(session, session.generate_sync(token_ids=PROMPTS[0], capture=[0, 1], **OPTIONS))
        session.pause_sync()
        closed = session.submit(token_ids=PROMPTS[0], capture=[0, 1], **OPTIONS)
        while not closed.record.capturing:
            session.step_sync()
    with pytest.raises(rekindle.SessionClosed):
        closed.result(timeout=PATIENCE)


@pytest.mark.wide
def test_models_with_several_streams_are_refused(families: Path) -> None:
    refused = pytest.raises(rekindle.InvalidRequest, match="capture is for models with one residual stream")
    with begin(families, "gemma3n") as session, refused:
        session.generate_sync(token_ids=[1, 2, 3], capture=0)


@pytest.mark.anyio
async def test_over_http_vectors_are_base64_of_float32(session: rekindle.Session) -> None:
    options: Any = {"max_tokens": 5, "ignore_eos": True}
    answer = await session.generate(token_ids=PROMPTS[0], **options, capture=[0, -1, "mlp"])
    body = {"prompt": PROMPTS[0], **options, "capture": [0, -1, "mlp"]}
    reply = await ask(app(session), "/v1/completions", body)
    assert reply.status == 200
    (choice,) = json.loads(reply.body)["choices"]
    captured = choice["activations"]
    assert answer.activations is not None
    assert set(captured) == {"layers", "width", "mlp"}
    assert captured["layers"] == list(answer.activations.layers)
    for layer, vectors in zip(captured["layers"], captured["mlp"], strict=True):
        arrays = [np.frombuffer(b64decode(vector), "<f4") for vector in vectors]
        np.testing.assert_array_equal(np.stack(arrays), answer.activations.at(layer, "mlp"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"capture": ["mlp"]}, "must name layers"),
        ({"capture": [9]}, "layer"),
        ({"capture": [0], "max_tokens": None}, None),
        ({"capture": [0, 1, "mlp", "residual"], "max_tokens": 2000}, "8000 vectors"),
        ({"capture": {"a": 1}}, "capture must be indices"),
    ],
)
async def test_captures_over_http_are_bounded(
    session: rekindle.Session, fields: dict[str, Any], words: str | None
) -> None:
    reply = await ask(app(session), "/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 2, **fields})
    if words is None:  # completions have a default
        assert reply.status == 200
        return
    assert reply.status == 400
    error = json.loads(reply.body)["error"]
    assert error["param"] == "capture"
    assert words in error["message"]


@pytest.mark.wide
@pytest.mark.parametrize("progress", [True, False])
def test_a_long_wait_for_a_look_has_a_sign_in_a_log(
    session: rekindle.Session, progress: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Take every wait for long."""
    monkeypatch.setattr(awaited_programs, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(session._requests, "_progress", progress)
    caplog.set_level(logging.INFO, LOG.name)
    signs = []
    for call in (
        lambda: session.look_sync(token_ids=PROMPTS[0]),
        lambda: session.explain_sync(token_ids=PROMPTS[1], max_tokens=2),
    ):
        caplog.clear()
        call()
        signs.append(any(re.match("looking into|waiting for a program", line) for line in caplog.messages))
    assert signs == [progress] * 2
