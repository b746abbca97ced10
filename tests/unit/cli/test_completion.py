"""Completion and help know every keyword, with its type and its default."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import jedi  # type: ignore[import-untyped]
import pytest

import rekindle
from rekindle import SamplingParams, Settings
from rekindle.core.request.params import SamplingOptions
from rekindle.testing import fake_session
from tests.waiting import PATIENCE

ASKING = [
    "generate",
    "generate_sync",
    "as_completed",
    "map",
    "map_sync",
    "stream",
    "stream_sync",
    "show",
    "show_sync",
    "submit",
    "submit_all",
    "submit_all_sync",
    "enqueue",
    "enqueue_sync",
]
PROMPTING = ["prefix", "count_tokens"]


COMPLETED = {
    "session.generate('hi', max_": "max_tokens=",
    "session.submit('hi', logp": "logprobs=",
    "session.show('hi', contin": "continue_final_message=",
    "session.prefix('hi', tok": "token_ids=",
    "chat.say('hi', max_t": "max_tokens=",
    "rekindle.open('x', pre": "precompile=",
    "rekindle.open_sync('x', max_r": "max_running=",
}
SCRIPT = """
import json, sys, warnings
import jedi
from IPython.core.interactiveshell import InteractiveShell
import rekindle
from rekindle.testing import fake_session

jedi.settings.cache_directory = sys.argv[1]
shell, found = InteractiveShell.instance(), []
warnings.simplefilter("ignore")  # its completions are provisional
with fake_session() as session:
    shell.Completer.namespace = {"session": session, "chat": session.chat(), "rekindle": rekindle}
    for shell.Completer.use_jedi in (True, False):
        found.append({code: [c.text for c in shell.Completer.completions(code, len(code))] for code in sys.argv[2:]})
print(json.dumps(found))
"""
"""Code to print IPython's completions of the end of each argument, with jedi and without."""


@pytest.mark.wide
def test_ipython_completes_keywords_and_public_names_alone(tmp_path: Path) -> None:
    """Ask in a process of its own, since a shell changes much of the one that it is in.

    Its cache is its own too: jedi reads the half-written files of another process, and then completes nothing.
    """
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), *COMPLETED, "rekindle."]
    process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert process.returncode == 0, process.stderr
    for completions in json.loads(process.stdout.splitlines()[-1]):
        for code, keyword in COMPLETED.items():
            assert keyword in completions[code], code
        names = {name.rpartition(".")[2] for name in completions["rekindle."]}
        assert {"open", "open_sync", "Session"} <= names <= {*rekindle.__all__}


@pytest.mark.parametrize("name", ASKING)
def test_the_signature_of_a_call_has_all_keywords_with_their_defaults(name: str) -> None:
    for kind in (rekindle.Session, rekindle.Prefix):
        if not hasattr(kind, name):
            continue
        parameters = inspect.signature(getattr(kind, name)).parameters
        assert {*SamplingOptions.__annotations__, "token_ids", "tools"} <= parameters.keys()
        assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values())
        for field in fields(SamplingParams):
            assert parameters[field.name].default == field.default
            assert parameters[field.name].annotation == SamplingOptions.__annotations__[field.name]


@pytest.mark.parametrize("name", PROMPTING)
def test_the_signature_of_a_prompt_has_its_keywords(name: str) -> None:
    parameters = inspect.signature(getattr(rekindle.Session, name)).parameters
    assert {"token_ids", "tools", "chat_template_kwargs", "continue_final_message"} <= parameters.keys()


@pytest.mark.parametrize("function", [rekindle.open, rekindle.open_sync])
def test_the_signature_of_open_has_all_settings(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert {field.name: field.default for field in fields(Settings)}.items() <= {
        name: parameter.default for name, parameter in parameters.items()
    }.items()


def test_help_and_jedi_show_types_and_defaults() -> None:
    with fake_session() as session:
        (signature,) = jedi.Interpreter("session.generate('hi', ", [{"session": session}]).get_signatures()
    assert "max_tokens: int | None=256" in signature.to_string()
    assert "<class" not in signature.to_string()


def test_the_package_lists_its_public_names_alone() -> None:
    assert [name for name in dir(rekindle) if not name.startswith("_")] == rekindle.__all__
