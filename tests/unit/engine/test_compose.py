"""Users may replace an engine's actors and add the family of its model."""

import gc
import json
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import anyio.lowlevel
import jax
import numpy as np
import pytest

import rekindle
from rekindle.core.engine.actor import Actor, answers
from rekindle.core.engine.wiring import Actors, Compose, composed
from rekindle.core.errors import (
    CheckpointError,
    ConfigError,
    EngineFailed,
    InvalidRequest,
    RequestCancelled,
    UnsupportedModel,
)
from rekindle.core.messages import Admit, Cancel, Message, Rejected, Settled, Stopped, Texts
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.families import llama, qwen2, qwen3
from rekindle.formats.families.reading import Family
from rekindle.formats.families.registry import FAMILIES
from rekindle.session.session import Session
from rekindle.settings.engine import SettingsOptions
from rekindle.testing import expected_tokens, fake_limits, fake_loaded_engine, fake_session

PROMPT = [3, 1, 4]
FEW: SettingsOptions = {
    "page_size": 16,
    "num_pages": 17,
    "max_running": 2,
    "max_prefill_tokens": 32,
    "prefill_chunk": 32,
    "prefill_buckets": (32,),
    "decode_buckets": (2,),
    "precompile": "lazy",
    "restore": "off",
}
"""Settings with few programs, and without writes beyond the end of a test."""
EMBER = Family("EmberForCausalLM", qwen2.read)
"""The family of qwen2 under an unknown name."""


def session_of(compose: Compose, tokenizer: Tokenizer | None = None) -> Session:
    loaded_engine = fake_loaded_engine(fake_limits(), tokenizer=tokenizer)
    return fake_session(loaded_engine.composed(compose))


# Actors


class Between:
    """An actor in front of another: it records the other's messages and replies, and may change the replies."""

    def __init__(self, actor: Actor, change: Callable[[Message], Iterable[Message]] = lambda message: [message]):
        self.actor, self.change = actor, change
        self.took: list[Message] = []
        self.replies: list[Message] = []

    async def handle(self, message: Message) -> list[Message]:
        self.took.append(message)
        messages = await answers(self.actor, message)
        self.replies += messages
        return [changed for each in messages for changed in self.change(each)]


@pytest.mark.parametrize("name", [field.name for field in fields(Actors)])
def test_any_actor_may_stand_behind_another_that_sees_all_its_messages(name: str, byte_tokenizer: Tokenizer) -> None:
    between: list[Between] = []

    def compose(actors: Actors) -> Actors:
        between.append(Between(getattr(actors, name)))
        parts: dict[str, Any] = {name: between[0]}
        return replace(actors, **parts)

    messages: list[Message] = []
    replies: list[Message] = []

    def see(record: rekindle.MessageRecord) -> None:
        if record.actor == name:
            messages.append(record.message)
            replies.extend(record.answers)

    with session_of(compose, byte_tokenizer) as session, session.watch(see):
        assert session.generate_sync("hi", regex="[a-c]{3}d").parsed[3] == "d"
        generation = session.generate_sync(token_ids=[7] * 70, max_tokens=70)
        assert session.generate_sync("hi", max_tokens=5).token_ids == expected_tokens(byte_tokenizer.encode("hi"), 5)
        session.save_sync(progress=False)
        session.pause_sync()
        assert generation.token_ids == expected_tokens([7] * 70, 70)
        assert between[0].took == messages
        assert between[0].replies == replies
        assert bool(messages) == (name != "vision")  # no prompt has an image


def test_an_actor_may_change_what_is_said(byte_tokenizer: Tokenizer) -> None:
    def other_case(message: Message) -> Iterator[Message]:
        if isinstance(message, Texts):
            message = Texts(tuple(replace(text, text=text.text.swapcase()) for text in message.texts))
        yield message

    def compose(actors: Actors) -> Actors:
        return replace(actors, detokenizer=Between(actors.detokenizer, other_case))

    with session_of(compose, byte_tokenizer) as session:
        generation = session.generate_sync("hello", max_tokens=30)
    expected = expected_tokens(byte_tokenizer.encode("hello"), 30)
    text = byte_tokenizer.decode(expected)
    assert generation.token_ids == expected
    assert generation.text == text.swapcase() != text


def test_an_actor_may_turn_a_request_away_and_the_others_go_on() -> None:
    def short_ones(message: Message) -> Iterator[Message]:
        if isinstance(message, Admit) and len(message.request.prompt) > 3:
            yield Rejected(message.request.id, InvalidRequest("too long for this place"))
        else:
            yield message

    with session_of(lambda actors: replace(actors, intake=Between(actors.intake, short_ones))) as session:
        first, long, last = (session.submit(token_ids=ids, max_tokens=5) for ids in (PROMPT, [*PROMPT, 1], PROMPT))
        assert first.result().token_ids == last.result().token_ids == expected_tokens(PROMPT, 5)
        with pytest.raises(InvalidRequest, match="too long for this place"):
            long.result()
        stats = session.stats.scheduler
        assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)


