"""Replicas give the tokens of one engine through any death, and kept ones are found again. Ray is a stand-in here."""

import math
import pickle
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle
from rekindle.__main__ import main
from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.assembly.replicas import ReadWeights
from rekindle.core.concurrency.progress import Report
from rekindle.core.engine.wiring import Compose
from rekindle.core.messages import Admit, Cancel, Dispatched, Message, Plan
from rekindle.core.request.constraint import Constraint
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.store.sources import SOURCES
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.replicas import cluster, link, opening, replica
from rekindle.replicas.attachments import SPAN, AttachedSessions
from rekindle.replicas.group import ReplicaGroup
from rekindle.replicas.recipe import Recipe
from rekindle.replicas.remote import RemoteLane, SentPages
from rekindle.session.session import Session
from rekindle.settings.engine import Settings
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from rekindle.testing.device import settle_tick
from tests.unit.asks import ASK, Asks, check
from tests.unit.fake_ray import Actor, FakeRay
from tests.waiting import until_blocking

PROMPTS = [[number] * 40 for number in range(9)]
NAMES = ("page_size", "max_running", "max_context", "num_pages")
CALLS: list[dict[str, Any]] = [
    {"stop": ["a"], "max_tokens": 40},
    {"regex": "[ab]{3,30}c", "max_tokens": 40},
    {"choice": ["yes", "no"]},
    {"n": 3, "temperature": 1.0, "seed": 2, "max_tokens": 10},
]
SMALL: dict[str, Any] = {"page_size": 16, "max_running": 4, "progress": False}


class SlowSettler(FakeSettler):
    """A fake settler with ticks long enough for the death of a replica in one."""

    async def handle(self, message: Message) -> list[Message]:
        assert isinstance(message, Dispatched)
        await anyio.sleep(0.002)
        return [settle_tick(message)]


@pytest.fixture(scope="module")
def ray(byte_tokenizer: Tokenizer) -> Iterator[FakeRay]:
    """Have replicas build engines on the fake device, and sessions find them through a stand-in for Ray."""

    def build(model: str, settings: Settings, report: Report, *, compose: Compose, **options: Any) -> LoadedEngine:
        if model == "missing":
            raise rekindle.ModelNotFound("there is no such model")
        limits = fake_limits(**{name: getattr(settings, name) for name in NAMES})
        return fake_loaded_engine(limits, tokenizer=byte_tokenizer, settler=SlowSettler()).composed(compose)

    checkpoint = fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer).checkpoint
    fake = FakeRay()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica, "build", build)
        patch.setattr(opening, "open_model", lambda *arguments: checkpoint)
        patch.setattr(link, "RETRY_SECONDS", 0.01)
        patch.setattr(cluster, "leave", fake.restart_failed)
        patch.setitem(sys.modules, "ray", fake)
        yield fake
        for actor in list(fake.actors.values()):
            fake.kill(actor, no_restart=True)


def open_replicas(count: int, **options: Any) -> Session:
    where = rekindle.Ray(count, **{name: options.pop(name) for name in ("keep", "name") if name in options})
    return rekindle.open_sync("fake", replicas=where, **SMALL | options)


@pytest.fixture(scope="module")
def session(ray: FakeRay) -> Iterator[Session]:
    with open_replicas(2) as session:
        yield session


@pytest.fixture(scope="module")
def alone(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(page_size=16), tokenizer=byte_tokenizer)) as session:
        yield session


def actors(ray: FakeRay, session: Session) -> list[Actor]:
    return list(session._engine.facts.programs._actors)  # type: ignore[attr-defined]


@pytest.mark.wide
@settings(max_examples=25)
@given(st.lists(ASK, min_size=1, max_size=8))
def test_any_mix_is_the_same(alone: Session, session: Session, asks: Asks) -> None:
    check(alone, session, asks)


