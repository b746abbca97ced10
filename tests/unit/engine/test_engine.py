"""Wired actors answer requests, by hand with one message at a time and on the engine's loop."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import anyio
import pytest

from rekindle.core.engine.actor import Actor, answers
from rekindle.core.engine.engine import Engine
from rekindle.core.engine.wiring import Actors
from rekindle.core.errors import InvalidRequest, PromptTooLong
from rekindle.core.messages import (
    Admit,
    Cancel,
    Conversation,
    Dispatched,
    Message,
    Output,
    Outputs,
    Plan,
    Rejected,
    SampleRow,
    Settled,
    Started,
    Submit,
    Text,
    Texts,
    Tokenize,
    Tokenized,
    Withdraw,
)
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine
from rekindle.testing.device import FakeOutputs

pytestmark = pytest.mark.anyio

TWO_TOKENS = SamplingParams(max_tokens=2)


def said_by(actor: Actor, message: Message) -> list[Message]:
    answers = actor.handle(message)
    assert isinstance(answers, Iterable)
    return list(answers)


async def answer_to(actors: Actors, submit: Submit) -> Message:
    """Return the intake's answer to a request, after a turn of the tokenizer if the intake asks for one."""
    (message,) = said_by(actors.intake, submit)
    if isinstance(message, Tokenize):
        (tokenized,) = await answers(actors.tokenizer, message)
        (message,) = said_by(actors.intake, tokenized)
    return message


async def test_the_way_of_a_request_step_by_step(byte_tokenizer: Tokenizer) -> None:
    actors = fake_loaded_engine(fake_limits(overlap=False), tokenizer=byte_tokenizer).lanes[0].actors
    settler: Any = actors.settler
    prompt = tuple(byte_tokenizer.encode("hi"))
    first, second = expected_tokens(prompt, 2)

    submit = Submit(7, "hi", replace(TWO_TOKENS, seed=5))
    (tokenize,) = said_by(actors.intake, submit)
    assert tokenize == Tokenize(submit)
    (tokenized,) = await answers(actors.tokenizer, tokenize)
    (admit,) = said_by(actors.intake, tokenized)
    assert isinstance(admit, Admit)
    assert tokenized == Tokenized(7, admit.request)
    assert (admit.request.prompt, admit.request.params.seed) == (prompt, 5)
    plan, started = said_by(actors.scheduler, admit)
    assert isinstance(plan, Plan)
    assert started == Started(7, prompt, 5, CachedTokens())
    (dispatched,) = said_by(actors.stepper, plan)
    assert dispatched == Dispatched(1, (SampleRow(7, 0, None),), (), FakeOutputs([first], {}))
    (result,) = await settler.handle(dispatched)
    assert result == Settled(1, ((7, first),))
    plan, output = said_by(actors.scheduler, result)
    assert output == Outputs((Output(admit.request, (first,), None),))
    (texts,) = said_by(actors.detokenizer, output)
    assert texts == Texts((Text(7, byte_tokenizer.decode([first]), (first,), None),))
    (dispatched,) = said_by(actors.stepper, plan)
    (result,) = await settler.handle(dispatched)
    assert said_by(actors.scheduler, result) == [Outputs((Output(admit.request, (second,), "length"),))]


async def test_the_intake_turns_away_what_cannot_be_served_and_says_why(byte_tokenizer: Tokenizer) -> None:
    actors = fake_loaded_engine(fake_limits(max_context=8), tokenizer=byte_tokenizer).lanes[0].actors
    for prompt, kind, message in (
        ("12345678", PromptTooLong, "the prompt has 8 tokens; at most 7 fit with one token of output"),
        (tuple(range(9)), PromptTooLong, "the prompt has 9 tokens"),
        ((251,), InvalidRequest, "token_ids must be from 0 to 250, got 251"),
        ("", InvalidRequest, "prompt is empty"),
        ("\ud800", InvalidRequest, "lone surrogate"),
    ):
        rejected = await answer_to(actors, Submit(3, prompt, TWO_TOKENS))
        assert isinstance(rejected, Rejected)
        assert rejected.request_id == 3
        assert type(rejected.error) is kind
        assert message in str(rejected.error)
    admit = await answer_to(actors, Submit(3, "1234567", TWO_TOKENS))
    assert isinstance(admit, Admit)


async def test_the_prompt_may_be_no_longer_than_the_pool_can_ever_hold() -> None:
    actors = fake_loaded_engine(fake_limits(page_size=16, num_pages=3)).lanes[0].actors
    rejected = await answer_to(actors, Submit(0, (1,) * 32, TWO_TOKENS))
    assert isinstance(rejected, Rejected)
    assert "the prompt has 32 tokens; at most 31 fit" in str(rejected.error)