def test_an_actor_may_say_what_only_others_say() -> None:
    """Have a settler cancel each request at its third token, as a caller does."""
    tokens: Counter[int] = Counter()

    def cancel(message: Message) -> Iterator[Message]:
        yield message
        if isinstance(message, Settled):
            for request_id, _ in message.tokens:
                tokens[request_id] += 1
                if tokens[request_id] == 3:
                    yield Cancel(request_id)

    with session_of(lambda actors: replace(actors, settler=Between(actors.settler, cancel))) as session:
        handles = [session.submit(token_ids=[number], max_tokens=count) for number, count in ((1, 1000), (2, 2))]
        with pytest.raises(RequestCancelled):
            handles[0].result()
        assert handles[1].result().token_ids == expected_tokens([2], 2)
        assert 3 <= session.stats.scheduler.generated_tokens < 100


def test_a_request_that_an_actor_stops_ends_well(byte_tokenizer: Tokenizer) -> None:
    def stop(message: Message) -> Iterable[Message]:
        yield message
        if isinstance(message, Texts):
            yield from (Stopped(text.request_id, 1) for text in message.texts if text.token_ids)

    loaded_engine = fake_loaded_engine(fake_limits(overlap=False), tokenizer=byte_tokenizer)
    actors = replace(
        loaded_engine.lanes[0].actors, detokenizer=Between(loaded_engine.lanes[0].actors.detokenizer, stop)
    )
    with fake_session(loaded_engine.composed(lambda _: actors)) as session:
        stopped = session.generate_sync(token_ids=PROMPT, max_tokens=9, ignore_eos=True)
    assert (stopped.finish_reason, stopped.stopped_by) == ("stop", None)
    assert stopped.token_ids[0] == expected_tokens(PROMPT, 1)[0]
    assert len(stopped.token_ids) < 9


def test_one_actor_may_have_two_places_and_takes_one_message_at_a_time() -> None:
    class Both:
        def __init__(self, actors: Actors):
            self.actors, self.busy, self.kinds = actors, False, Counter[str]()

        async def handle(self, message: Message) -> Iterable[Message]:
            assert not self.busy
            self.busy = True
            self.kinds[type(message).__name__] += 1
            await anyio.lowlevel.checkpoint()  # another message could come in between here
            messages = await answers(self.actors.by_message()[type(message)], message)
            self.busy = False
            return messages

    both: list[Both] = []

    def compose(actors: Actors) -> Actors:
        both.append(Both(actors))
        return replace(actors, settler=both[0], detokenizer=both[0])

    with session_of(compose) as session:
        generations = session.generate_sync(token_ids=[PROMPT, [5]], max_tokens=9)
    assert [one.token_ids for one in generations] == [expected_tokens(PROMPT, 9), expected_tokens([5], 9)]
    assert 9 <= both[0].kinds["Outputs"] <= 18
    assert both[0].kinds.keys() == {"Dispatched", "Outputs"}


def test_an_actor_that_raises_ends_the_engine_with_its_error() -> None:
    class Broken:
        def handle(self, message: Message) -> Iterable[Message] | Awaitable[Iterable[Message]]:
            raise LookupError("a part is missing")

    with session_of(lambda actors: replace(actors, detokenizer=Broken())) as session:
        with pytest.raises(EngineFailed, match="because of LookupError: a part is missing") as failed:
            session.generate_sync(token_ids=PROMPT)
        assert isinstance(failed.value.__cause__, LookupError)


# Composing


def test_without_compose_the_actors_are_those_that_were_made() -> None:
    actors = fake_loaded_engine(fake_limits()).lanes[0].actors
    assert composed([actors], None) == [actors]
    assert composed([actors], lambda same: same) == [actors]


