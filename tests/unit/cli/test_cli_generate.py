"""`rekindle generate` takes its prompt from words and standard input, and applies the chat template if there is one."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.__main__ import main
from rekindle.cli.generate import generating
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.session.session import Session
from tests.unit.command_line import fake_opening
from tests.waiting import until_blocking

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch, byte_tokenizer: Tokenizer) -> list[Any]:
    """Open the fake device, and return the list of all submitted prompts."""
    opening, prompts, submit = fake_opening(byte_tokenizer), [], Session.submit

    def noted(session: Session, prompt: Any = None, **options: Any) -> Any:
        prompts.append(prompt)
        return submit(session, prompt, **options)

    def noted_model(model: str, **options: Any) -> Session:
        prompts.append(model)
        session: Session = opening(model, **options)
        return session

    monkeypatch.setattr(Session, "submit", noted)
    monkeypatch.setattr(rekindle, "open_sync", noted_model)
    monkeypatch.setattr(generating, "_is_redirected", lambda: isinstance(sys.stdin, io.StringIO))
    return prompts


def messages(*texts: str) -> list[dict[str, str]]:
    """Return a conversation: the last text is the user's, another one the system's."""
    roles = ("system", "user")[-len(texts) :]
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


@pytest.mark.parametrize(
    ("arguments", "stdin", "model", "expected"),
    [
        (["hello"], None, NAME, messages("hello")),
        (["What", "is", "it?"], None, NAME, messages("What is it?")),
        (["and/or", "neither"], None, NAME, messages("and/or neither")),
        (["-m", "other", "Hello"], None, "other", messages("Hello")),
        (["--system", "Be brief.", "Hello"], None, NAME, messages("Be brief.", "Hello")),
        (["--raw", "Hello"], None, NAME, "Hello"),
        ([], "Hello\n", NAME, messages("Hello")),
        (["Summarise this."], "A text\n", NAME, messages("A text\n\nSummarise this.")),
        (["Summarise", "-", "now"], "it\n", NAME, messages("Summarise it now")),
        (["Hello"], "", NAME, messages("Hello")),
    ],
)
def test_words_and_standard_input_form_the_prompt(
    prompts: list[Any],
    arguments: list[str],
    stdin: str | None,
    model: str,
    expected: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    assert main(["generate", "--quiet", "--max-tokens", "2", *arguments]) == 0
    assert prompts == [model, expected]


def test_a_text_without_the_template_goes_to_a_model_that_has_none(
    prompts: list[Any],
    byte_tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(rekindle, "open_sync", fake_opening(byte_tokenizer, None))
    assert main(["generate", "--quiet", "--max-tokens", "2", "Hello"]) == 0
    assert prompts == ["Hello"]
    assert main(["generate", "--quiet", "--system", "Be brief.", "Hello"]) == 1
    assert "--system needs a chat template" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([NAME, "Hello"], f"rekindle generate -m {NAME} 'Hello'"),
        (["model.gguf", "Hello"], "rekindle generate -m model.gguf 'Hello'"),
        (["owner/name"], "'owner/name' is a model, which needs -m"),
        (["--raw", "--system", "Be brief.", "Hello"], "--raw leaves it out"),
        (["--json", "--stream", "Hello"], "not allowed with argument"),
    ],
)
def test_unclear_arguments_exit_with_2(
    prompts: list[Any], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["generate", *arguments])
    assert message in capsys.readouterr().err
    assert not prompts


def test_no_prompt_in_a_terminal_exits_with_2(
    prompts: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    with pytest.raises(SystemExit, match="2"):
        main(["generate"])
    assert "there is no prompt" in capsys.readouterr().err


def test_ends_of_thoughts_and_of_loops_and_drafts_are_options(
    prompts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: list[dict[str, Any]] = []

    def noted(session: Session, text: Any, **sampling: Any) -> Any:
        options.append(sampling)
        raise rekindle.InvalidRequest("seen")

    monkeypatch.setattr(Session, "submit", noted)
    assert main(["generate", "Hi", "--thinking-budget", "0", "--stop-on-repetition"]) == 1
    assert (options[0]["thinking_budget"], options[0]["stop_on_repetition"]) == (0, True)
    assert main(["generate", "Hi"]) == 1
    assert {"thinking_budget", "stop_on_repetition", "draft"}.isdisjoint(options[1])
    assert main(["generate", "Hi", "--thinking-budget", "-2"]) in (1, 2)
    assert len(options) == 2, "a wrong budget is refused before the model is opened"
    assert main(["generate", "Hi", "--draft", "lookup"]) == 1
    assert options[2]["draft"] == "lookup"


@pytest.mark.usefixtures("prompts")
@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_schema_is_text_or_a_file(in_a_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas: list[Any] = []

    def noted(session: Session, text: Any, **options: Any) -> Any:
        schemas.append(options["json_schema"])
        raise rekindle.InvalidRequest("enough")

    monkeypatch.setattr(Session, "submit", noted)
    schema = json.dumps(SCHEMA)
    if in_a_file:
        (tmp_path / "schema.json").write_text(schema, encoding="utf-8")
        schema = str(tmp_path / "schema.json")
    assert main(["generate", "--quiet", "--schema", schema, "Hello"]) == 1
    assert schemas == [SCHEMA]


@pytest.mark.usefixtures("prompts")
def test_without_a_stream_the_text_comes_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for form in ("--stream", "--no-stream"):
        assert main(["generate", "--quiet", "--max-tokens", "5", form, "Hello"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 1


def test_a_long_wait_for_standard_input_is_announced(prompts: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    errors = io.StringIO()

    class Late(io.StringIO):
        def read(self, size: int | None = -1) -> str:
            until_blocking(lambda: "reading standard input to its end" in errors.getvalue(), "the wait is announced")
            return super().read(size)

    monkeypatch.setattr(generating, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr(sys, "stdin", Late("Hello"))
    assert main(["generate", "--quiet", "--max-tokens", "2"]) == 0
    assert prompts == [NAME, messages("Hello")]


def test_an_image_by_address_is_refused_before_the_model_is_opened(
    prompts: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--image", "https://example.com/cat.png", "What is this?"]) == 1
    message = capsys.readouterr().err
    assert "an image must not be an address, because nothing is fetched" in message
    assert "https://example.com/cat.png" in message
    assert not prompts