async def test_a_model_without_a_tokenizer_takes_token_ids_alone() -> None:
    actors = fake_loaded_engine(fake_limits()).lanes[0].actors
    rejected = await answer_to(actors, Submit(0, "hi", TWO_TOKENS))
    assert isinstance(rejected, Rejected)
    assert "it takes token_ids" in str(rejected.error)


async def test_tools_and_variables_of_a_conversation_reach_the_models_template(byte_tokenizer: Tokenizer) -> None:
    template = "{{ bos_token }}{{ messages[0].content }} {{ tools[0].name }} {{ mood }}"
    tokenizer = Tokenizer(byte_tokenizer.backend, chat_template=template, bos_token="<")
    actors = fake_loaded_engine(fake_limits(), tokenizer=tokenizer).lanes[0].actors
    prompt = Conversation([{"role": "user", "content": "hi"}], [{"name": "now"}], {"mood": "calm"})
    admit = await answer_to(actors, Submit(0, prompt, TWO_TOKENS))
    assert isinstance(admit, Admit)
    assert tokenizer.decode(admit.request.prompt) == "<hi now calm"


async def test_a_request_whose_own_template_fails_fails_alone(byte_tokenizer: Tokenizer) -> None:
    tokenizer = Tokenizer(byte_tokenizer.backend, chat_template="{{ 1 // 0 }}")
    actors = fake_loaded_engine(fake_limits(), tokenizer=tokenizer).lanes[0].actors
    rejected = await answer_to(
        actors, Submit(0, Conversation([{"role": "user", "content": "hi"}], None, {}), TWO_TOKENS)
    )
    assert isinstance(rejected, Rejected)
    assert isinstance(rejected.error, InvalidRequest)
    assert "(ZeroDivisionError: " in str(rejected.error)


@pytest.mark.parametrize(
    ("options", "ends"),
    [({}, {5, 6}), ({"stop_token_ids": frozenset({9})}, {5, 6, 9}), ({"ignore_eos": True}, set()),
     ({"ignore_eos": True, "stop_token_ids": frozenset({9})}, {9})],
)  # fmt: skip
async def test_a_request_ends_at_the_models_end_tokens_and_its_own(options: dict[str, Any], ends: set[int]) -> None:
    actors = fake_loaded_engine(fake_limits(), eos_ids=(5, 6)).lanes[0].actors
    admit = await answer_to(actors, Submit(0, (1,), SamplingParams(**options)))
    assert isinstance(admit, Admit)
    assert admit.request.end_ids == ends


async def test_a_request_without_a_seed_gets_one_and_another_one_each_time() -> None:
    actors = fake_loaded_engine(fake_limits()).lanes[0].actors
    seeds = set()
    for request_id in range(8):
        admit = await answer_to(actors, Submit(request_id, (1,), TWO_TOKENS))
        assert isinstance(admit, Admit)
        assert admit.request.params.seed is not None
        seeds.add(admit.request.params.seed)
    assert len(seeds) > 1


@pytest.mark.parametrize(
    ("words", "spellings"),
    [
        (["ab"], ["ab", " ab"]),
        ([" ab"], [" ab"]),
        (["  ab c"], [" ab c"]),
        (["ab", " ab", "b"], ["ab", " ab", "b", " b"]),
    ],
)
async def test_a_bad_word_is_banned_at_the_start_of_a_text_and_after_a_space(
    words: list[str], spellings: list[str], byte_tokenizer: Tokenizer
) -> None:
    actors = fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer).lanes[0].actors
    admit = await answer_to(actors, Submit(0, "x", SamplingParams(bad_words=((1, 2), *words))))
    assert isinstance(admit, Admit)
    assert admit.request.bad_words == ((1, 2), *(tuple(byte_tokenizer.encode(text)) for text in spellings))


def test_a_cancel_takes_the_same_way_as_its_submit() -> None:
    actors = fake_loaded_engine(fake_limits()).lanes[0].actors
    assert said_by(actors.intake, Cancel(4)) == [Withdraw(4)]


async def test_each_actor_refuses_the_messages_of_others() -> None:
    actors = fake_loaded_engine(fake_limits()).lanes[0].actors
    for actor in (actors.intake, actors.tokenizer, actors.scheduler, actors.detokenizer):
        with pytest.raises(TypeError, match="takes no Dispatched, got Dispatched"):
            await answers(actor, Dispatched(1, (), (), []))