@pytest.mark.parametrize("result", [None, [], "actors"])
def test_what_compose_returns_has_to_be_actors(result: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        composed([fake_loaded_engine(fake_limits()).lanes[0].actors], lambda actors: result)
    expected = "compose must return Actors, such as dataclasses.replace(actors, settler=...); got "
    assert str(refused.value) == f"{expected}{result!r}"


@pytest.mark.parametrize("actor", [None, print, type("Deaf", (), {"handle": 3})()])
def test_every_actor_has_to_handle_messages(actor: Any) -> None:
    with pytest.raises(ConfigError, match=r"compose must give an actor with a handle\(\) for host_tier; got "):
        composed([fake_loaded_engine(fake_limits()).lanes[0].actors], lambda actors: replace(actors, host_tier=actor))


def test_what_compose_raises_comes_out_of_open_as_it_is_and_nothing_stays_on_the_device(families: Path) -> None:
    def compose(actors: Actors) -> Actors:
        raise LookupError("nothing to compose with")

    def array_bytes() -> int:
        return sum(array.nbytes for array in jax.live_arrays())

    gc.collect()  # drop the arrays of earlier tests
    before = array_bytes()
    with pytest.raises(LookupError, match="nothing to compose with"):
        rekindle.open_sync(families / "qwen2", progress=False, compose=compose, **FEW)
    assert array_bytes() <= before
    nothing: Any = lambda actors: None  # noqa: E731
    with pytest.raises(ConfigError, match="compose must return Actors"):
        rekindle.open_sync(families / "qwen2", progress=False, compose=nothing, **FEW)
    assert array_bytes() <= before


@pytest.mark.parametrize("compose", [3, "compose", Actors.__annotations__])
def test_compose_has_to_be_a_function(compose: Any) -> None:
    with pytest.raises(ConfigError, match="compose must be a function of an engine's Actors that returns Actors, got "):
        rekindle.open("anything", compose=compose)


# Families


@pytest.fixture
def unknown(families: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies a family's directory and gives it the name of an unknown architecture."""

    def make(name: str) -> Path:
        directory = Path(shutil.copytree(families / name, tmp_path / name, copy_function=shutil.copyfile))
        config = json.loads((directory / "config.json").read_text())
        config |= {"architectures": ["EmberForCausalLM"], "model_type": "ember"}
        (directory / "config.json").write_text(json.dumps(config))
        return directory

    return make


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_family_of_ones_own_reads_a_config_as_the_known_one_that_says_the_same(
    name: str, unknown: Callable[[str], Path], families: Path
) -> None:
    directory = {"llama": "llama-tied"}.get(name, name)
    family = replace(FAMILIES[name], architecture="EmberForCausalLM")
    config = open_checkpoint(families / directory).config
    assert open_checkpoint(unknown(directory), family=family).config == replace(config, family="EmberForCausalLM")


def test_a_model_of_ones_own_family_generates_and_takes_other_weights_through_an_actor_of_ones_own(
    unknown: Callable[[str], Path], families: Path
) -> None:
    golden = np.load(families / "qwen2" / "golden.npz")
    request: Any = {"token_ids": golden["greedy_prompt"].tolist(), "max_tokens": 24, "ignore_eos": True}
    directory = unknown("qwen2")
    between: list[Between] = []

    def compose(actors: Actors) -> Actors:
        between.append(Between(actors.settler))
        return replace(actors, settler=between[0])

    with rekindle.open_sync(directory, progress=False, compose=compose, family=EMBER, **FEW) as session:
        assert list(session.generate_sync(**request).token_ids) == golden["greedy_new"].tolist()
        session.update_weights_sync(directory)
        assert list(session.generate_sync(**request).token_ids) == golden["greedy_new"].tolist()
    tokens = [token for reply in between[0].replies if isinstance(reply, Settled) for _, token in reply.tokens]
    assert tokens[:24] == golden["greedy_new"].tolist()


def test_an_unknown_architecture_is_refused_and_the_message_says_how_to_open_it(unknown: Callable[[str], Path]) -> None:
    with pytest.raises(UnsupportedModel, match=r"\(EmberForCausalLM\) is not .* open\(\.\.\., family=Family\("):
        open_checkpoint(unknown("qwen2"))


@pytest.mark.wide
def test_a_family_that_says_too_little_or_too_much_is_seen_in_the_numbers_or_in_the_file(
    unknown: Callable[[str], Path], families: Path
) -> None:
    golden = np.load(families / "qwen2" / "golden.npz")
    directory = unknown("qwen2")
    without_bias = Family("EmberForCausalLM", llama.read)
    with rekindle.open_sync(directory, progress=False, family=without_bias, **FEW) as session:
        generation = session.generate_sync(token_ids=golden["greedy_prompt"].tolist(), max_tokens=1)
    assert list(generation.token_ids) != golden["greedy_new"].tolist()[:1]
    with pytest.raises(CheckpointError, match=r"missing model\.layers\.0\.self_attn\.q_norm\.weight"):
        open_checkpoint(directory, family=Family("EmberForCausalLM", qwen3.read))


def test_a_family_that_is_not_the_models_is_refused(families: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"is Qwen2ForCausalLM, .* given family is for EmberForCausalLM"):
        open_checkpoint(families / "qwen2", family=EMBER)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(UnsupportedModel, match=r"model\.gguf is a GGUF file.*leave out family"):
        open_checkpoint(tmp_path / "model.gguf", family=EMBER)


def test_a_family_goes_before_the_known_ones(families: Path) -> None:
    before = Family("Qwen3ForCausalLM", llama.read)
    assert open_checkpoint(families / "qwen3").config.attentions[0].head_norm is not None
    assert open_checkpoint(families / "qwen3", family=before).config.attentions[0].head_norm is None


@pytest.mark.parametrize("family", ["qwen2", Family, {"architecture": "EmberForCausalLM"}])
def test_a_family_has_to_be_one(family: Any) -> None:
    with pytest.raises(ConfigError, match=r"family must be a rekindle\.Family, got "):
        rekindle.open("anything", family=family)
