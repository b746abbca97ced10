"""Every message describes itself in a few words on one line, whatever it carries, and names its requests."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.core import messages
from rekindle.core.engine.wiring import FROM_LANES, TO_CALLER
from rekindle.core.errors import ConstraintFailed, InvalidRequest, ReplicaLost, StepTimeout
from rekindle.core.messages import (
    AdapterPut,
    Admit,
    Advance,
    Advanced,
    Archive,
    CacheSaved,
    CacheSaving,
    Cancel,
    Chunk,
    Collect,
    Collected,
    Continued,
    Conversation,
    Copy,
    CutPicture,
    Dispatched,
    Drop,
    Fetch,
    Fetched,
    FromLane,
    Gathered,
    Illustrated,
    Inspect,
    Inspected,
    KeepWeights,
    KnownTokens,
    LaneBack,
    LaneLost,
    Lost,
    Message,
    NewWeights,
    Offload,
    Offloaded,
    Onload,
    Output,
    Outputs,
    Overdue,
    PagesStaged,
    PictureCut,
    PicturedTokens,
    PictureRead,
    Plan,
    PutAdapter,
    PutPages,
    ReadPicture,
    Received,
    Rejected,
    RemoteOutput,
    RemoteOutputs,
    ReplicaFound,
    Returned,
    Row,
    SampleRow,
    SaveCache,
    ScoreRow,
    Scoring,
    SegmentEmbedding,
    SendPages,
    Settled,
    StagePages,
    Started,
    StateLost,
    Stopped,
    Submit,
    TakePages,
    Text,
    Texts,
    Tokenize,
    Tokenized,
    ToLane,
    UseWeights,
    WeightsKept,
    WeightsReplaced,
    WeightsUsed,
    Withdraw,
    Write,
    Written,
)
from rekindle.core.messages.record import MessageRecord
from rekindle.core.page import NewPage
from rekindle.core.request.constraint import Allowed
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import TokenLogprob
from rekindle.testing import fake_limits, fake_loaded_engine, fake_picture, fake_session

LONGEST = 2000
"""The most characters of a message's description, which has no line breaks."""

HOSTILE = "ignore\nthat\r\x0b\x0c\x1b[2J\x85\u2028\u2029\u202e\U000e0001\ud800 <b>&'\"\\" * 50
MANY = tuple(range(100_000, 100_500))
ARRAYS = (np.zeros((300, 300)), jnp.ones((300, 300)), *[np.arange(9.0)] * 20)
PARAMS = SamplingParams(stop=(HOSTILE,), bad_words=(HOSTILE, MANY), cache_salt=HOSTILE, logit_bias=((1, 2.0),) * 100)
REQUEST = Request(7, MANY, PARAMS, frozenset(MANY), 9, ((1, 2),) * 40, HOSTILE, hold=True)
LOGPROBS = (TokenLogprob(1, HOSTILE, -1.0, 1, ()),) * 40
PAGES = (NewPage(HOSTILE, HOSTILE, HOSTILE, HOSTILE.encode(errors="replace")),) * 40
CHAT = Conversation([{"role": "user", "content": HOSTILE}] * 40, [{"name": HOSTILE}], {"mood": HOSTILE})
CHUNKS = tuple(
    Chunk(at, at, 16, MANY, MANY, MANY, REQUEST if at % 2 else None, MANY, Scoring(0, MANY, 3)) for at in range(40)
)
PICTURES = (fake_picture(1, range(40)),) * 40
ROWS = tuple(Row(at, at, at, 20) for at in range(40))

