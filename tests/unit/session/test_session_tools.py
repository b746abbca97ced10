"""A run goes on from call to result to answer, and whatever a function does, it goes on or ends clearly."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from rekindle import InvalidRequest, ToolRun
from rekindle.core.concurrency import mailbox
from rekindle.core.concurrency.mailbox import in_trio
from rekindle.session.session import Session
from tests.unit.scripted import call, dictated, scripted_session
from tests.unit.sessions import assert_all_is_free
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Weather in Rome?"}


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with scripted_session(monkeypatch, dictated) as session:
        yield session
        assert_all_is_free(session)


def weather(city: str, days: int = 1) -> dict[str, Any]:
    """Return the weather."""
    return {"city": city, "sun": days}


async def later(city: str) -> str:
    await anyio.lowlevel.checkpoint()
    return f"later in {city}"


def fails(city: str) -> str:
    raise RuntimeError(f"no {city}")


def says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"say {text}"}]


async def both(session: Session, messages: Any, tools: list[Callable[..., Any]], **options: Any) -> ToolRun:
    """Run in both ways, compare the two runs, and return one."""
    run = await session.run_tools(messages, tools, **options)
    assert session.run_tools_sync(messages, tools, **options) == run
    return run


async def test_a_function_is_called_and_its_result_answered(session: Session) -> None:
    run = await both(session, says(call(city="Rome", days=3)), [weather, later])
    assert run.stop == "answer"
    assert run.answer.content == 'It is: {"city": "Rome", "sun": 3}'
    (result,) = run.results
    assert (result.call.name, result.value, result.error) == ("weather", {"city": "Rome", "sun": 3}, None)
    assert [message["role"] for message in run.messages] == ["user", "assistant", "tool", "assistant"]
    assert run.messages[2]["tool_call_id"] == run.messages[1]["tool_calls"][0]["id"]
    assert str(run) == run.answer.content
    assert (
        repr(run.results) == """(<rekindle.ToolResult weather(city='Rome', days=3) → '{"city": "Rome", "sun": 3}'>,)"""
    )
    assert repr(run.steps[0]) == """<rekindle.ToolStep weather(city='Rome', days=3) → {"city": "Rome", "sun": 3}>"""
    assert repr(run.steps[1]) == f"<rekindle.ToolStep {run.answer.content!r}>"
    assert repr(result.call) == "<rekindle.ToolCall weather(city='Rome', days=3)>"
    assert run.messages[-1] == run.answer.message


async def test_async_functions_run_in_the_cells_loop_and_others_do_not_block_it(session: Session) -> None:
    threads: list[threading.Thread] = []

    async def here(city: str) -> str:
        threads.append(threading.current_thread())
        return city

    def there(city: str) -> str:
        threads.append(threading.current_thread())
        return city

    await session.run_tools(says(call("here", city="a") + call("there", city="b")), [here, there])
    assert threads[0] is threading.current_thread()
    assert threads[1] is not threading.current_thread()
    assert threads[1].daemon
    threads.clear()
    session.run_tools_sync(says(call("here", city="a") + call("there", city="b")), [here, there])
    assert threads[0] is not threading.current_thread()
    assert threads[1] is threading.current_thread()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (call("fails", city="Rome"), "error: RuntimeError: no Rome"),
        (call("later", city="Rome"), "later in Rome"),
        (call("nothing", city="Rome"), "error: there is no function 'nothing'; there are weather, later, fails"),
        (
            call(town="Rome"),
            "cannot take these arguments: expected city, days, got no city and an unknown town",
        ),
        (call(city=3), "weather cannot take these arguments: city: expected string, got 3"),
        ("<tool_call>{oops</tool_call>", "error: the call cannot be read: expected JSON, got '{oops'"),
    ],
)
async def test_what_a_call_comes_to_is_told_to_the_model(session: Session, text: str, expected: str) -> None:
    run = await both(session, says(text), [weather, later, fails])
    assert expected in run.results[0].content
    assert run.answer.content == f"It is: {run.results[0].content}"
    assert run.stop == "answer"


async def test_a_run_that_does_not_come_to_an_answer_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_session(monkeypatch, lambda prompt: call(city="Rome")) as session:
        run = await both(session, [USER], [weather], limit=3)
    assert (run.stop, len(run.steps), len(run.results)) == ("limit", 3, 2)
    assert run.answer.tool_calls
    assert "ended: limit" in repr(run)


async def test_calls_of_an_answer_that_was_cut_are_not_made(session: Session) -> None:
    """Cut the second of two calls: the model meant to make both, so none is made."""
    notes: list[str] = []
    text = call("note", text="a") + call("note", text="b" * 40)
    length = len(session.encode(text))
    run = await both(session, says(text), [note_into(notes)], max_tokens=length - 20)
    assert (run.stop, notes) == ("length", [])
    assert [each.error is None for each in run.answer.tool_calls] == [True, False]


def note_into(notes: list[str]) -> Callable[[str], None]:
    def note(text: str) -> None:
        notes.append(text)

    return note


async def test_a_function_that_never_returns_can_be_left(session: Session) -> None:
    started, end = threading.Event(), threading.Event()

    def waits(city: str) -> None:
        started.set()
        end.wait(PATIENCE)

    async def sleeps(city: str) -> None:
        started.set()
        await anyio.sleep_forever()

    for function in (waits, sleeps):
        started.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(session.run_tools, says(call(function.__name__, city="Rome")), [function])
            await anyio.to_thread.run_sync(started.wait)
            group.cancel_scope.cancel()
    end.set()
    assert (await session.run_tools(says("fine"), [weather])).answer.content == "fine"


async def test_the_loop_turns_while_an_async_function_waits_so_that_an_interrupt_is_heard(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_trio():  # which wakes itself
        return
    beats, enough = 0, anyio.Event()
    beat = mailbox._Pulses._beat

    def count_beat(pulses: mailbox._Pulses) -> None:
        nonlocal beats
        beats += 1
        if waiting and beats > 3:
            enough.set()
        beat(pulses)

    async def waits(city: str) -> str:
        nonlocal beats
        waiting.append(city)
        beats = 0
        await enough.wait()
        return "done"

    waiting: list[str] = []
    monkeypatch.setattr(mailbox, "PULSE_SECONDS", 0.001)
    monkeypatch.setattr(mailbox._Pulses, "_beat", count_beat)
    run = await session.run_tools(says(call("waits", city="Rome")), [waits])
    assert run.results[0].value == "done"


def test_an_interrupt_of_a_function_says_which_steps_had_ended(session: Session) -> None:
    def interrupted(city: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        session.run_tools_sync(says(call("interrupted", city="a")), [interrupted])
    assert vars(raised.value)["steps"] == ()
    assert raised.value.args == ("interrupted after 0 steps, which are in `steps` of this error",)


@pytest.mark.parametrize(
    ("tools", "options", "message"),
    [
        ([{"type": "function", "function": {"name": "now"}}], {}, "is a JSON schema; give the function"),
        ([lambda city: city], {}, "needs a name"),
        ([weather], {"limit": 0}, "limit must be an integer from 1"),
        ([weather], {"show": 1}, "show must be True or False"),
        ([weather], {"token_ids": [1]}, "unknown keyword 'token_ids'"),
        ([weather], {"temperature": -1}, "temperature"),
    ],
)
async def test_what_cannot_be_run_is_refused_in_words(session: Session, tools: Any, options: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await session.run_tools([USER], tools, **options)
    with pytest.raises(InvalidRequest, match=message):
        session.run_tools_sync([USER], tools, **options)


async def test_it_is_shown_as_it_goes_and_at_its_end(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    run = await session.run_tools(says(call(city="Rome")), [weather], show=True)
    printed = capsys.readouterr().out
    result = '{"city": "Rome", "sun": 1}'
    assert "[tool call] weather(city='Rome')" in printed
    assert f"[tool] weather(city='Rome') → {result}" in printed
    assert f"It is: {result}" in printed
    bundle = run._repr_mimebundle_()
    assert "It is: " in bundle["text/plain"]
    assert "2 answers, 1 call" in bundle["text/html"]
    assert bundle["text/html"].count("<table") == 1, "a call is shown with its result, and not a second time without"
    await session.run_tools(says("fine"), [weather])
    assert capsys.readouterr().out == ""


async def test_no_call_is_wanted_where_the_model_is_told_of_no_tools(session: Session) -> None:
    run = await both(session, says("fine"), [weather], tool_choice="none")
    assert "weather" not in session.decode(run.answer.prompt_token_ids)
    with pytest.raises(InvalidRequest, match=r"the name of a tool \(weather"):
        await session.run_tools(says("fine"), [weather], tool_choice="nothing")


@pytest.mark.parametrize("choice", ["required", "weather"])
async def test_a_required_call_is_that_of_the_script_in_the_form_of_the_model(session: Session, choice: str) -> None:
    answer = await session.generate(says(call(city="the hen")), tools=[later, weather], tool_choice=choice)
    assert answer.text == call(city="the hen").replace("{", "\n{", 1).replace("}<", "}\n<")
    assert [(each.name, each.arguments) for each in answer.tool_calls] == [("weather", {"city": "the hen"})]


async def test_a_required_call_follows_the_grammar_of_its_tool(session: Session) -> None:
    options: dict[str, Any] = {"tools": [later], "tool_grammars": {"later": 'start: "Rome" | "Oslo"'}}
    answer = await session.generate(says(call("later", city="Oslo in May")), tool_choice="later", **options)
    assert [each.arguments for each in answer.tool_calls] == [{"city": "Oslo"}]
    for wrong, reason in (
        (options, "tool_grammars are for required calls, and tool_choice is 'auto'"),
        (
            {**options, "tool_choice": "later", "tool_grammars": {"never": "start: /a/"}},
            "no tool of the call: never",
        ),
        ({**options, "tool_choice": "later", "tool_grammars": ["start"]}, "must be a dict of Lark grammars"),
        ({**options, "tool_choice": "later", "tool_grammars": {"later": "start: nope"}}, "cannot be served"),
        (
            {"tools": [weather], "tool_choice": "required", "tool_grammars": {"weather": "start: /a/"}},
            "has one argument, a text; it has city, days",
        ),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            await session.generate(says("fine"), **wrong)


PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


async def test_a_template_without_a_place_for_tools_has_them_in_the_system_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(prompt: str) -> str:
        assert '"name": "weather"' in prompt.split("<|im_end|>")[0]
        return "Sunny, I hear." if "<tool_response>" in prompt else f"I look.\n{call(city='Rome')}"

    with scripted_session(monkeypatch, answer, PLAIN) as session:
        run = await session.run_tools([USER], [weather])
        assert [(result.call.name, result.value) for result in run.steps[0].results] == [
            ("weather", {"city": "Rome", "sun": 1})
        ]
        assert (run.answer.content, run.steps[0].answer.content) == ("Sunny, I hear.", "I look.")
    with scripted_session(monkeypatch, lambda prompt: f" {call()} ", PLAIN) as session:
        assert (await session.generate([USER])).content == f" {call()} "


async def test_functions_are_schemas_for_generate(session: Session) -> None:
    assert session.render([USER], tools=[weather]).startswith("<|im_start|>system\nweather ")
    with pytest.raises(InvalidRequest, match=r"tools\[0\]"):
        await session.generate([USER], tools=[lambda: None])