@settings(max_examples=12)
@given(st.lists(ASK, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_any_mix_is_the_same_when_replicas_die(
    ray: FakeRay, alone: Session, session: Session, asks: Asks, random: Random
) -> None:
    def die() -> None:
        time.sleep(random.random() * 0.05)
        ray.kill(random.choice(actors(ray, session)), no_restart=False)

    check(alone, session, asks, die)


@pytest.mark.deep
@settings(max_examples=300)
@given(st.lists(ASK, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_many_mixes_are_the_same_when_replicas_die(
    ray: FakeRay, alone: Session, session: Session, asks: Asks, random: Random
) -> None:
    def die() -> None:
        for _ in range(random.randint(1, 3)):
            time.sleep(random.random() * 0.05)
            ray.kill(random.choice(actors(ray, session)), no_restart=False)

    check(alone, session, asks, die)


def test_texts_constraints_prefixes_branches_and_streams(ray: FakeRay, alone: Session, session: Session) -> None:
    for number, options in enumerate(CALLS):
        for prompt in ("a" * 20, "abcd" * 30):
            expected, handle = alone.generate_sync(prompt, **options), None
            if "n" not in options:
                handle = session.submit(prompt, **options)
                if number:
                    ray.kill(actors(ray, session)[number % 2], no_restart=False)
            answer = session.generate_sync(prompt, **options) if handle is None else handle.result()
            assert repr(answer) == repr(expected)
    with session.prefix_sync("abcd" * 30) as prefix, alone.prefix_sync("abcd" * 30) as other:
        assert prefix.generate_sync("x", max_tokens=5).text == other.generate_sync("x", max_tokens=5).text
    branch = session.generate_sync("abc", max_tokens=9, logprobs=3)
    there = alone.generate_sync("abc", max_tokens=9, logprobs=3)
    assert branch.branch(4, 150).result().token_ids == there.branch(4, 150).result().token_ids
    assert "".join(map(str, session.stream("abc", max_tokens=9))) == there.text


def test_a_request_can_be_cancelled_and_a_lost_replica_does_not_bring_it_back(ray: FakeRay, session: Session) -> None:
    handle = session.submit(token_ids=[1] * 20, max_tokens=200, ignore_eos=True)
    until_blocking(lambda: handle.record.pieces.items, "it has begun")
    handle.cancel()
    for actor in actors(ray, session):
        ray.kill(actor, no_restart=False)
    with pytest.raises(rekindle.RequestCancelled):
        handle.result()


def test_a_session_knows_its_replicas(ray: FakeRay, session: Session) -> None:
    assert "cpu:0 in 2 replicas" in repr(session)

    def both_have_served() -> bool:
        session.generate_sync(token_ids=PROMPTS, max_tokens=3)
        return all(lane.ended for lane in session.stats.lanes)

    until_blocking(both_have_served, "both tell that requests ended")  # one may just be coming back
    assert session.settings.replicas == rekindle.Ray(2)
    assert len(session.cache.lanes) == 2
    assert session.stuck is None
    with session.trace() as trace:
        session.generate_sync(token_ids=[1], max_tokens=2)
    assert "replicas tick in other processes" in str(trace.timeline())
    session.precompiled_sync(progress=False)
    with pytest.raises(rekindle.InvalidRequest, match="in other processes"):
        session.device  # noqa: B018
    assert session.save_sync(progress=False) >= 0


def test_new_weights_are_those_of_all_replicas_also_of_one_that_dies(ray: FakeRay) -> None:
    with open_replicas(2) as session:
        session.update_weights_sync({})
        session.update_weights_sync({}, in_flight="keep")
        weights = [lane.weights for lane in session._engine.facts.schedulers]  # type: ignore[attr-defined]
        assert all(weights)
        (first, second), loaded = actors(ray, session), weights[0][0].number
        ray.kill(first, no_restart=False)
        until_blocking(lambda: first._died is None, "it is there again")
        answers = session.generate_sync(token_ids=PROMPTS, max_tokens=3)
        assert (
            {run for answer in answers for run in answer.weights_version} == {(session.weights_version, 3)} == {(2, 3)}
        )
        for actor in (first, second):
            until_blocking(lambda actor=actor: actor._life.instance._weights_version, "it has the weights")  # type: ignore[misc]
            assert loaded not in actor._life.instance._weights


def test_weights_that_a_replica_lost_are_loaded_by_it_again(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    load = ReplicaGroup.load

    def forgotten(self: ReplicaGroup, weights: Any) -> ReadWeights:
        loaded = load(self, weights)
        for way in self._links:
            way.actor._life.instance._weights.clear()  # as if it had been lost just then
        return loaded

    monkeypatch.setattr(ReplicaGroup, "load", forgotten)
    with open_replicas(1) as session:
        session.update_weights_sync({})
        until_blocking(lambda: actors(ray, session)[0]._life.instance._weights_version, "it has the weights")
        assert session.generate_sync(token_ids=[1] * 20, max_tokens=5).token_ids == expected_tokens([1] * 20, 5)


def test_a_replica_that_is_lost_and_found_while_the_engine_is_paused_computes_nothing_twice(ray: FakeRay) -> None:
    with open_replicas(1) as session:
        session.pause_sync()
        handle = session.submit(token_ids=[1] * 20, max_tokens=50, ignore_eos=True)
        for _ in range(2):  # then the lane has the request in its mailbox
            session.step_sync()
        (way,) = session._engine.facts.replicas._links  # type: ignore[union-attr]
        before = way._session
        ray.kill(actors(ray, session)[0], no_restart=False)
        until_blocking(lambda: way._session != before, "it is found")
        way.resume(0)
        assert not way._up, "the lane has not heard of the last loss"
        session.resume()
        assert handle.result().token_ids == expected_tokens([1] * 20, 50)
        until_blocking(lambda: session.stats.scheduler.ended, "its status has come")
        assert session.stats.scheduler.ended == 1


def test_a_session_that_was_never_served_is_forgotten(ray: FakeRay) -> None:
    with open_replicas(1) as session:
        (actor,) = actors(ray, session)
        cluster.answers([actor.attach.remote()])
        attached = actor._life.instance._attachments
        assert len(attached) == 2
        for attachment in list(attached._by_number.values())[1:]:
            attachment.last_contact -= 100
        assert cluster.answers([actor.about.remote()])[0].sessions == 1


def test_what_is_kept_is_found_again_with_its_prefixes_and_may_be_shared(ray: FakeRay) -> None:
    with open_replicas(2, keep=True) as first:
        before = actors(ray, first)
        first.generate_sync(token_ids=PROMPTS, max_tokens=3)
        with open_replicas(2, keep=True) as second:
            assert actors(ray, second) == before
            assert second.restored.nodes == 2 * len(PROMPTS)
            assert second.restored.tokens == 16 * second.restored.nodes
            answers = second.generate_sync(token_ids=PROMPTS, max_tokens=3)
            assert [each.cached.total for each in answers] == [32] * len(PROMPTS), "each went where its prefix is"
            assert [each.token_ids for each in answers] == [expected_tokens(prompt, 3) for prompt in PROMPTS]
        assert first.generate_sync(token_ids=[3], max_tokens=2).token_ids == expected_tokens([3], 2)
    assert all(actor.deaths == 0 for actor in before)
    with open_replicas(1, keep=True, max_running=2) as other:
        assert actors(ray, other)[0] not in before, "other settings have other replicas"


def test_replicas_are_attached_to_once_all_are_open(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    call = Actor.call

    def noted(actor: Actor, name: str, arguments: tuple[Any, ...]) -> Any:
        called.append(name)
        return call(actor, name, arguments)

    monkeypatch.setattr(Actor, "call", noted)
    with open_replicas(2):
        opening = [name for name in called if name in {"about", "attach"}]
        assert opening[:4] == ["about", "about", "attach", "attach"], "one that opens for long is heard of meanwhile"


def test_other_content_functions_and_sources_have_other_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    def recipe_of(content: str, place: str = "m", **settings: Any) -> Recipe:
        return Recipe.of(place, Settings(**settings), None, None, None, content)

    def digest(*arguments: Any, **settings: Any) -> str:
        return recipe_of(*arguments, **settings).digest

    def of(number: int) -> Any:
        return lambda logits, row: logits + number

    first = digest("one")
    assert digest("one") == first == digest("one", "elsewhere/m"), "the place of the model does not count"
    others = [digest("two"), digest("one", page_size=32), *(digest("one", logits_processor=of(n)) for n in (1, 2))]
    assert len({first, *others}) == 5
    assert digest("one", logits_processor=of(1)) == others[2]
    with pytest.raises(rekindle.ConfigError, match="stands for logits_processor too"):
        recipe_of("one", logits_processor=of(1)).name(rekindle.Ray(keep=True))
    monkeypatch.setattr(SOURCES, "digest", lambda module: "another version")
    assert digest("one") not in (first, *others)


def test_a_replica_that_finds_other_files_refuses_them(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_replicas(1) as session:
        (actor,) = actors(ray, session)
        assert session.generate_sync(token_ids=[3], max_tokens=2).token_ids == expected_tokens([3], 2)
        monkeypatch.setattr(replica, "content_of", lambda checkpoint: "of another model")
        ray.kill(actor, no_restart=False)
        with pytest.raises(rekindle.ReplicaLost, match="are others here than for the session that started"):
            session.generate_sync(token_ids=[3], max_tokens=2)


def test_a_session_hears_of_weights_that_another_replaced(ray: FakeRay) -> None:
    with open_replicas(2, keep=True, name="heard") as first, open_replicas(2, keep=True, name="heard") as second:
        before = second.fingerprint
        assert first.fingerprint == before

        def replace_the_weights() -> Any:
            first.update_weights_sync({"w": 1})
            until_blocking(lambda: second.weights_version == 1, "it is told")
            return second.generate_sync(token_ids=[3], max_tokens=2)

        with pytest.warns(RuntimeWarning, match="another session has replaced the weights .* number 1 now") as caught:
            answer = replace_the_weights()
        assert len(caught) == 1, "each lane tells it, and it is told once"
        assert answer.weights_version == ((1, 2),)
        assert first.fingerprint == second.fingerprint != before
        with pytest.warns(UserWarning, match="has replaced the weights of an existing replica"):
            third = open_replicas(2, keep=True, name="heard")
        with third:
            assert (third.weights_version, third.fingerprint) == (1, first.fingerprint)
    for actor in list(ray.actors.values()):
        ray.kill(actor, no_restart=True)


def test_what_is_not_kept_ends_with_its_session(ray: FakeRay) -> None:
    with open_replicas(2) as session:
        mine = actors(ray, session)
        assert all(actor in ray.actors.values() for actor in mine)
    assert not any(actor in ray.actors.values() for actor in mine)


def test_a_session_that_is_not_heard_of_is_detached_and_attaches_itself_again(ray: FakeRay) -> None:
    with open_replicas(1) as session:
        handle = session.submit(token_ids=[1] * 20, max_tokens=200, ignore_eos=True)
        until_blocking(lambda: handle.record.pieces.items, "it has begun")
        (actor,) = actors(ray, session)
        attachments = actor._life.instance._attachments
        (first,) = attachments._by_number.values()

        def is_detached() -> bool:
            first.last_contact = -math.inf  # of this attachment alone: a request survives few losses
            return attachments.get(first.number) is None

        until_blocking(is_detached, "it is detached")
        assert handle.result().token_ids == expected_tokens([1] * 20, 200)
        until_blocking(lambda: len(attachments) == 1, "it is attached again")
        assert actor.deaths == 0


def test_a_replica_whose_engine_fails_is_made_anew(ray: FakeRay) -> None:
    with open_replicas(1) as session:
        (actor,) = actors(ray, session)
        handle = session.submit(token_ids=[1] * 20, max_tokens=200, ignore_eos=True)
        until_blocking(lambda: handle.record.pieces.items, "it has begun")
        actor._life.instance._engine._engine.post(Plan(10**6, (None,), ()))  # type: ignore[arg-type]
        assert handle.result().token_ids == expected_tokens([1] * 20, 200)
        assert actor.deaths == 1


def test_requests_fail_when_no_replica_is_left(ray: FakeRay) -> None:
    with open_replicas(2) as session:
        handle = session.submit(token_ids=[1] * 20, max_tokens=200, ignore_eos=True)
        for actor in actors(ray, session):
            ray.kill(actor, no_restart=True)
        with pytest.raises(rekindle.ReplicaLost, match="no other replica is left"):
            handle.result()
        with pytest.raises(rekindle.ReplicaLost):
            session.generate_sync(token_ids=[1])


def test_the_command_lists_and_stops_replicas(ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    with open_replicas(1, keep=True, name="kept"):
        assert main(["replicas", "ls"]) == 0
        output = capsys.readouterr().out
        assert "kept-0\n  fake, int on cpu:0, process" in output
        assert "1 session, 0 running, 0 waiting" in output
    assert main(["replicas", "stop", "nobody"]) == 1
    assert "no replica has the name 'nobody'" in capsys.readouterr().err
    assert main(["replicas", "stop"]) == 1
    assert "give the names" in capsys.readouterr().err
    assert main(["replicas", "stop", "kep"]) == 0
    assert capsys.readouterr().out == "stopped kept-0\n"
    assert "kept-0" not in ray.actors


def test_what_cannot_be_served_is_refused_by_name(ray: FakeRay) -> None:
    with pytest.raises(rekindle.ModelNotFound):
        rekindle.open_sync("missing", replicas=rekindle.Ray(2), **SMALL)
    assert not any(name.startswith("missing") for name in ray.actors)
    for options, message in (
        ({"compose": lambda actors: actors}, "compose= applies to engines in this process"),
        ({"hosts": rekindle.Hosts()}, "hosts= applies to engines in this process"),
        ({"prefill": "cpu:0", "decode": "cpu:0"}, "leave out replicas"),
    ):
        with pytest.raises(rekindle.ConfigError, match=message):
            open_replicas(1, **options)
    with pytest.raises(rekindle.ConfigError, match=r"functions cannot be compared.*policy"):
        open_replicas(1, keep=True, policy=lambda candidate: 0)
    with open_replicas(1, keep=True, name="mine"), pytest.raises(rekindle.ConfigError, match="with other settings"):
        open_replicas(1, keep=True, name="mine", max_running=2)
    wrong: dict[str, Any] = {"count": 0, "address": "", "resources": {"GPU": -1}, "keep": 1, "name": ""}
    for field, value in wrong.items():
        with pytest.raises(rekindle.ConfigError, match=f"{field} of rekindle.Ray"):
            replace(rekindle.Ray(), **{field: value})


def test_ray_client_is_refused_and_too_few_resources_are_told_of(ray: FakeRay) -> None:
    with pytest.raises(rekindle.ConfigError, match="Ray Client"):
        rekindle.open_sync("fake", replicas=rekindle.Ray(1, address="ray://there:10001"), **SMALL)
    where = rekindle.Ray(2, resources={"GPU": 1})
    with pytest.warns(UserWarning, match="has 1 GPU, and 2 replicas take 2"):
        rekindle.open_sync("fake", replicas=where, **SMALL).close_sync()


def test_a_parcel_that_is_lost_detaches_its_session() -> None:
    attachments = AttachedSessions()
    attached = attachments.add()
    assert list(attached.in_order(1, [Cancel(3)])) == []
    assert attachments.silent(20.0) == []
    attached.gap = (attached.gap or 0.0) - 100
    assert attachments.silent(20.0) == [attached.number]
    (cancel,) = attached.in_order(0, [])
    assert cancel.requests == (3 + attached.number * SPAN,)
    assert attachments.silent(20.0) == []


def test_a_type_of_the_callers_own_stays_with_the_caller(session: Session) -> None:
    class Local:
        def __reduce__(self) -> str:
            raise TypeError("it stays here")

    constraint = Constraint("json_schema", '{"enum": [1]}', adapter=Local())
    request = Request(0, (1,), SamplingParams(json_schema=constraint), frozenset(), 99)
    messages: list[Any] = []
    lane = RemoteLane(SimpleNamespace(send=messages.append), None, SentPages(9), fake_limits())  # type: ignore[arg-type]
    list(lane.handle(Admit(request)))
    assert pickle.loads(pickle.dumps(messages[0])).params.json_schema.text == constraint.text


def test_what_is_set_aside_is_told_to_ray(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_SOMETHING", "1")
    where = rekindle.Ray(1, resources={"GPU": 1, "CPU": 2, "memory": 1e9, "rack": 0.5}, keep=True, name="large")
    with rekindle.open_sync("fake", replicas=where, **SMALL):
        options = ray.options["large-0"]
    assert (options["num_gpus"], options["num_cpus"], options["memory"]) == (1, 2, 1e9)
    assert options["resources"] == {"rack": 0.5}
    assert (options["lifetime"], options["max_task_retries"]) == ("detached", 0)
    assert options["runtime_env"]["env_vars"]["REKINDLE_SOMETHING"] == "1"


def test_replicas_with_exchanged_weights_are_told_of(ray: FakeRay) -> None:
    with open_replicas(1, keep=True, name="exchanged") as session:
        session.update_weights_sync({})
    with pytest.warns(UserWarning, match="restores the model's weights"):
        open_replicas(1, keep=True, name="exchanged").close_sync()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_replicas(1, keep=True, name="fresh").close_sync()
