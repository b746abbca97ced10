"""inspect-ai finds a session by its name, and gets answers, calls and numbers in its own objects."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task, eval_async
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Model,
    ModelOutput,
    ResponseSchema,
    get_model,
    get_model_info,
)
from inspect_ai.scorer import match
from inspect_ai.solver import Solver, generate, use_tools
from inspect_ai.tool import ToolCall, ToolFunction, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel

import rekindle
from rekindle.formats.response import MessageForm, Response
from rekindle.formats.response import ToolCall as SessionToolCall
from rekindle.session.inspect_ai import options, provider
from rekindle.session.inspect_ai.messages import conversation
from rekindle.session.inspect_ai.outputs import output_of
from rekindle.settings.engine import SettingsOptions
from tests.harness.popularity import popularity
from tests.sentence_models import chat_model
from tests.unit.scripted import Script, scripted_session
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio
SMALL: SettingsOptions = {
    "page_size": 16,
    "max_context": 512,
    "max_running": 4,
    "precompile": "lazy",
    "dtype": "float32",
}
GUIDE = Path(__file__).parents[2] / "tutorials" / "guides" / "evaluating.md"
CHAT: Any = [{"role": "user", "content": "Hello"}]
Scripted = Callable[[Script], Model]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def checkpoint(families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(families, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def session(checkpoint: Path) -> Iterator[rekindle.Session]:
    with rekindle.open_sync(checkpoint, progress=False, **SMALL) as tiny:
        yield tiny


@pytest.fixture
def model(session: rekindle.Session) -> Model:
    return get_model("rekindle/tiny", session=session, memoize=False)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    with ExitStack() as stack:

        def open_scripted(script: Script) -> Model:
            fake = stack.enter_context(scripted_session(monkeypatch, script))
            return get_model("rekindle/scripted", session=fake, memoize=False)

        yield open_scripted


async def evaluated(task: Task, model: Model, folder: Path, **further: Any) -> EvalLog:
    (log,) = await eval_async(task, model=model, log_dir=str(folder), **further)
    assert log.status == "success", log.error
    return log


def samples_of(log: EvalLog) -> Sequence[Any]:
    assert log.samples
    return list(log.samples)


def questions(*texts: str, solver: Sequence[Solver] | None = None) -> Task:
    return Task(dataset=[Sample(input=text, target="x") for text in texts], solver=solver or generate(), scorer=match())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_command_runs_a_task(checkpoint: Path, tmp_path: Path, backend: str) -> None:
    arguments = [f"rekindle/{checkpoint}", "--log-dir", str(tmp_path), "--display", "plain", "--epochs", "2"]
    arguments += ["--max-tokens", "8", "--temperature", "1", "--seed", "5", "--log-format", "json"]
    arguments += ["--extra-body", '{"ignore_eos": true}']
    for name, value in SMALL.items():
        arguments += ["-M", f"{name}={value}"]
    process = subprocess.run(
        [sys.executable, "-m", "inspect_ai", "eval", "popularity.py", "--model", *arguments],
        cwd=Path(__file__).parent,
        env={**os.environ, "INSPECT_ASYNC_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert process.returncode == 0, process.stderr + process.stdout
    (path,) = tmp_path.glob("*.json")
    log = read_eval_log(str(path))
    assert (log.status, log.eval.model) == ("success", f"rekindle/{checkpoint}")
    assert [sample.output.stop_reason for sample in samples_of(log)] == ["max_tokens"] * 6
    (usage,) = log.stats.model_usage.values()
    assert usage.output_tokens == 6 * 8
    with rekindle.open_sync(checkpoint, progress=False, **SMALL) as session:
        for sample in samples_of(log):
            messages: Any = [{"role": each.role, "content": each.text} for each in sample.messages[:-1]]
            seed = 5 + sample.epoch - 1
            own = session.generate_sync(messages, max_tokens=8, temperature=1, seed=seed, ignore_eos=True)
            assert sample.output.completion == own.content


def test_the_command_names_the_setting_for_a_misspelt_one(checkpoint: Path) -> None:
    with pytest.raises(PrerequisiteError) as error:
        get_model(f"rekindle/{checkpoint}", max_contxt=64)
    assert "unknown setting 'max_contxt'; did you mean max_context?" in str(error.value.message)
    with pytest.raises(PrerequisiteError) as error:
        get_model("rekindle/no/such/model/here")
    assert "rekindle/no/such/model/here: " in str(error.value.message)
    with pytest.raises(PrerequisiteError) as error:
        get_model(f"rekindle/{checkpoint}", base_url="http://localhost")
    assert "leave out base_url" in str(error.value.message)


async def test_epochs_have_seeds_of_their_own_and_repeat_themselves(model: Model, tmp_path: Path) -> None:
    config: Any = {"epochs": 3, "seed": 11, "temperature": 1.0, "max_tokens": 12}
    first, second = [
        [sample.output.completion for sample in samples_of(await evaluated(popularity(2), model, tmp_path, **config))]
        for _ in range(2)
    ]
    assert first == second
    assert len(set(first)) == 6


async def test_inspects_own_cache_spares_the_session(
    model: Model, session: rekindle.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    logs, ends = [], [session.stats.scheduler.ended]
    for _ in range(2):
        logs.append(await evaluated(popularity(2), model, tmp_path, epochs=2, cache=True, max_tokens=4))
        ends.append(session.stats.scheduler.ended)
    assert [ends[1] - ends[0], ends[2] - ends[1]] == [4, 0]
    texts = [[sample.output.completion for sample in samples_of(log)] for log in logs]
    assert texts[0] == texts[1]


async def test_more_samples_than_the_session_computes_together_share_it(model: Model, tmp_path: Path) -> None:
    task = questions(*(f"Question {number}" for number in range(12)))
    log = await evaluated(task, model, tmp_path, max_tokens=4, max_connections=9, max_samples=12)
    assert [sample.output.usage.output_tokens for sample in samples_of(log)] == [4] * 12
    assert model.api.max_connections() == 4


async def test_logprobs_and_usage_are_those_of_the_session(model: Model, session: rekindle.Session) -> None:
    config = GenerateConfig(max_tokens=6, logprobs=True, top_logprobs=2, prompt_logprobs=1)
    output = await model.generate("Hello", config=config)
    own = await session.generate(CHAT, max_tokens=6, logprobs=2, prompt_logprobs=0, stop_on_repetition=False)
    (choice,) = output.choices
    assert own.logprobs is not None
    assert own.prompt_logprobs is not None
    assert choice.logprobs is not None
    assert [each.logprob for each in choice.logprobs.content] == [each.logprob for each in own.logprobs]
    assert [each.token for each in choice.logprobs.content[0].top_logprobs or ()] == [
        each.text for each in own.logprobs[0].top
    ]
    assert choice.prompt_logprobs is not None
    scores = [each.logprob for each in own.prompt_logprobs if each is not None]
    assert [each.logprob for each in choice.prompt_logprobs.content] == pytest.approx(scores, abs=1e-4)
    assert choice.prompt_logprobs.content[0].top_logprobs is None


async def test_cached_tokens_are_told_apart(model: Model, session: rekindle.Session) -> None:
    prompt = "A long question of more than a page of the prefix cache: why is it so?"
    first, second = [await model.generate(prompt, config=GenerateConfig(max_tokens=2)) for _ in range(2)]
    assert first.usage is not None
    assert second.usage is not None
    cached = second.usage.input_tokens_cache_read
    assert cached
    assert cached % 16 == 0
    assert second.usage.input_tokens + cached == first.usage.input_tokens + (first.usage.input_tokens_cache_read or 0)
    assert second.usage.total_tokens == first.usage.total_tokens == second.usage.input_tokens + cached + 2
    assert await model.count_tokens("Hello") == 5
    assert await model.api.tokenize("Hello") == session.encode("Hello")


async def test_choices_are_independent_unless_they_are_greedy(model: Model) -> None:
    config = GenerateConfig(num_choices=3, max_tokens=8, seed=1)
    sampled = await model.generate("Hello", config=config.merge(GenerateConfig(temperature=1)))
    assert len({choice.message.text for choice in sampled.choices}) == 3
    greedy = await model.generate("Hello", config=config.merge(GenerateConfig(temperature=0)))
    assert len({choice.message.text for choice in greedy.choices}) == 1
    assert len(greedy.choices) == 3
    assert sampled.usage is not None
    assert sampled.usage.output_tokens == 24
    assert sampled.metadata is not None
    assert sampled.metadata["seeds"][0] == 1


class Verdict(BaseModel):
    sure: bool


async def test_answers_follow_a_schema(model: Model) -> None:
    schema = ResponseSchema(name="verdict", json_schema=json_schema(Verdict))
    output = await model.generate("Sure?", config=GenerateConfig(response_schema=schema, max_tokens=64))
    assert isinstance(json.loads(output.completion)["sure"], bool)
    assert output.stop_reason == "stop"


async def test_parameters_change_the_choice_of_tokens(model: Model, session: rekindle.Session) -> None:
    config = GenerateConfig(max_tokens=8, logit_bias={65: 100.0}, presence_penalty=1.5, frequency_penalty=1.5, top_k=5)
    output = await model.generate("Hello", config=config.merge(GenerateConfig(temperature=0.7, top_p=0.9, seed=3)))
    sampling: Any = {"logit_bias": {65: 100.0}, "presence_penalty": 1.5, "frequency_penalty": 1.5, "top_k": 5}
    own = await session.generate(CHAT, max_tokens=8, temperature=0.7, top_p=0.9, seed=3, **sampling)
    assert output.completion == own.content
    further = GenerateConfig(max_tokens=8, extra_body={"regex": "[ab]{4}"})
    assert set((await model.generate("Hello", config=further)).completion) <= {"a", "b"}
    stopped = await model.generate("Hello", config=GenerateConfig(max_tokens=8, stop_seqs=[own.content[0]]))
    assert own.content[0] not in stopped.completion


async def test_unknown_options_of_a_request_have_a_hint(model: Model) -> None:
    with pytest.raises(rekindle.InvalidRequest, match="unknown keyword 'mini_p'; did you mean min_p"):
        await model.generate("Hello", config=GenerateConfig(extra_body={"mini_p": 0.1}))


def test_every_option_of_inspect_has_its_place() -> None:
    places = [*options.KEYWORDS, *options.CONVERTED, *options.OF_INSPECT, *options.IDLE, *options.NEUTRAL]
    assert sorted(places) == sorted(GenerateConfig.model_fields)
    rows = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in rows[:4]))) == sorted(places)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"verbosity": "low"}, "verbosity='low' would change answers"),
        ({"effort": "high"}, "effort='high' would change answers"),
        ({"best_of": 2}, "best_of=2 would change answers"),
        ({"reasoning_mode": "pro"}, "reasoning_mode='pro' would change answers"),
        ({"modalities": ["image"]}, "would change answers"),
        ({"reasoning_effort": "high"}, "does not read 'reasoning_effort'"),
        ({"top_logprobs": 3}, "top_logprobs=3 needs logprobs=True"),
        ({"top_p": 2.0}, "top_p"),
    ],
)
async def test_what_would_change_answers_and_is_not_here_is_refused(
    model: Model, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(rekindle.InvalidRequest, match=message):
        await model.generate("Hello", config=GenerateConfig(**config))


def test_a_wrong_option_of_a_model_is_refused_before_it_is_opened(checkpoint: Path) -> None:
    with pytest.raises(PrerequisiteError) as error:
        get_model(f"rekindle/{checkpoint}", config=GenerateConfig(verbosity="low"))
    assert "leave verbosity out" in str(error.value.message)
    assert not provider._sessions


async def test_neutral_options_and_options_for_speed_change_nothing(
    model: Model, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "_noted", set())
    neutral: Any = {"best_of": 1, "verbosity": "medium", "reasoning_effort": "none", "modalities": []}
    idle: Any = {"batch": True, "cache_prompt": False, "extra_headers": {"x": "y"}}
    plain = await model.generate("Hello", config=GenerateConfig(max_tokens=6))
    with caplog.at_level("WARNING", "rekindle.session.inspect_ai.options"):
        for _ in range(2):
            other = await model.generate("Hello", config=GenerateConfig(max_tokens=6, **neutral, **idle))
            assert other.completion == plain.completion
    assert [record.message for record in caplog.records if record.name.startswith("rekindle")] == [
        "rekindle: without an effect on a model in this process: batch, cache_prompt, extra_headers"
    ]


@tool  # type: ignore[untyped-decorator, unused-ignore]  # inspect-ai may not be installed
def add() -> Any:
    async def execute(x: int, y: int) -> int:
        """Add two numbers.

        Args:
            x: the first number.
            y: the second number.
        """
        return x + y

    return execute


def call_text(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def test_a_tool_is_called_and_its_result_is_read(scripted: Scripted, tmp_path: Path) -> None:
    def script(conversation: str) -> str:
        return "It is 3." if "<|im_start|>tool" in conversation else call_text("add", x=1, y=2)

    task = questions("What is 1 + 2?", solver=[use_tools(add()), generate()])
    (sample,) = samples_of(await evaluated(task, scripted(script), tmp_path))
    assert [message.role for message in sample.messages] == ["user", "assistant", "tool", "assistant"]
    (call,) = sample.messages[1].tool_calls
    assert (call.function, call.arguments, call.parse_error) == ("add", {"x": 1, "y": 2}, None)
    assert (sample.messages[2].text, sample.messages[2].tool_call_id) == ("3", call.id)
    assert (sample.output.completion, sample.output.stop_reason) == ("It is 3.", "stop")


async def test_the_choice_of_a_tool_is_kept(scripted: Scripted) -> None:
    model = scripted(lambda _: call_text("add", x=4, y=5))
    for choice in ("any", ToolFunction("add")):
        output = await model.generate("Hello", tools=[add()], tool_choice=choice)
        assert output.stop_reason == "tool_calls"
        assert output.message.tool_calls
        assert output.message.tool_calls[0].arguments == {"x": 4, "y": 5}
    plain = await scripted(lambda text: "tools" if "add" in text else "none").generate(
        "Hi", [add()], tool_choice="none"
    )
    assert plain.completion == "none"


async def test_a_call_that_cannot_be_read_is_told_to_the_model(scripted: Scripted, tmp_path: Path) -> None:
    prompts: list[str] = []

    def script(conversation: str) -> str:
        prompts.append(conversation)
        return "I give up." if "<|im_start|>tool" in conversation else '<tool_call>{"name": "add", oops}</tool_call>'

    task = questions("What is 1 + 2?", solver=[use_tools(add()), generate()])
    (sample,) = samples_of(await evaluated(task, scripted(script), tmp_path))
    assert sample.messages[1].tool_calls[0].parse_error
    assert sample.messages[2].error.type == "parsing"
    assert "oops" in prompts[-1]
    assert sample.messages[2].error.message in prompts[-1]


async def test_reasoning_is_apart_and_goes_back_to_the_template(scripted: Scripted) -> None:
    prompts: list[str] = []

    def script(conversation: str) -> str:
        prompts.append(conversation)
        return "<think>Two words.</think>Hello there"

    model = scripted(script)
    output = await model.generate([ChatMessageUser(content="Greet me")])
    reasoning, text = output.message.content
    assert isinstance(reasoning, ContentReasoning)
    assert isinstance(text, ContentText)
    assert (reasoning.reasoning, text.text) == ("Two words.", "Hello there")
    assert output.usage is not None
    assert output.usage.reasoning_tokens
    await model.generate([ChatMessageUser(content="Greet me"), output.message, ChatMessageUser(content="Again")])
    assert "<think>Two words.</think>Hello there" in prompts[-1]


async def test_a_last_message_of_the_assistant_is_continued(model: Model, session: rekindle.Session) -> None:
    messages = [ChatMessageUser(content="What is 1+1?"), ChatMessageAssistant(content="1+1=")]
    output = await model.generate(list(messages), config=GenerateConfig(max_tokens=6))
    plain: Any = [{"role": each.role, "content": each.text} for each in messages]
    own = await session.generate(plain, max_tokens=6, continue_final_message=True)
    assert output.completion == own.content


async def test_a_full_context_ends_an_answer_as_inspect_calls_it(model: Model) -> None:
    long = await model.generate("x" * 600)
    assert (long.stop_reason, long.choices[0].message.text) == ("model_length", long.error)
    assert "at most 511 fit" in str(long.error)
    full = await model.generate("x" * 400, config=GenerateConfig(max_tokens=400, extra_body={"ignore_eos": True}))
    assert full.stop_reason == "model_length"
    cut = await model.generate("x", config=GenerateConfig(max_tokens=5, extra_body={"ignore_eos": True}))
    assert cut.stop_reason == "max_tokens"
    info = get_model_info(model)
    assert info is not None
    assert info.context_length == 512


async def test_content_other_than_text_is_refused(model: Model) -> None:
    picture = ChatMessageUser(
        content=[ContentText(text="What is it?"), ContentImage(image="data:image/png;base64,AA==")]
    )
    with pytest.raises(rekindle.InvalidRequest, match="role 'user' has image content"):
        await model.generate([picture])


def test_unreadable_calls_and_repetitions_have_an_output(session: rekindle.Session) -> None:
    answer = session.generate_sync(CHAT, max_tokens=2)
    call = SessionToolCall("", {}, "<tool_call>{</tool_call>", "id", "it is no JSON")
    broken = output_of("tiny", [replace(answer, response=Response("text", tool_calls=(call,)))], 8)
    assert isinstance(broken, ModelOutput)
    assert broken.completion == "text<tool_call>{</tool_call>"
    assert broken.message.tool_calls == [
        ToolCall(id="id", function="unknown", arguments={}, parse_error="it is no JSON")
    ]
    assert output_of("tiny", [replace(answer, finish_reason="repetition")], 8).stop_reason == "unknown"


def test_messages_have_the_form_of_the_template() -> None:
    call = ToolCall(id="a", function="add", arguments={"x": 1})
    messages = [
        ChatMessageAssistant(content=[ContentReasoning(reasoning="secret", redacted=True)], tool_calls=[call]),
        ChatMessageTool(content="1", tool_call_id="a", function="add"),
    ]
    answer, result = conversation(messages, MessageForm(reasoning_key="thinking", arguments_as_text=True))
    assert answer["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"x": 1}'}
    assert "thinking" not in answer
    assert result == {"role": "tool", "content": "1", "tool_call_id": "a", "name": "add"}


def test_a_model_has_one_session_in_a_process(checkpoint: Path) -> None:
    first = get_model(f"rekindle/{checkpoint}", memoize=False, **SMALL)
    second = get_model(f"rekindle/{checkpoint}", memoize=False, config=GenerateConfig(temperature=0.5))
    assert first.api._session is second.api._session
    other = get_model(f"rekindle/{checkpoint}", memoize=False, **{**SMALL, "max_context": 256})
    assert other.api._session is not first.api._session
    tiny = first.api._session
    with first:
        pass
    first.api.close()
    assert tiny.error is None
    with second, other:
        pass
    assert isinstance(tiny.error, rekindle.SessionClosed)
    assert not provider._sessions
    with pytest.raises(rekindle.ConfigError, match="is closed"):
        _ = first.api._session


async def test_a_session_of_the_caller_stays_open(session: rekindle.Session) -> None:
    async with get_model("rekindle/tiny", session=session, memoize=False):
        pass
    assert session.error is None
    with pytest.raises(PrerequisiteError) as error:
        get_model("rekindle/tiny", session=session, memoize=False, max_running=2)
    assert "leave out max_running" in str(error.value.message)


async def test_an_asynchronous_end_closes_the_session(checkpoint: Path) -> None:
    async with get_model(f"rekindle/{checkpoint}", memoize=False, **SMALL) as model:
        tiny = model.api._session
        assert (await model.generate("Hello", config=GenerateConfig(max_tokens=2))).stop_reason == "max_tokens"
    assert isinstance(tiny.error, rekindle.SessionClosed)


def test_a_look_up_of_a_name_opens_nothing() -> None:
    assert get_model_info("rekindle/owner/nothing-of-this-name") is None
    model = get_model("rekindle/owner/nothing-of-this-name", api_key="a key")
    with pytest.raises(rekindle.ConfigError, match="has an api_key"):
        model.api.max_connections()


def test_evaluations_of_other_models_do_not_wait_for_jax_and_rekindle_imports_no_evaluator() -> None:
    code = "import sys; sys.argv = ['inspect']; from inspect_ai.model import get_model; get_model('mockllm/model'); "
    code += "assert 'rekindle.session.inspect_ai.registry' in sys.modules; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
    code = "import rekindle, sys; [getattr(rekindle, name) for name in rekindle.__all__]; "
    code += "print({'inspect_ai', 'lm_eval', 'datasets', 'ray', 'starlette'} & {*sys.modules})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert process.stdout == "set()\n"
