"""IPython shows of our errors the lines of the user's own code and the message, and draws all other errors as ever."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rekindle.core.concurrency.interrupts import brief

SHELL = """
import contextlib, io, json, sys
from IPython.core.interactiveshell import InteractiveShell

shell, printed = InteractiveShell.instance(colors="NoColor"), {}
for name, cell in json.load(sys.stdin).items():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        shell.run_cell(cell)
    printed[name] = out.getvalue()
print(json.dumps(printed))
"""

OURS = """
async def ask(session, **options):
    return await session.generate("x", **options)


def raise_from(cause, message):
    raise rekindle.CheckpointError(message) from cause
"""

CELLS = {
    "prelude": """
import json, sys
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, PLACE)
hooks = lambda: (sys.excepthook, get_ipython().custom_exceptions, get_ipython().CustomTB)
before = hooks()
import rekindle, ours
ours.rekindle = rekindle
from rekindle.testing import fake_session
session = fake_session()
def elsewhere(work, *arguments):
    with ThreadPoolExecutor() as threads:
        return threads.submit(work, *arguments).exception()
""",
    "hooks": "print(hooks() == before)",
    "typo": "await ours.ask(session, temprature=1)",
    "argument": "await session.look('x', layer=1)",
    "blocking": "session.look_sync('x', layer=1)",
    "debugger": "print(get_ipython().InteractiveTB.tb is sys.last_traceback)",
    "cause": "ours.raise_from(elsewhere(json.loads, '{'), 'a bad file')",
    "told": "ours.raise_from(elsewhere(int, 'x'), \"a bad file: invalid literal for int() with base 10: 'x'\")",
    "own cause": "ours.raise_from(elsewhere(lambda: 1 / 0), 'a bad file')",
    "own context": "try: {}['key']\nexcept KeyError: await ours.ask(session, temprature=1)",
    "dataclass": "rekindle.Settings(max_running=-1)",
    "nobody": "get_ipython().showtraceback((rekindle.QueueFull, rekindle.QueueFull('full'), None))",
    "theirs": "json.loads('{')",
    "plain": "%xmode Plain\nawait ours.ask(session, temprature=1)",
    "verbose": "%xmode Verbose\nawait ours.ask(session, temprature=1)",
    "minimal": "%xmode Minimal\nawait ours.ask(session, temprature=1)",
    "context": "%xmode Context\nawait ours.ask(session, temprature=1)",
}

LAST = "`%tb Plain` shows the whole traceback."
TYPO = "InvalidRequest: unknown keyword 'temprature'; did you mean temperature?"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Run the cells in their own IPython, and return the output of each."""
    place = tmp_path_factory.mktemp("ours")
    (place / "ours.py").write_text(OURS)
    cells = {name: cell.replace("PLACE", repr(str(place))) for name, cell in CELLS.items()}
    home = {"IPYTHONDIR": str(place / "ipython"), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, "-c", SHELL],
        input=json.dumps(cells),
        env=os.environ | home,
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
    )
    outputs: Mapping[str, str] = json.loads(ended.stdout.splitlines()[-1])
    assert outputs["prelude"] == ""
    return outputs


def test_importing_changes_no_hook(printed: Mapping[str, str]) -> None:
    assert printed["hooks"] == "True\n"


def test_all_lines_of_the_users_code_are_shown_and_none_of_a_library(printed: Mapping[str, str]) -> None:
    lines = printed["typo"].splitlines()
    assert "----> 1 await ours.ask(session, temprature=1)" in lines
    assert any(line.startswith("----> 3") and "session.generate(" in line for line in lines)
    assert lines[-2:] == [TYPO, LAST]
    assert len(lines) <= 12


@pytest.mark.parametrize("cell", ["argument", "blocking"])
def test_an_unknown_argument_shows_the_call_alone_with_a_hint(cell: str, printed: Mapping[str, str]) -> None:
    lines = printed[cell].splitlines()
    assert f"----> 1 {CELLS[cell]}" in lines
    assert lines[-2].endswith("got an unexpected keyword argument 'layer'; did you mean layers?")
    assert "twins.py" not in printed[cell]


def test_an_error_of_a_class_that_writes_its_own_code_shows_the_call(printed: Mapping[str, str]) -> None:
    assert "----> 1 rekindle.Settings(max_running=-1)" in printed["dataclass"]
    assert "<string>" not in printed["dataclass"]


def test_a_cause_outside_of_the_users_code_is_one_line_unless_the_message_tells_it(printed: Mapping[str, str]) -> None:
    message, cause, last = printed["cause"].splitlines()[-3:]
    assert (message, last) == ("CheckpointError: a bad file", LAST)
    assert cause.startswith("caused by JSONDecodeError: Expecting property name")
    assert printed["told"].splitlines()[-2].startswith("CheckpointError: a bad file: invalid literal")


@pytest.mark.parametrize(("cell", "kind"), [("own cause", "ZeroDivisionError"), ("own context", "KeyError")])
def test_a_cause_in_the_users_code_is_drawn(cell: str, kind: str, printed: Mapping[str, str]) -> None:
    text = printed[cell]
    assert text.count("Traceback (most recent call last)") == 2
    assert text.index(f"\n{kind}: ") < text.index("The above exception" if "cause" in cell else "During handling")
    assert "caused by" not in text
    assert "concurrent/futures" not in text


def test_an_error_that_no_code_of_the_user_led_to_shows_its_message(printed: Mapping[str, str]) -> None:
    assert printed["nobody"].splitlines()[-2:] == ["QueueFull: full", LAST]


def test_errors_of_others_are_drawn_as_ever(printed: Mapping[str, str]) -> None:
    assert "json/decoder.py" in printed["theirs"]
    assert LAST not in printed["theirs"]


def test_other_modes_of_ipython_show_what_they_show_of_all_errors(printed: Mapping[str, str]) -> None:
    for mode in ("plain", "verbose"):
        assert printed[mode].count("rekindle/client/") >= 2
        assert LAST not in printed[mode]
    assert printed["minimal"].strip().splitlines()[-1] == TYPO
    assert "Traceback" not in printed["minimal"]
    assert printed["context"].splitlines()[-1] == LAST


def test_debuggers_start_from_the_whole_traceback(printed: Mapping[str, str]) -> None:
    assert printed["debugger"] == "True\n"


@pytest.mark.wide
def test_outside_of_ipython_python_prints_the_whole_traceback(tmp_path: Path) -> None:
    code = "import rekindle\nrekindle.open('model', max_contxt=3)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "opening.py" in ended.stderr
    assert LAST not in ended.stderr


def test_an_interrupt_stays_what_it_is() -> None:
    for error in (KeyboardInterrupt("now"), TimeoutError("late")):
        assert brief(error) is error
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.args) == (type(error), error.args)
    assert "_render_traceback_" not in vars(brief(TimeoutError()))
