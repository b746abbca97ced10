"""A cell with the first line `%%rekindle` is a prompt: it takes the options of generate and shows its answer."""

from collections.abc import Iterator
from typing import Any

import pytest

import rekindle
from rekindle import InvalidRequest
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.magic import parse, run
from rekindle.session.session import Session
from rekindle.testing import expected_tokens, fake_limits, fake_loaded_engine, fake_session

TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"


@pytest.fixture
def variables(byte_tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    tokenizer = Tokenizer(byte_tokenizer.backend, chat_template=TEMPLATE)
    with fake_session(fake_loaded_engine(fake_limits(page_size=16), tokenizer=tokenizer)) as session:
        yield {"session": session, "chat": session.chat(max_tokens=2)}


def tokens_after(variables: dict[str, Any], rendered: str, count: int) -> tuple[int, ...]:
    return expected_tokens(variables["session"].encode(rendered), count)


def test_a_line_is_read_as_a_name_and_options() -> None:
    assert parse("") == ("session", {})
    line = "chat --max-tokens 64 --temperature=0.8 --ignore-eos --choice '[\"a\", \"b\"]' --system 'Be brief.'"
    options = {"max_tokens": 64, "temperature": 0.8, "ignore_eos": True, "choice": ["a", "b"], "system": "Be brief."}
    assert parse(line) == ("chat", options)


@pytest.mark.parametrize(
    ("line", "rendered"),
    [
        ("", "user:Hi;a:"),
        ("--system 'Be'", "system:Be;user:Hi;a:"),
        ("--raw", "Hi"),
    ],
)
def test_a_cell_is_a_message_unless_it_is_raw(
    variables: dict[str, Any], line: str, rendered: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(f"{line} --max-tokens 3 --into answer", "Hi\n", variables)
    assert answer.token_ids == tokens_after(variables, rendered, 3)
    assert variables["answer"] is answer
    assert "ended: length" in capsys.readouterr().out


def test_a_cell_may_be_a_turn_of_a_chat(variables: dict[str, Any]) -> None:
    run("chat", "Hi", variables)
    assert variables["chat"].messages[0] == {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sesion", "'sesion' has none; variables with one: session, chat"),
        ("a b", "one session or chat was expected"),
        ("--system 'x", "cannot be read"),
        ("--max-token 3", "max_tokens"),
        ("chat --raw", "--raw is for a session"),
        ("--raw --system x", "give one of them"),
    ],
)
def test_a_wrong_line_is_refused_in_words(variables: dict[str, Any], line: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        run(line, "Hi", variables)
    session: Session = variables["session"]
    assert session.stats.scheduler.ended == 0


def test_ipython_loads_and_unloads_it() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell: Any = InteractiveShell()  # type: ignore[no-untyped-call]
    rekindle.load_ipython_extension(shell)
    assert "rekindle" in shell.magics_manager.magics["cell"]
    with pytest.raises(InvalidRequest, match="first run session"):
        shell.run_cell_magic("rekindle", "", "Hi")
    rekindle.unload_ipython_extension(shell)
    assert "rekindle" not in shell.magics_manager.magics["cell"]
