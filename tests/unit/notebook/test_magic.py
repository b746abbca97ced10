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
    answer = run(f"{line} --max-tokens 3 --into answer", "Hi\n", variables, blocks=True)
    assert answer.token_ids == tokens_after(variables, rendered, 3)
    assert variables["answer"] is answer
    assert "ended: length" in capsys.readouterr().out


def test_a_cell_may_be_a_turn_of_a_chat(variables: dict[str, Any]) -> None:
    run("chat", "Hi", variables, blocks=True)
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
        run(line, "Hi", variables, blocks=True)
    session: Session = variables["session"]
    assert session.stats.scheduler.ended == 0


@pytest.fixture
def shell(variables: dict[str, Any]) -> Iterator[Any]:
    """Return a shell of IPython with the magic and the variables."""
    from IPython.core.interactiveshell import InteractiveShell

    shell: Any = InteractiveShell()  # type: ignore[no-untyped-call]
    shell.user_ns.update(variables)
    rekindle.load_ipython_extension(shell)
    yield shell
    rekindle.unload_ipython_extension(shell)


def test_a_cell_awaits_so_that_tasks_of_its_loop_run_meanwhile(shell: Any, variables: dict[str, Any]) -> None:
    shell.run_cell("import asyncio; ticks = []")
    shell.run_cell(
        "async def tick():\n    while 'answer' not in globals(): ticks.append(await asyncio.sleep(0))\n"
        "task = asyncio.get_running_loop().create_task(tick()); await asyncio.sleep(0)"
    ).raise_error()
    shell.run_cell("%%rekindle --max-tokens 40 --into answer\nHi\n").raise_error()
    assert shell.user_ns["answer"].token_ids == tokens_after(variables, "user:Hi;a:", 40)
    assert len(shell.user_ns["ticks"]) > 1


def test_with_autoawait_off_a_cell_blocks(shell: Any) -> None:
    shell.autoawait = False
    shell.run_cell("%%rekindle --max-tokens 3 --into answer\nHi").raise_error()
    assert len(shell.user_ns["answer"].token_ids) == 3


def completions(shell: Any, line: str) -> set[str]:
    """Return the completions at the end of the first line of a cell, as a kernel finds them."""
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        return {each.text for each in shell.Completer.completions(f"{line}\nHi", len(line))}


def test_its_first_line_is_completed_and_its_help_has_the_options(shell: Any) -> None:
    assert {"--max-tokens"} <= completions(shell, "%%rekindle --max")
    assert {"chat"} <= completions(shell, "%%rekindle ch")
    assert "--into NAME" in shell.find_cell_magic("rekindle").__doc__


def test_ipython_loads_and_unloads_it(shell: Any) -> None:
    assert "rekindle" in shell.magics_manager.magics["cell"]
    shell.user_ns.pop("session")
    with pytest.raises(InvalidRequest, match="variables with one: chat"):
        shell.run_cell_magic("rekindle", "", "Hi")
    rekindle.unload_ipython_extension(shell)
    assert "rekindle" not in shell.magics_manager.magics["cell"]
    cell = "%%rekindle\nHi"
    assert "await" not in shell.transform_cell(cell)
