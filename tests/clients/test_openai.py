"""OpenAI's own client gets from the server what a session gives, whole and in streams."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

import rekindle
from rekindle.server.listening.running import Server
from tests.clients.conftest import NAME
from tests.unit.sessions import ended_blocking
from tests.waiting import until_blocking

USER: list[Any] = [{"role": "user", "content": "Hello"}]
PLACE: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
PLACE |= {"additionalProperties": False}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": PLACE}}]


class Answer(BaseModel):
    """The form that an answer is parsed into."""

    color: Literal["red", "green"]
    sure: bool


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "rekindle"


def test_a_chat_is_the_answer_of_the_session(client: openai.OpenAI, session: rekindle.Session) -> None:
    made = client.chat.completions.create(
        model=NAME, messages=USER, max_completion_tokens=9, seed=5, temperature=1, logprobs=True, top_logprobs=2, n=2
    )
    answers = session.generate_sync(USER, max_tokens=9, seed=5, temperature=1, logprobs=2, n=2)
    assert [choice.message.content for choice in made.choices] == [answer.content for answer in answers]
    for choice, answer in zip(made.choices, answers, strict=True):
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert answer.logprobs is not None
        assert [each.token for each in choice.logprobs.content] == [each.text for each in answer.logprobs]
        assert [each.logprob for each in choice.logprobs.content] == [each.logprob for each in answer.logprobs]
        assert all(len(each.top_logprobs) == 2 for each in choice.logprobs.content)
    assert made.usage is not None
    assert made.usage.prompt_tokens == answers[0].usage.prompt_tokens
    assert made.usage.completion_tokens == 18


def test_a_stream_has_the_same_text(client: openai.OpenAI, session: rekindle.Session) -> None:
    chunks = list(
        client.chat.completions.create(
            model=NAME, messages=USER, max_tokens=9, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    answer = session.generate_sync(USER, max_tokens=9)
    assert text == answer.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9


def test_a_stream_that_is_left_is_cancelled(client: openai.OpenAI, session: rekindle.Session) -> None:
    with client.completions.create(
        model=NAME, prompt="x", max_tokens=500, stream=True, extra_body={"ignore_eos": True}, temperature=1
    ) as chunks:
        for _ in chunks:
            break
    until_blocking(lambda: not session.requests, "the server had cancelled the request")
    ended_blocking(session)


def test_the_events_of_a_stream_make_the_whole(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=NAME, messages=USER, tools=TOOLS, tool_choice="required", max_tokens=200
    ) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    made = client.chat.completions.create(
        model=NAME, messages=USER, tools=TOOLS, tool_choice="required", max_tokens=200
    )
    (calls, whole) = (streamed.choices[0].message.tool_calls, made.choices[0].message.tool_calls)
    assert calls
    assert whole
    assert [call.function.arguments for call in calls] == [call.function.arguments for call in whole]
    assert streamed.choices[0].finish_reason == "tool_calls"


def test_a_call_and_its_result_go_back_into_the_conversation(client: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    made = client.chat.completions.create(
        model=NAME, messages=USER, tools=TOOLS, tool_choice=choice, max_tokens=200, parallel_tool_calls=False
    )
    message = made.choices[0].message
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    told: Any = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    following = client.chat.completions.create(
        model=NAME,
        messages=[*USER, message, told],
        tools=TOOLS,
        max_tokens=4,
    )
    assert following.usage is not None
    assert following.usage.prompt_tokens > (made.usage.prompt_tokens if made.usage else 0)


def test_the_tokens_of_reasoning_are_counted(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"guided_grammar": 'start: "<think>" /[a-z]{5}/ "</think>" /[0-9]{3}/'}
    made = client.chat.completions.create(model=NAME, messages=USER, extra_body=body)
    assert made.usage is not None
    assert made.usage.completion_tokens_details is not None
    assert made.usage.completion_tokens_details.reasoning_tokens == 5
    *_, last = client.chat.completions.create(
        model=NAME, messages=USER, extra_body=body, stream=True, stream_options={"include_usage": True}
    )
    assert last.usage == made.usage.model_copy(update={"prompt_tokens_details": last.usage.prompt_tokens_details})
    response = client.responses.create(model=NAME, input="Hello", extra_body=body)
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 5
    assert len(response.output_text) == 3


def test_an_answer_is_parsed(client: openai.OpenAI) -> None:
    made = client.chat.completions.parse(model=NAME, messages=USER, response_format=Answer, max_tokens=100)
    assert isinstance(made.choices[0].message.parsed, Answer)


def test_further_fields_of_vllm_are_served(client: openai.OpenAI) -> None:
    body = {"guided_choice": ["yes", "no"], "top_k": 5, "repetition_penalty": 1.1, "cache_salt": "me"}
    made = client.chat.completions.create(model=NAME, messages=USER, extra_body=body)
    assert made.choices[0].message.content in ("yes", "no")


def test_a_response_is_the_same_whole_and_in_a_stream(client: openai.OpenAI, session: rekindle.Session) -> None:
    made = client.responses.create(model=NAME, input="Hello", max_output_tokens=9)
    answer = session.generate_sync(USER, max_tokens=9)
    assert made.output_text == answer.content
    assert (made.status, made.usage.output_tokens if made.usage else 0) == ("incomplete", 9)
    with client.responses.stream(model=NAME, input="Hello", max_output_tokens=9) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    assert last.response.output_text == answer.content
    with client.responses.stream(model=NAME, input="Hello", text_format=Answer, max_output_tokens=100) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Answer)


def test_a_response_is_parsed_and_calls_tools(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model=NAME, input="Hello", text_format=Answer, max_output_tokens=100)
    assert isinstance(parsed.output_parsed, Answer)
    tools: Any = [{"type": "function", "name": "weather", "parameters": PLACE, "strict": True}]
    asked: Any = [{"role": "user", "content": "Hello"}]
    made = client.responses.create(model=NAME, input=asked, tools=tools, tool_choice="required", max_output_tokens=200)
    calls = [item for item in made.output if item.type == "function_call"]
    assert json.loads(calls[0].arguments)["city"] in ("Rome", "Oslo")
    asked += [item.model_dump(exclude_none=True) for item in made.output]
    asked += [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    following = client.responses.create(model=NAME, input=asked, tools=tools, max_output_tokens=4)
    assert following.usage is not None
    assert made.usage is not None
    assert following.usage.input_tokens > made.usage.input_tokens


COLORS = 'start: COLOR LF TONE\nCOLOR: "red" | "green"\nTONE: "light" | "dark"\n%import common.LF'


@pytest.mark.parametrize(
    ("syntax", "definition", "between"), [("regex", "(red|green) (light|dark)", " "), ("lark", COLORS, "\n")]
)
def test_custom_and_allowed_tools_are_called_whole_and_in_streams(
    client: openai.OpenAI, syntax: str, definition: str, between: str
) -> None:
    form: Any = {"syntax": syntax, "definition": definition}
    paint: Any = {"type": "custom", "custom": {"name": "paint", "format": {"type": "grammar", "grammar": form}}}
    entry: Any = {"type": "custom", "custom": {"name": "paint"}}
    allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [entry]}}
    made = client.chat.completions.create(
        model=NAME, messages=USER, tools=[*TOOLS, paint], tool_choice=allowed, max_tokens=200, parallel_tool_calls=False
    )
    assert made.choices[0].message.tool_calls is not None
    (call,) = made.choices[0].message.tool_calls
    assert call.type == "custom"
    assert call.custom.input in {f"{color}{between}{tone}" for color in ("red", "green") for tone in ("light", "dark")}
    tools: Any = [{"type": "custom", "name": "paint", "format": {"type": "grammar", **form}}]
    choice: Any = {"type": "custom", "name": "paint"}
    with client.responses.stream(
        model=NAME, input="Hello", tools=tools, tool_choice=choice, max_output_tokens=200
    ) as stream:
        events = list(stream)
    final = stream.get_final_response()
    (item,) = final.output
    assert item.type == "custom_tool_call"
    assert item.input == "".join(each.delta for each in events if each.type == "response.custom_tool_call_input.delta")
    asked: Any = ["Hello", item, {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "done"}]
    asked[0] = {"role": "user", "content": "Hello"}
    following = client.responses.create(model=NAME, input=asked, tools=tools, max_output_tokens=4)
    assert following.usage is not None


def test_arguments_of_a_call_come_in_pieces(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=NAME, messages=USER, tools=TOOLS, tool_choice="required", max_tokens=200, stream=True
        )
    )
    pieces = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or ()]
    assert len(pieces) > 2
    first = [each.function.arguments or "" for each in pieces if each.index == 0 and each.function]
    assert json.loads("".join(first))["city"] in ("Rome", "Oslo")
    tools: Any = [{"type": "function", "name": "weather", "parameters": PLACE, "strict": True}]
    with client.responses.stream(
        model=NAME, input="Hello", tools=tools, tool_choice="required", max_output_tokens=200
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
    calls = [item for item in stream.get_final_response().output if item.type == "function_call"]
    assert len(deltas) > len(calls)
    assert "".join(deltas) == "".join(call.arguments for call in calls)


def test_hints_and_tools_of_any_template_are_served(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model=NAME,
        messages=USER,
        max_tokens=3,
        reasoning_effort="low",
        verbosity="low",
        service_tier="auto",
        prompt_cache_key="key",
        safety_identifier="me",
        extra_body={"chat_template_kwargs": {"nothing_reads_it": False}},
    )
    assert made.usage is not None
    response = client.responses.create(
        model=NAME, input="Hello", max_output_tokens=3, reasoning={"effort": "low"}, text={"verbosity": "low"}
    )
    assert response.status == "incomplete"
    with pytest.raises(openai.BadRequestError, match="it is unknown"):
        client.chat.completions.create(model=NAME, messages=USER, extra_body={"reasoning_efort": "low"})


def test_completions_of_several_prompts_echo_them(client: openai.OpenAI) -> None:
    made = client.completions.create(model=NAME, prompt=["abc", "de"], max_tokens=3, echo=True, logprobs=1)
    assert [choice.text[:2] for choice in made.choices] == ["ab", "de"]
    logprobs = made.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.tokens[:3] == ["a", "b", "c"]


def test_embeddings_are_those_of_the_session(client: openai.OpenAI, session: rekindle.Session) -> None:
    texts = ["one text", "another"]
    expected = session.embed_sync(texts, dimensions=8)
    packed = client.embeddings.create(model=NAME, input=texts, dimensions=8)  # in base64, unless it says otherwise
    floats = client.embeddings.create(model=NAME, input=texts, dimensions=8, encoding_format="float")
    assert [each.embedding for each in packed.data] == expected.tolist()
    assert [each.embedding for each in floats.data] == [each.embedding for each in packed.data]


def test_decisions_are_those_of_the_session(
    client: openai.OpenAI, session: rekindle.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    refund = rekindle.YesNo("Is a refund requested?")
    one = rekindle.Decisions((rekindle.Decision(refund, {"yes": 0.75, "no": 0.25}, 0.9),))

    async def decide(*_: object, **__: object) -> rekindle.Decisions:
        return one

    monkeypatch.setattr(rekindle.Session, "decide", decide)
    question = {"type": "predicate", "name": "refund", "instructions": refund.instructions}
    body = {"model": NAME, "input": "I want my money back.", "questions": [question]}
    found: Any = client.post("/decisions", body=body, cast_to=object)  # older clients have no name for it
    assert found["answers"] == [{"type": "predicate", "name": "refund", "probability": 0.75}]


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=NAME, messages=USER, temperature=1000)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=USER)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="tokens") as long:
        client.completions.create(model=NAME, prompt="x" * 1000)
    assert long.value.code == "context_length_exceeded"


def test_a_wrong_key_is_refused(session: rekindle.Session) -> None:
    with session.serve_sync(port=0, api_keys=["secret"]) as server:
        for key, passes in (("secret", True), ("other", False)):
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                if passes:
                    client.models.list()
                else:
                    with pytest.raises(openai.AuthenticationError):
                        client.models.list()


def test_sixty_four_at_once_get_each_its_own(server: Server, session: rekindle.Session) -> None:
    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:

            async def one(number: int) -> str:
                if number % 2:
                    made = await client.completions.create(
                        model=NAME, prompt=f"number {number}", max_tokens=6, seed=number, temperature=1
                    )
                    return str(made.choices[0].text)
                chunks = await client.completions.create(
                    model=NAME, prompt=f"number {number}", max_tokens=6, seed=number, temperature=1, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in chunks])

            return await asyncio.gather(*map(one, range(64)))

    texts = asyncio.run(all_of_them())
    expected = [
        session.generate_sync(f"number {number}", max_tokens=6, seed=number, temperature=1).text for number in range(64)
    ]
    assert texts == expected
    assert session.stats.scheduler.running == 0
