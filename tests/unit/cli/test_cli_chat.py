"""`rekindle chat` answers lines, keeps the conversation, and survives interrupts and errors of a person."""

import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils._paths import filter_repo_objects
from hypothesis import given
from hypothesis import strategies as st

import rekindle
from rekindle.__main__ import main
from rekindle.cli.chat import commands, conversing, lines
from rekindle.cli.chat.branches import undone_text
from rekindle.cli.chat.screen import DIM, ERASE, PLAIN, WAITING, Screen
from rekindle.cli.chat.talk import Talk
from rekindle.cli.chat.wrapping import WordWrap, wrap
from rekindle.core.errors import InvalidRequest
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.formats.response import Part
from rekindle.session.session import Session
from tests.unit.command_line import fake_opening, patient_model, running
from tests.waiting import PATIENCE, until_blocking

Say = Callable[..., tuple[str, str]]
SHORT = ("--max-tokens", "4")


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, byte_tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> Say:
    """Return a function to pipe lines into a chat with the fake device, and to get its stdout and stderr."""
    monkeypatch.setattr(rekindle, "open_sync", fake_opening(byte_tokenizer))

    def say(*lines: str, arguments: tuple[str, ...] = (), status: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert main(["chat", "fake", *SHORT, *arguments]) == status
        captured = capsys.readouterr()
        return captured.out, captured.err

    return say


def users(output: str) -> list[str]:
    """Return the user's messages in the output of /show."""
    return [line.removeprefix("user: ") for line in output.splitlines() if line.startswith("user: ")]


def test_a_pipe_gets_answers_without_prompts_and_colours(say: Say) -> None:
    output, notes = say("Hello", "And?")
    assert len(output.splitlines()) >= 2
    assert ">>>" not in output + notes
    assert "\x1b" not in output + notes
    assert "cached" not in output + notes
    assert say("Hello", "And?", arguments=("--quiet",)) == (output, "")


def test_turns_are_remembered_undone_and_cleared(say: Say) -> None:
    assert users(say("one", "two", "/show")[0]) == ["one", "two"]
    assert users(say("one", "two", "/undo", "/show")[0]) == ["one"]
    assert users(say("one", "/clear", "two", "/show")[0]) == ["two"]
    assert users(say("one", "/clear", "/undo", "/show")[0]) == ["one"]
    undone = say("one", f"{'long ' * 20}", "/clear", "/undo", "/undo", "/system Be kind.", "/undo", "/undo")[1]
    lines = [line for line in undone.splitlines() if line.startswith(("undone: ", "back again: "))]
    assert lines == [
        "back again: “one” and 3 more messages",
        f"undone: “{('long ' * 20)[:60]}…” and its answer",
        "undone: the system message “Be kind.”",
        "undone: “one” and its answer; the conversation is empty",
    ]
    undone = say("one", "/edit two", "/undo", "/undo")[1]
    assert re.search("undone: the answer “.*”\nundone: “two”; back again: “one” and its answer\n", undone)
    assert "there is no turn to undo" in say("/undo", status=1)[1]


def test_the_last_message_is_edited_and_answered(say: Say) -> None:
    output, _ = say("one", "two", "/edit three", "/show")
    assert users(output) == ["one", "three"]
    assert output.count("assistant: ") == 2
    assert users(say("one", "/edit three", "/undo", "/undo", "/show")[0]) == ["one"]
    assert "/edit TEXT" in say("one", "/edit", status=1)[1]


def test_branches_are_independent(say: Say) -> None:
    output, _ = say("one", "/branch", "two", "/branch 1", "three", "/show")
    assert users(output) == ["one", "three"]
    assert "* 1  2 messages  one\n  2  4 messages  two\n" in output
    assert "no branch '3'; there are 1" in say("/branch 3", status=1)[1]


def test_a_system_message_is_first_and_stays(say: Say) -> None:
    output, _ = say("one", "/system Be kind.", "/clear", "two", "/show", "/system", arguments=("--system", "Be brief."))
    assert "system: Be kind.\nuser: two\n" in output
    assert output.endswith("\nBe kind.\n")
    assert "there is no system message" in say("/system")[0]


def test_a_conversation_is_saved_and_loaded(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "chat.json")
    say("one", f"/save {path}", arguments=("--system", "Be brief."))
    assert [message["role"] for message in json.loads(Path(path).read_text())["messages"]] == [
        "system",
        "user",
        "assistant",
    ]
    for output, _ in (say(f"/load {path}", "two", "/show"), say("two", "/show", arguments=("--load", path))):
        assert users(output) == ["one", "two"]
    assert "cannot be read" in say("/load nowhere.json", status=1)[1]
    assert "needs a file" in say("/save", status=1)[1]
    monkeypatch.setattr(rekindle, "open_sync", lambda *model, **options: pytest.fail("a model was opened"))
    Path(path).write_text('{"messages": 3}')
    assert "cannot be read" in say("one", arguments=("--load", "nowhere.json"), status=1)[1]
    assert "expected a JSON object with a list of messages" in say(arguments=("--load", path), status=1)[1]


def test_a_full_chat_goes_on_without_its_oldest_turns_or_names_the_commands(say: Say) -> None:
    lines = [f"{turn} {'hello ' * 120}" for turn in range(6)]
    output, notes = say(*lines, "/show")
    assert [text.split()[0] for text in users(output)] == ["0", "1", "2", "3", "4", "5"]
    assert notes.count("its oldest turns are no longer sent to the model") == 1
    notes = say(*lines, arguments=("--when-full", "stop"), status=1)[1]
    assert "/undo takes the last turn back, and /clear begins a new conversation" in notes
    assert "open()" not in notes
    for way, words in (("trim", "/continue goes on"), ("stop", "/undo takes")):
        notes = say("hello " * 670, arguments=("--max-tokens", "900", "--ignore-eos", "--when-full", way))[1]
        assert f"the context of 4,096 tokens is full: {words}" in notes
        assert "--max-tokens N" not in notes


def test_a_cut_answer_goes_on_and_another_one_is_a_branch(say: Say) -> None:
    output, notes = say("one", "/continue", "/continue", "/show")
    assert notes.count("/continue goes on, and --max-tokens N allows more") == 3
    printed, _, shown = output.partition("user: one\nassistant: ")
    assert "".join(printed.split("\n")) == "".join(shown.split("\n")), "each part is printed once"
    whole = say("one", arguments=("--max-tokens", "12"))[0]
    assert shown.strip() == whole.strip(), "nothing tells that it was cut"
    assert users(say("one", "/continue", "/undo", "/undo", "/show")[0]) == []
    output, notes = say("one", "two", "/retry", "/show", "/branches", "/branch 1", "/show")
    assert "/branch 1 has the former answer" in notes
    assert users(output) == ["one", "two", "one", "two"]
    assert "  1  4 messages  two\n* 2  4 messages  two\n" in output
    answers = re.findall("user: two\nassistant: (.*)\n", output)
    assert len({*answers}) == 2, "another seed, another answer"
    for command, words in (("/retry", "no message of the user to answer anew"), ("/continue", "no answer to continue")):
        assert words in say(command, status=1)[1]


def test_stats_tell_the_figures_of_the_last_answer(say: Say) -> None:
    output, _ = say("Hello", "/stats")
    assert f"prompt    0 of {len('<user>Hello')} prompt tokens cached\n" in output
    assert "answer    4 tokens, the first after " in output
    assert "tokens of context" in output


def test_lines_between_triple_quotes_are_one_message(say: Say) -> None:
    output, _ = say('"""one', 'two"""', '"""three"""', "//four", "/show")
    assert "user: one\ntwo\nassistant:" in output
    assert "user: three\n" in output
    assert "user: /four\n" in output
    assert say('"""one', "two")[0] != ""


def test_a_misspelt_command_is_no_message(say: Say) -> None:
    assert "no command /sytem; did you mean /system?" in say("/sytem hi", status=1)[1]
    assert "no command /xyz; /help lists the commands" in say("/xyz", status=1)[1]
    assert users(say("/etc/hosts is a file", "/show")[0]) == ["/etc/hosts is a file"]
    helped = say("/help", "/exit", "never said")[0]
    assert all(f"/{name}" in helped for name in commands.COMMANDS)


def test_a_model_without_a_template_cannot_chat(
    byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rekindle, "open_sync", fake_opening(byte_tokenizer, None))
    assert main(["chat", "fake"]) == 1
    stderr = capsys.readouterr().err
    assert "has no chat template, so it cannot chat" in stderr
    assert "--chat-template FILE, or use rekindle generate" in stderr
    with pytest.raises(SystemExit, match="2"):
        main(["chat", "fake", "-m", "other"])
    assert "there are two models" in capsys.readouterr().err


class Typed:
    """Lines of a person, some of which raise an error."""

    interactive = True

    def __init__(self, *script: Any):
        self._script = iter(script)

    def read(self, text: str = "") -> str:
        """Return the next line, or raise the next error."""
        line = next(self._script, EOFError)
        if isinstance(line, str):
            return line
        raise line


def test_an_interrupt_after_the_last_token_keeps_the_turn(
    say: Say, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = Typed("one", KeyboardInterrupt, "two", "/show", "/undo", "/show", "/nonsense", "/exit", "never")
    monkeypatch.setattr(conversing, "open_lines", lambda names, **options: typed)
    show, interrupts = Talk.say, iter([False, True])

    def interrupted(talk: Talk, text: str | None) -> bool:
        """Interrupt the second answer at its first part, when the request has ended."""
        if next(interrupts):
            original = talk.screen.part

            def part(each: Part) -> None:
                original(each)
                until_blocking(lambda: not talk.session.requests, "the request ends")
                raise KeyboardInterrupt

            monkeypatch.setattr(talk.screen, "part", part)
        return show(talk, text)

    monkeypatch.setattr(Talk, "say", interrupted)
    output, notes = say()
    first, second = output.split("user: one\n")[1:]
    assert "user: two\nassistant: " in first
    assert "user:" not in second
    assert "the answer had just ended, and the chat has all of it" in notes
    assert "Ctrl-D or /exit leaves the chat" in notes
    assert "no command /nonsense" in output


def test_an_edit_that_fails_leaves_the_chat_as_it_was(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversing, "open_lines", lambda names, **options: Typed("one", "/edit two", "/show"))
    show, calls = Talk.say, iter(["one", None])

    def failing(talk: Talk, text: str | None) -> bool:
        if next(calls) is None:
            raise InvalidRequest("no answer today")
        return show(talk, text)

    monkeypatch.setattr(Talk, "say", failing)
    output, _ = say()
    assert users(output) == ["one"]
    assert "no answer today" in output


def test_reasoning_is_a_paragraph_of_its_own_and_dim_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [Part("reasoning", "Let me"), Part("reasoning", " see."), Part("content", "Paris")]
    outputs = []
    monkeypatch.delenv("NO_COLOR", raising=False)
    for is_terminal in (False, True):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        screen = Screen(quiet=False)
        for part in parts:
            screen.part(part)
        screen.end()
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == "Let me see.\n\nParis\n"
    assert outputs[1] == f"{DIM}Let{PLAIN}{DIM} me{PLAIN}{DIM} see.{PLAIN}\n\nParis\n\n"


def test_a_sign_of_life_is_erased_by_the_first_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    for term, begin in (("xterm", f"\n{WAITING}{ERASE}"), ("dumb", "\n")):
        monkeypatch.setenv("TERM", term)
        screen = Screen(quiet=False)
        screen.wait()
        screen.part(Part("content", "Pa"))
        screen.part(Part("content", "ris is"))
        assert capsys.readouterr().out == f"{begin}Paris"
        screen.end()
        assert capsys.readouterr().out == " is\n\n"


WORDS = st.lists(st.text("abc", min_size=1, max_size=7), min_size=1, max_size=30)


@given(WORDS, st.integers(8, 40), st.integers(1, 9))
def test_a_growing_text_is_broken_between_words_alone(words: list[str], columns: int, size: int) -> None:
    text, wrapping = " ".join(words), WordWrap(lambda: columns)
    chunks = [text[place : place + size] for place in range(0, len(text), size)]
    broken = "".join(map(wrapping.push, chunks)) + wrapping.finish()
    assert broken.split() == words
    assert broken.replace("\n", " ") == text
    lines = broken.split("\n")
    assert max(map(len, lines)) <= columns
    for line, following in pairwise(lines):  # each line is as full as it can be
        assert len(line) + 1 + len(following.split(" ")[0]) > columns


def test_code_and_wide_characters_and_indentation_are_kept() -> None:
    wrapping = WordWrap(lambda: 10)
    code = "```python\nprint('a long line')\n```\n"
    assert wrapping.push(code) + wrapping.push("  and words\n") == f"{code}  and\n  words\n"
    assert wrapping.push("你好你好你好 ok") + wrapping.finish() == "你好你好你\n好 ok"
    assert wrapping.push(" " + "x" * 25) == "\n" + "x" * 20
    assert wrap("/undo  drop the last turn, or so", 20) == "/undo  drop the last\n       turn, or so"


def test_items_of_lists_begin_their_lines_below_their_text() -> None:
    wrapping = WordWrap(lambda: 16)
    text = "1. Ask for a map of it\n   - or draw one of your own\n\nIn the end, go there\n10) At most ten in all"
    assert (wrapping.push(text) + wrapping.finish()).splitlines() == [
        "1. Ask for a map",
        "   of it",
        "   - or draw one",
        "     of your own",
        "",
        "In the end, go",
        "there",
        "10) At most ten",
        "    in all",
    ]


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    assert wrap("m is ready in 1 s (16 s the first time)", 22).splitlines() == [
        "m is ready in 1 s",
        "(16 s the first time)",
    ]
    assert wrap("the first after 256 ms, then 51 tokens/s", 19).splitlines() == [
        "the first after",
        "256 ms, then 51",
        "tokens/s",
    ]


def test_the_next_start_offers_the_last_conversation(
    say: Say, own_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def typed(*script: Any, arguments: tuple[str, ...] = ()) -> str:
        monkeypatch.setattr(conversing, "open_lines", lambda names, **options: Typed(*script))
        return say(arguments=arguments)[0]

    assert "/resume" not in typed("one", "two", "/undo")
    again = typed("/show", "/resume", "/show", "three")
    assert "the last conversation: “one” and its answer; /resume continues it" in again
    assert again.index("the conversation is empty") < again.index("user: one")
    (history,) = (Path(os.environ["REKINDLE_CACHE"]) / "history").glob("chat-*.json")
    assert os.name == "nt" or history.stat().st_mode & 0o077 == 0
    assert [message["content"] for message in json.loads(history.read_text())["messages"]][::2] == ["one", "three"]
    content = history.read_text()
    private = typed("secret", "/resume", arguments=("--no-history",))
    assert "last conversation" not in private
    assert "no conversation of an earlier start" in private
    assert history.read_text() == content
    history.write_text("{")
    assert "/resume continues" not in typed("/exit")


def test_earlier_conversations_are_chosen_by_number(say: Say, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(*script: Any) -> tuple[str, str]:
        monkeypatch.setattr(conversing, "open_lines", lambda names, **options: Typed(*script))
        return say()

    typed("one")
    typed("two", "/clear", "three")
    shown, _ = typed("/resume 9", "/resume 3", "/show", "more", "/undo", "/undo", "/show")
    assert "; /resume continues it, /resume N one of 3\n" in shown
    assert re.search(
        r"no conversation '9'; the latest are:\n  1  three  2 messages, less.*\n  2  two .*\n  3  one ", shown
    )
    assert "user: one\n" in shown
    assert shown.endswith("the conversation is empty\n\n"), "as it was before /resume"
    damaged = min((Path(os.environ["REKINDLE_CACHE"]) / "history").glob("chat-*.json"))
    damaged.write_text("{")
    assert f"{damaged.name} was skipped: it has no conversation" in typed("/exit")[1]


def test_a_resumed_conversation_has_its_tokens(
    say: Say, own_cache: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Continue with the tokens of random bytes, which the tokenizer would not make of their text."""
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:")
    lengths = list[int]()
    say_turn = Talk.say

    def counted(self: Talk, text: str | None) -> bool:
        grown = say_turn(self, text)
        assert self.answer is not None
        lengths.append(self.answer.usage.prompt_tokens)
        return grown

    monkeypatch.setattr(Talk, "say", counted)
    for script in (("one",), ("/resume", "two"), ("one", "two")):
        monkeypatch.setattr(conversing, "open_lines", lambda names, script=script, **options: Typed(*script))
        say(arguments=("--max-tokens", "40", "--chat-template", str(template)))
    assert lengths[1] == lengths[3], "a prompt has as many tokens as without a restart"


def test_an_undo_of_the_system_message_names_that_alone() -> None:
    talk = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    system = [{"role": "system", "content": "Be brief."}]
    assert undone_text([*system, *talk], talk) == "undone: the system message “Be brief.”"
    assert undone_text(talk, [*system, *talk]) == "back again: the system message “Be brief.”"
    assert undone_text([*system, *talk], system) == "undone: “one” and its answer"


def test_completeness_of_messages() -> None:
    assert [lines.is_complete(text) for text in ("", "one", '"""', '"""one', '"""one"""', '""""""')] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]


@pytest.fixture(scope="module")
def patient(families: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return patient_model(families, tmp_path_factory.mktemp("models") / "patient")


def _saving() -> bool:
    """Return True while programs are compiled or saved, for which the end of a process waits."""
    return any(thread.name == "rekindle-programs" for thread in threading.enumerate())


@pytest.mark.wide
def test_what_one_command_compiles_the_others_load(
    patient: str, own_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(Path(os.environ["REKINDLE_CACHE"]) / "empty"))
    opening, compiled = rekindle.open_sync, []

    def noted(model: str = NAME, **options: Any) -> Session:
        until_blocking(lambda: not _saving(), "the programs of the earlier session are saved")
        session = opening(model, **options)
        compiled.append(session.restored.compiled)
        return session

    monkeypatch.setattr(rekindle, "open_sync", noted)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    assert main(["generate", "-m", patient, "--max-tokens", "4"]) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    assert main(["chat", patient, "--max-tokens", "4"]) == 0
    with noted(patient):
        pass
    first, *others = compiled
    assert first > 0
    assert others == [0, 0]


@contextmanager
def terminal(*arguments: str) -> Iterator[tuple[Callable[[str], str], Callable[[str], int], subprocess.Popen[str]]]:
    """Run the command line in a terminal.

    Returns:
        A function to wait for a regular expression and return the output until its end, a function to type, and the
        process.
    """
    own, inner = pty.openpty()
    output = ""

    def wait_for(pattern: str) -> str:
        nonlocal output
        while not (match := re.search(pattern, output, re.DOTALL)):
            ready, _, _ = select.select([own], [], [], PATIENCE)
            assert ready, f"no {pattern!r} in {output!r}"
            output += os.read(own, 4096).decode(errors="replace")
        text, output = output[: match.end()], output[match.end() :]
        return text

    try:
        with running(*arguments, stdin=inner, stdout=inner, stderr=inner) as process:
            os.close(inner)
            yield wait_for, lambda text: os.write(own, text.encode()), process
    finally:
        os.close(own)


@pytest.mark.wide
@pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_a_terminal_stops_the_answer_and_ctrl_d_leaves(patient: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")  # this terminal does not tell where its cursor is
    monkeypatch.setenv("TERM", "xterm")
    typing, prompt, answering = r"\x1b\[\?2004h", ">>>", r"\x1b\[\?2004l"  # a line is typed while the mode is on
    with terminal("chat", patient, "--max-tokens", "16000", "--ignore-eos") as (wait_for, send, process):
        wait_for(f"{typing}.*{prompt}")
        send("Hello\r")
        wait_for(rf"{answering}.*…\x1b\[0m.*[a-z][a-z]")  # behind the sign of life
        send("typed ahead")
        process.send_signal(signal.SIGINT)
        assert "typed" not in wait_for("stopped; the chat has the answer so far")
        wait_for(f"{typing}.*{prompt}.*typed ahead")
        send("\x15/branches\r")
        wait_for(f"1  2 messages  Hello.*{typing}.*{prompt}")
        send("/undo\r")
        wait_for(f"undone: “Hello” and its answer; the conversation is empty.*{typing}.*{prompt}")
        send("\x03")
        wait_for(f"Ctrl-D or /exit leaves the chat.*{typing}.*{prompt}")
        send("\x04")
        assert process.wait(PATIENCE) == 0


def test_a_model_without_a_template_is_told_before_its_weights_are_read(
    families: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the model was opened")

    monkeypatch.setattr(rekindle, "open_sync", never)
    assert main(["chat", str(families / "qwen3")]) == 1
    assert "--chat-template FILE" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="was opened"):
        main(["serve", str(families / "qwen3"), "--port", "0"])
    stderr = capsys.readouterr().err
    assert "has no chat template, so chats are refused" in stderr
    assert "/v1/completions" in stderr
    monkeypatch.setattr(rekindle, "serve_sync", never)
    with pytest.raises(AssertionError, match="was opened"):
        main(["serve", str(families / "qwen3"), str(families / "qwen2"), "--port", "0"])
    stderr = capsys.readouterr().err
    for name in ("qwen3", "qwen2"):
        assert f"{name} has no chat template, so chats are refused" in stderr
    assert "chat_template in its table" in stderr


def test_a_cached_model_of_the_hub_without_a_template_is_told_before_its_weights_are_read(
    families: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the model was opened")

    commit, folder = "0" * 40, tmp_path / "models--tiny--qwen3"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    shutil.copytree(families / "qwen3", folder / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(rekindle, "open_sync", never)
    assert main(["chat", "tiny/qwen3"]) == 1
    assert "tiny/qwen3 has no chat template, so it cannot chat" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="was opened"):
        main(["serve", "tiny/qwen3", "--port", "0"])
    assert "tiny/qwen3 has no chat template, so chats are refused" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="was opened"):
        main(["serve", "tiny/other", "--port", "0"])
    assert "chat template" not in capsys.readouterr().err


@pytest.mark.parametrize("case", ["no template", "template", "embeddings", "unreachable"])
def test_a_model_of_the_hub_without_a_template_is_told_before_its_weights_are_downloaded(
    case: str, families: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[str] = []

    def snapshot_download(name: str, *, local_dir: Path | None = None, allow_patterns: list[str], **_: object) -> str:
        if local_dir is None or case == "unreachable":
            raise OSError("not here")
        for file in filter_repo_objects([path.name for path in files.iterdir()], allow_patterns=allow_patterns):
            shutil.copy(files / file, local_dir / file)
            fetched.append(file)
        return str(local_dir)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the model was opened")

    files = tmp_path / "files"
    shutil.copytree(families / "qwen3", files)
    (files / "tokenizer_config.json").write_text("{}")
    if case == "template":
        (files / "chat_template.jinja").write_text("{{ messages }}")
    if case == "embeddings":
        (files / "modules.json").write_text("[]")
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr(rekindle, "open_sync", never)
    with nullcontext() if case == "no template" else pytest.raises(AssertionError, match="was opened"):
        assert main(["chat", "tiny/qwen3"]) == 1
    assert ("tiny/qwen3 has no chat template" in capsys.readouterr().err) == (case == "no template")
    assert "model.safetensors" not in fetched
    assert ("config.json" in fetched) == (case != "unreachable")
    fetched.clear()
    with pytest.raises(AssertionError, match="was opened"):
        main(["chat", "tiny/qwen3/file.gguf"])
    assert not fetched, "the header of the file has its template"
