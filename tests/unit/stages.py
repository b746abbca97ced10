"""Run an engine without its loop: its stages take one message at a time, in an order of the test's choice."""

import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Unpack

import anyio

from rekindle.client.engine_client import EngineClient
from rekindle.client.handle import Handle
from rekindle.client.submission import Submission
from rekindle.core.engine.actor import Actor, answers
from rekindle.core.engine.actors.grammars import Grammars
from rekindle.core.engine.actors.tokenizing import Tokenizing
from rekindle.core.messages import Message, Prompt
from rekindle.core.request.params import SamplingOptions, SamplingParams
from rekindle.core.request.request import Pooling, Request
from rekindle.core.scheduler.stats import SchedulerStats
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.settings.engine import SettingsOptions
from rekindle.testing import constrained, fake_limits, fake_loaded_engine

Choose = Callable[[int], int]
"""A function from the number of stages with mail to the index of the next one."""


def shuffled(seed: int) -> Choose:
    """Return a choice at random; for some seeds, some stages hardly get a turn."""
    order = random.Random(seed)
    haste = order.choice([0.5, 1.0, 4.0])
    return lambda ready: int(ready * order.random() ** haste)


class Stages:
    """The stages of a fake loaded engine, their mailboxes, and their callers.

    Args:
        tokenizer, eos_ids: see `fake_loaded_engine`.
        **settings: see `fake_limits`.
    """

    def __init__(
        self, tokenizer: Tokenizer | None = None, eos_ids: Collection[int] = (), **settings: Unpack[SettingsOptions]
    ):
        self.limits = fake_limits(**settings)
        self._loaded_engine = fake_loaded_engine(self.limits, tokenizer=tokenizer, eos_ids=eos_ids)
        self._client = EngineClient(max_waiting=1000)
        self._routes = self._loaded_engine.lanes[0].actors.by_message()
        self._mail: dict[Actor, deque[Message]] = {stage: deque() for stage in self._routes.values()}

    def ask(self, prompt: Prompt, pooling: Pooling | None = None, **options: Unpack[SamplingOptions]) -> Handle:
        """Submit a request; nothing happens to it yet."""
        submission = Submission(prompt, SamplingParams.from_options(options), pooling=pooling)
        return self._client.submit(submission, self.post, wait=False)

    def post(self, message: Message) -> None:
        """Put a message into the mailbox of its stage."""
        stage = self._routes.get(type(message))
        if stage is None:
            self._client.deliver(message)
        else:
            self._mail[stage].append(message)

    def constrained(self, request: Request) -> Request:
        """Return the request, held to the constraint of its parameters, if it has one."""
        constraint, compiler = request.params.constraint, self._loaded_engine.preparer.compiler
        if constraint is None or compiler is None:
            return request
        return constrained(request, compiler.compile(constraint))

    def step(self, choose: Choose) -> bool:
        """Let one stage with mail handle one message; False if no stage has mail."""
        ready = [stage for stage, mail in self._mail.items() if mail]
        if ready:
            stage = ready[choose(len(ready))]
            for answer in _answers_by(stage, self._mail[stage].popleft()):
                self.post(answer)
        return bool(ready)

    def run(self, choose: Choose = lambda ready: 0) -> None:
        """Handle messages until there are none."""
        while self.step(choose):
            pass

    def assert_nothing_is_left(self) -> SchedulerStats:
        """Check the engine at its end: every page and slot is free, and no text or handle is left."""
        stats = self._loaded_engine.stats().scheduler
        assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.pages)
        assert not vars(self._loaded_engine.lanes[0].actors.detokenizer)["_growing_texts"]
        assert not self._client._handles
        assert not self._client._gate._inside
        return stats


def request_of(
    prompt: Sequence[int], options: SamplingOptions, capacity: int, end_ids: Collection[int] = ()
) -> Request:
    """Make a request of options as the intake does, for `expected_of`; bad words are token ids here."""
    params = SamplingParams.from_options(options)
    words = tuple(word for word in params.bad_words if not isinstance(word, str))
    assert len(words) == len(params.bad_words), "texts take a tokenizer"
    return Request(0, tuple(prompt), params, params.stop_token_ids | frozenset(end_ids), capacity, words)


def _answers_by(stage: Actor, message: Message) -> Iterable[Message]:
    if isinstance(stage, Tokenizing | Grammars):  # they wait for threads of their own
        return anyio.run(answers, stage, message)
    outcome = stage.handle(message)
    if not isinstance(outcome, Awaitable):
        return outcome
    try:
        next(iter(outcome.__await__()))
    except StopIteration as done:
        messages: list[Message] = done.value
        return messages
    raise AssertionError(f"{stage} waits for something outside of the stages")