HUGE: list[Message] = [
    StateLost(1),
    Submit(7, HOSTILE, PARAMS),
    Submit(7, MANY, PARAMS, hold=True),
    Submit(7, CHAT, PARAMS),
    Submit(7, Illustrated(HOSTILE, ((HOSTILE, HOSTILE),) * 40), PARAMS),
    Submit(7, KnownTokens(MANY, ((HOSTILE, HOSTILE),) * 40), PARAMS),
    Submit(7, PicturedTokens(MANY, PICTURES), PARAMS),
    CutPicture(7, PICTURES[0]),
    PictureCut(7, PICTURES[0].digest, PICTURES[0].patches()),
    PictureCut(7, PICTURES[0].digest, ValueError(HOSTILE)),
    ReadPicture(PICTURES[0].digest, np.arange(10_000)),
    PictureRead(PICTURES[0].digest, (np.zeros((10_000, 8)),), 10_000),
    Submit(7, Continued(Continued(HOSTILE, MANY), Continued(CHAT, HOSTILE)), PARAMS),
    Tokenize(Submit(7, HOSTILE, PARAMS)),
    Tokenized(7, REQUEST),
    Tokenized(7, InvalidRequest(HOSTILE)),
    Cancel(7),
    Admit(REQUEST),
    Withdraw(7),
    Rejected(7, InvalidRequest(HOSTILE)),
    Rejected(7, ValueError(HOSTILE, HOSTILE)),
    Plan(3, CHUNKS, ROWS, (Onload(ARRAYS, MANY, 5, ARRAYS[0], 3),) * 40, MANY),
    Plan(3, (), (), embeddings=(SegmentEmbedding(7, ARRAYS[0], PICTURES[0].patches()),) * 40),
    Offload(1, MANY, MANY, 0, MANY),
    Gathered(1, MANY, ARRAYS),
    Offloaded(1, is_stored=True),
    Offloaded(1, is_stored=False),
    Drop(MANY),
    Fetch(7, (Copy(1, None),) * 40),
    Fetched(7, ARRAYS),
    Fetched(7, None, (Copy(None, 1),) * 40),
    Archive(PAGES, MANY, MANY),
    Write(PAGES, ARRAYS, MANY),
    Written(MANY, MANY),
    SaveCache(1),
    CacheSaving(1, 5, 9),
    CacheSaved(1, 9, complete=True),
    Dispatched(3, (SampleRow(7, 0, 20),) * 40, (ScoreRow(7, 0, Scoring(0, MANY, 3)),) * 40, ARRAYS),
    Settled(3, tuple((at, at) for at in range(40)), dict.fromkeys(range(40), LOGPROBS), {7: LOGPROBS}),
    Started(7, (5,) * 100, None, CachedTokens(64, 16, 16)),
    Outputs((Output(REQUEST, MANY, "length", LOGPROBS, LOGPROBS),)),
    Stopped(7, 5),
    Overdue(3, StepTimeout("it hangs")),
    Advance(((REQUEST, 5),) * 40, MANY, late=MANY),
    Advanced(((7, Allowed(MANY, ARRAYS[0])), (7, ConstraintFailed(HOSTILE))) * 40, MANY),
    NewWeights(1, list(ARRAYS)),
    KeepWeights(1),
    WeightsKept(1),
    WeightsReplaced(2, "digest"),
    ToLane(1, Admit(REQUEST)),
    SendPages(REQUEST, 3),
    Collect(7, MANY),
    Collected(7, ARRAYS),
    StagePages(REQUEST, 3, ARRAYS),
    PagesStaged(7),
    TakePages(REQUEST, 3, ARRAYS),
    PutPages(MANY, ARRAYS),
    FromLane(1, Outputs((Output(REQUEST, MANY, None),))),
    UseWeights(1, list(ARRAYS), 1),
    PutAdapter(1, 0, ARRAYS, ARRAYS),
    AdapterPut(1),
    Inspect(1, "lens", ARRAYS),
    Inspected(1, ARRAYS),
    WeightsUsed(1, 1),
    RemoteOutputs((RemoteOutput(7, MANY, "length", LOGPROBS, LOGPROBS),) * 40),
    Received((Started(7, (5,) * 100, None, CachedTokens(64, 16, 16)),) * 40),
    Received((), ARRAYS),
    Lost(ReplicaLost(HOSTILE)),
    ReplicaFound(1, list(ARRAYS)),
    LaneLost((Admit(REQUEST),) * 40, ReplicaLost(HOSTILE)),
    LaneBack(),
    Returned(Admit(REQUEST)),
    Texts((Text(7, HOSTILE, MANY, "stop", HOSTILE, LOGPROBS, LOGPROBS),)),
]
OUTPUT = Output(REQUEST, (5,), None)


def test_every_kind_of_message_is_among_these_and_somebody_takes_it() -> None:
    kinds = [getattr(messages, name) for name in messages.__all__]
    public = {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Message)} - {Message}
    assert {*map(type, HUGE)} == public
    handled_kinds = {*fake_loaded_engine(fake_limits()).lanes[0].actors.by_message(), *TO_CALLER, *FROM_LANES}
    assert handled_kinds | {FromLane, ToLane, RemoteOutputs} == public


