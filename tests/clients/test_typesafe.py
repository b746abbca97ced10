"""TypeSafe's own client of System One gets the decisions of a session."""

from collections.abc import Iterator

import pytest
from typesafe_sdk import Choice, Noul, Score, TypeSafeBadRequestError, TypeSafeClient, TypeSafeNotFoundError

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME

STATE = {"document": "I was charged twice. Please fix this."}
TOPICS = {"billing": "payments and refunds", "technical": None, "other": None}
LEVELS = ["low", "middle", "high"]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[TypeSafeClient]:
    with TypeSafeClient(api_key="none", base_url=server.url, model=NAME) as client:
        yield client


def test_its_answers_are_those_of_decide(client: TypeSafeClient, session: rekindle.Session) -> None:
    topic, urgency = session.decide_sync(
        STATE, [rekindle.Choice("What is it about?", TOPICS), rekindle.Score("How urgent?", LEVELS)]
    )
    found = client.system_one(
        state=STATE,
        questions={
            "topic": Choice(instructions="What is it about?", criteria=TOPICS),
            "urgency": Score(instructions="How urgent?", criteria=LEVELS),
        },
    )
    assert found.choices["topic"].choice == topic.answer
    assert found.choices["topic"].confidence == pytest.approx(topic.confidence, abs=1e-5)
    assert found.choices["topic"].probabilities == pytest.approx(topic.probabilities, abs=1e-5)
    assert found.scores["urgency"].score == pytest.approx(urgency.answer, abs=1e-5)
    levels = {str(level): share for level, share in found.scores["urgency"].probabilities.items()}
    assert levels == pytest.approx(urgency.probabilities, abs=1e-5)


def test_its_errors_are_those_of_their_kinds(client: TypeSafeClient) -> None:
    """Ask a yes-or-no question, whose labels are several tokens of this model, and another model."""
    with pytest.raises(TypeSafeBadRequestError, match="'Yes' as one token"):
        client.system_one(state=STATE, questions={"billing": Noul(instructions="Is it about billing?")})
    choice = Choice(instructions="What is it about?", criteria=TOPICS)
    with pytest.raises(TypeSafeNotFoundError, match=f"this server has '{NAME}'"):
        client.system_one(state=STATE, questions={"topic": choice}, model="jev-latest")