def test_the_bytes_of_half_a_character_come_with_the_end(byte_tokenizer: Tokenizer) -> None:
    detokenizer = fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer).lanes[0].actors.detokenizer
    begin, *_ = byte_tokenizer.encode("é")
    request = Request(0, (1,), TWO_TOKENS, frozenset(), 9)
    for output, text in (
        (Output(request, (begin,), None), Text(0, "", (begin,), None)),
        (Output(request, (), "cancelled"), Text(0, "", (), "cancelled", cut=b"\xc3")),
    ):
        assert said_by(detokenizer, Outputs((output,))) == [Texts((text,))]
    assert not vars(detokenizer)["_growing_texts"], "nothing is kept of a request that ended"


# On a loop


async def test_requests_are_answered_in_full_and_nothing_is_left() -> None:
    answers: list[Message] = []
    loaded_engine = fake_loaded_engine(fake_limits(max_running=2, page_size=16, num_pages=5))
    engine = Engine([loaded_engine.lanes[0].actors], answers.append)
    prompts = {request_id: (request_id,) * 15 for request_id in range(5)}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        for request_id, prompt in prompts.items():
            engine.post(Submit(request_id, prompt, SamplingParams(max_tokens=40)))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    for request_id, prompt in prompts.items():
        replies = [answer for answer in answers if isinstance(answer, Texts) and request_id in answer.requests]
        mine = [text for texts in replies for text in texts.texts if text.request_id == request_id]
        assert tuple(token for text in mine for token in text.token_ids) == expected_tokens(prompt, 40)
        assert [text.end for text in mine if text.end] == ["length"]
        (started,) = [each for each in answers if isinstance(each, Started) and each.request_id == request_id]
        assert (started.prompt, started.cached) == (prompt, CachedTokens())
        assert answers.index(started) < answers.index(replies[0])
    stats = loaded_engine.stats().scheduler
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, 4)
    assert stats.preemptions > 0


async def test_a_cancel_ends_a_request_while_its_tick_is_in_flight() -> None:
    answers: list[Message] = []
    settler = FakeSettler(held=True)
    engine = Engine([fake_loaded_engine(fake_limits(), settler=settler).lanes[0].actors], answers.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        engine.post(Submit(0, (1, 2), SamplingParams()))
        settler.step()
        await anyio.wait_all_tasks_blocked()
        engine.post(Cancel(0))
        await anyio.wait_all_tasks_blocked()
        settler.release()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    (token,) = expected_tokens((1, 2), 1)
    texts = Text(0, "", (token,), None), Text(0, "", (), "cancelled")
    assert isinstance(answers[0], Started)
    assert answers[1:] == [Texts((text,)) for text in texts]


async def test_one_that_is_turned_away_does_not_disturb_the_others() -> None:
    answers: list[Message] = []
    engine = Engine([fake_loaded_engine(fake_limits()).lanes[0].actors], answers.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        engine.post(Submit(0, (999,), TWO_TOKENS))
        engine.post(Submit(1, (1,), TWO_TOKENS))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert [type(answer) for answer in answers] == [Rejected, Started, Texts, Texts]


class Broken:
    """An actor with a failure at its first message."""

    def handle(self, message: Message) -> list[Message]:
        raise ZeroDivisionError("the device is gone")


@pytest.mark.parametrize("stage", ["intake", "scheduler", "stepper", "settler", "detokenizer"])
async def test_an_error_in_any_actor_ends_the_engine_and_comes_out(stage: str) -> None:
    actors = replace(fake_loaded_engine(fake_limits()).lanes[0].actors, **{stage: Broken()})
    engine = Engine([actors], lambda message: None)
    engine.post(Submit(0, (1,), TWO_TOKENS))
    with pytest.raises(ExceptionGroup) as caught:
        await engine.run()
    (error,) = caught.value.exceptions
    assert isinstance(error, ZeroDivisionError)


@dataclass
class Tap:
    """An actor of a user's own: unhashable, and equal to any other around an equal actor."""

    actor: Any
    kinds: list[type] = field(default_factory=list, compare=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tap)

    def handle(self, message: Message) -> Any:
        self.kinds.append(type(message))
        return self.actor.handle(message)


async def test_actors_of_ones_own_may_be_unhashable_and_equal() -> None:
    messages: list[Message] = []
    actors = fake_loaded_engine(fake_limits()).lanes[0].actors
    tapped = replace(actors, settler=Tap(actors.settler), detokenizer=Tap(actors.detokenizer))
    engine = Engine([tapped], messages.append)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        engine.post(Submit(0, (1,), TWO_TOKENS))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert [type(message) for message in messages] == [Started, Texts, Texts]
    assert isinstance(tapped.settler, Tap)
    assert isinstance(tapped.detokenizer, Tap)
    assert {*tapped.settler.kinds} == {Dispatched}
    assert {*tapped.detokenizer.kinds} == {Outputs}
    assert set(engine.pending) == {field.name for field in fields(tapped)}
