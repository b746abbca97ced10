"""Programs of DSPy run on the server."""

import json
import warnings
from typing import Any, Literal

import pytest

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME
from tests.unit.scripted import scripted_session


@pytest.fixture(scope="module")
def dspy() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dspy

    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    return dspy


def language_model(dspy: Any, server: Server, name: str, **options: Any) -> Any:
    return dspy.LM(f"openai/{name}", api_base=f"{server.url}/v1", api_key="none", **options)


def test_a_model_answers(dspy: Any, server: Server, session: rekindle.Session) -> None:
    made = language_model(dspy, server, NAME, max_tokens=30, temperature=0)
    answer = session.generate_sync([{"role": "user", "content": "Hello"}], max_tokens=30)
    assert made("Hello") == [answer.content]
    assert made.history[-1]["usage"]["completion_tokens"] == 30


@pytest.fixture(scope="module")
def signature(dspy: Any) -> Any:
    class Weather(dspy.Signature):  # type: ignore[misc]
        """Tell the weather."""

        question: str = dspy.InputField()
        city: Literal["Rome", "Oslo"] = dspy.OutputField()
        sunny: bool = dspy.OutputField()

    return Weather


def test_a_schema_holds_the_answer_of_a_model_without_training(dspy: Any, signature: Any, big_server: Server) -> None:
    from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider

    url = f"{big_server.url}/v1"
    access = AccessPolicy(provider="rekindle", env_keys=("REKINDLE_KEY",), base_url=url)
    definition = ProviderDefinition.chat(access, compat=OpenAIChatCompat())
    register_provider(definition, supports=ModelSupport(response_schema=True, function_calling=True), replace=True)
    made = dspy.LM(f"rekindle/{NAME}", api_base=url, api_key="none", max_tokens=300)
    with dspy.context(lm=made, adapter=dspy.JSONAdapter()):
        found = dspy.Predict(signature)(question="Hello")
    (answer,) = made.history[-1]["outputs"]
    assert json.loads(answer) == {"city": found.city, "sunny": found.sunny}
    assert found.city in ("Rome", "Oslo")
    assert "response_format" in made.history[-1]["kwargs"]


@pytest.mark.parametrize("adapter", ["ChatAdapter", "JSONAdapter", "XMLAdapter"])
def test_a_signature_is_filled(dspy: Any, signature: Any, monkeypatch: pytest.MonkeyPatch, adapter: str) -> None:
    answers = {
        "ChatAdapter": "[[ ## city ## ]]\nRome\n\n[[ ## sunny ## ]]\nTrue\n\n[[ ## completed ## ]]",
        "JSONAdapter": json.dumps({"city": "Rome", "sunny": True}),
        "XMLAdapter": "<city>Rome</city><sunny>True</sunny>",
    }
    with (
        scripted_session(monkeypatch, lambda _: answers[adapter], max_context=16_384) as session,
        session.serve_sync(port=0) as server,
        dspy.context(lm=language_model(dspy, server, "fake"), adapter=getattr(dspy, adapter)()),
    ):
        found = dspy.Predict(signature)(question="Hello")
    assert (found.city, found.sunny) == ("Rome", True)