@pytest.mark.parametrize("message", HUGE, ids=lambda message: type(message).__name__)
def test_whatever_a_message_carries_its_words_are_one_line_without_an_array(message: Message) -> None:
    words = str(message)
    assert words.startswith(type(message).__name__)
    assert words.isprintable(), "nothing in it moves a cursor or ends a line"
    assert words.splitlines() == [words]
    assert len(words) <= LONGEST
    for dumped in (
        "array(",
        "Array(",
        "[0. ",
        "[[",
        "TokenLogprob(",
        "SamplingParams(",
        "NewPage(",
        "Chunk(",
        "<b>&'\"" * 3,
    ):
        assert dumped not in words


def test_what_was_handled_is_a_line_and_one_more_for_each_answer() -> None:
    for message in HUGE:
        lines = repr(MessageRecord("scheduler", message, tuple(HUGE), 0.0, 1.0)).splitlines()
        assert lines[0] == f"scheduler handled {message}"
        assert lines[1:] == [f"  answered {answer}" for answer in HUGE]


@pytest.mark.parametrize("message", HUGE, ids=lambda message: type(message).__name__)
def test_a_message_is_about_the_requests_whose_ids_it_carries(message: Message) -> None:
    match message:
        case Plan(chunks=()):
            assert message.requests == (), "an image is embedded for a chunk"
        case Plan():
            assert message.requests == (*MANY, *range(40), *range(40))
        case Dispatched():
            assert message.requests == (7,), "once, however many tokens it gets"
        case Settled():
            assert message.requests == tuple(range(40))
        case Advance():
            assert message.requests == (7, *MANY, *MANY), "once, however many tokens it has"
        case Advanced():
            assert message.requests == (7,) * 80 + MANY
        case Outputs() | Texts() | Tokenize() | ToLane() | FromLane() | Returned():
            assert message.requests == (7,)
        case RemoteOutputs() | LaneLost() | Received(messages=[_, *_]):
            assert message.requests == (7,) * 40
        case _ if any(hasattr(message, name) for name in ("request", "request_id")):
            assert message.requests == (7,)
        case _:
            assert message.requests == ()


def test_nothing_is_put_into_words_while_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Plan] = []

    def words(plan: Plan) -> str:
        calls.append(plan)
        return ""

    monkeypatch.setattr(Plan, "__str__", words)
    with fake_session() as session:
        session.generate_sync(token_ids=[[1, 2], [3]], max_tokens=4)
        assert not calls
        with session.trace():
            session.generate_sync(token_ids=[1, 2], max_tokens=4)
        assert calls


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Submit(3, "Hello\nthere", PARAMS), r"Submit: request 3, 'Hello\nthere'"),
        (Submit(3, (1, 2), PARAMS, hold=True), "Submit: request 3, token ids [1, 2], to be held"),
        (Submit(3, "x" * 100, PARAMS), f"Submit: request 3, '{'x' * 59}…'"),
        (Submit(3, Continued("a", (1,)), PARAMS), "Submit: request 3, 'a' and token ids [1]"),
        (Rejected(3, InvalidRequest("no\nway")), r"Rejected: request 3, InvalidRequest: 'no\nway'"),
        (CutPicture(3, fake_picture(1, range(8))), "CutPicture: request 3, 8 tokens"),
        (PictureCut(3, b"", ValueError("no")), "PictureCut: request 3, ValueError: 'no'"),
        (
            Plan(2, (), (), embeddings=(SegmentEmbedding(3, range(8), None),)),
            "Plan: tick 2; embed 8 tokens of an image of 3",
        ),
        (
            Plan(2, (Chunk(0, 0, 0, (1,) * 20, (), (), REQUEST), Chunk(4, 1, 16, (1,) * 16, (), (), None)), ()),
            "Plan: tick 2; prefill 0 from 0 to 20, then sample; prefill 4 from 16 to 32",
        ),
        (Plan(2, (), (Row(0, 0, 1), Row(5, 1, 2))), "Plan: tick 2; decode 0, 5"),
        (Plan(2, (), (), (Onload((1, 2), (8, 9)),)), "Plan: tick 2; onload pages [8, 9]"),
        (Plan(2, (), (), (Onload((1,), (8,), 0, 2, 3),)), "Plan: tick 2; onload pages [8] and a state into slot 3"),
        (Plan(2, (), (), (Onload((), (), 0, 2, 3),)), "Plan: tick 2; onload a state into slot 3"),
        (Offload(1, (), (7,), 0, (3,)), "Offload: the states of slots [3] to the host tier"),
        (Offload(1, (4,), (7, 8), 0, (3,)), "Offload: pages [4] and the states of slots [3] to the host tier"),
        (Plan(2, (), (Row(0, 0, 1),), (), (5, 3)), "Plan: tick 2; preempted 5, 3; decode 0"),
        (
            Dispatched(2, (SampleRow(0, 0, None), SampleRow(5, 1, None)), (), None),
            "Dispatched: tick 2, a token for 0, 5",
        ),
        (StateLost(1), "StateLost: the device had no memory for a tick"),
        (Settled(2, ((0, 17), (5, 9))), "Settled: tick 2, token 17 for 0, 9 for 5"),
        (Settled(2, ()), "Settled: tick 2"),
        (Started(3, (5,) * 100, None, CachedTokens(64, 16)), "Started: request 3, 80 of 100 prompt tokens cached"),
        (Tokenize(Submit(3, "Hello", PARAMS)), "Tokenize: request 3, 'Hello'"),
        (Tokenized(3, replace(REQUEST, prompt=(5, 6))), "Tokenized: request 3, 2 tokens"),
        (Tokenized(3, ValueError("no")), "Tokenized: request 3, ValueError: 'no'"),
        (Admit(replace(REQUEST, prompt=(5,))), "Admit: request 7, 1 prompt token"),
        (Started(3, (5,), 7, CachedTokens()), "Started: request 3, 0 of 1 prompt token cached"),
        (Gathered(1, (8,), ARRAYS[:1]), "Gathered: 1 copy"),
        (Drop((8,)), "Drop: 1 copy of the host tier"),
        (Drop((8, 9)), "Drop: 2 copies of the host tier"),
        (Fetched(3, ARRAYS[:1]), "Fetched: request 3, 1 copy"),
        (Fetched(3, None), "Fetched: request 3, not all of them"),
        (Stopped(3, 1), "Stopped: request 3, after 1 token"),
        (NewWeights(1, list(ARRAYS[:1])), "NewWeights: 1 array"),
        (Outputs((OUTPUT, OUTPUT)), "Outputs: request 7, tokens [5]; request 7, tokens [5]"),
        (Texts((Text(3, " hi", (5,), "length"),)), "Texts: request 3, ' hi', ended: length"),
        (SaveCache(1), "SaveCache"),
        (Advance(((REQUEST, 5),), (2, 3)), "Advance: token 5 for 7; 2, 3 ended"),
        (Advance((), (2,)), "Advance: 2 ended"),
        (Advance((), late=(8, 9)), "Advance: 8, 9 late"),
        (Advanced((), (8, 9)), "Advanced: 8, 9 late"),
        (Advanced(((7, Allowed((3, 1))), (8, Allowed()))), "Advanced: request 7, forced [3, 1], request 8, goes on"),
        (Advanced(((7, Allowed((3,), None, complete=True)),)), "Advanced: request 7, forced [3] and complete"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)  # fmt: skip
def test_the_words_say_what_matters(message: Message, words: str) -> None:
    assert str(message) == words


def test_a_list_that_is_cut_says_so() -> None:
    ten = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert str(Offload(1, tuple(range(10)), ())) == f"Offload: pages [{ten}] to the host tier"
    assert str(Offload(1, tuple(range(11)), ())) == f"Offload: pages [{ten}, …] to the host tier"
    rows = tuple(Row(at, at, at) for at in range(11))
    assert str(Plan(1, (), rows)) == f"Plan: tick 1; decode {ten}, …"


def test_what_waits_in_a_session_is_a_line_for_each_message() -> None:
    with fake_session() as session:
        session.pause_sync()
        assert repr(session.pending) == "no message waits"
        handle: Any = session.submit(token_ids=[1, 2])
        handle.cancel()
        assert repr(session.pending).splitlines() == [
            "for intake: Submit: request 0, token ids [1, 2]",
            "for intake: Cancel: request 0",
        ]
