"""A process that ends stops its running work and waits for it a bounded time. Each test has its own process."""

import os
import signal
import subprocess
import sys
import threading
import warnings

import pytest

from rekindle.core.concurrency import threads
from rekindle.core.concurrency.threads import WAITING, soon
from rekindle.core.concurrency.warning import warn
from tests.waiting import PATIENCE

BEGIN = f"""
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from importlib import util

spec = util.spec_from_file_location("threads", {threads.__file__!r})  # without jax, which takes a second to import
sys.modules["threads"] = util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["threads"])
import threads
from threads import Work, compiling, ending, soon, storing

stopped, said = threading.Event(), threading.Event()

class Told:
    "Stands for stderr."
    def write(self, text): os.write(2, text.encode()); on_write()
    def flush(self): pass

def tell(text): os.write(1, text.encode())
"""


def ended(script: str) -> tuple[int, str, str]:
    """Run a script in a process; return its exit status, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    return done.returncode, done.stdout, done.stderr


def test_work_is_told_to_stop_and_waited_for() -> None:
    assert ended("""
def work():
    stopped.wait()
    tell("ended")

Work(work, "test", stopped.set)
""") == (0, "ended", "")


def test_work_that_is_begun_while_the_process_ends_is_stopped_too() -> None:
    assert ended("""
more = threading.Event()

def work():
    stopped.wait()
    Work(lambda: (more.wait(), tell("ended")), "more", more.set)

Work(work, "test", stopped.set)
""") == (0, "ended", "")


def test_work_that_an_interrupt_kept_from_beginning_is_not_waited_for() -> None:
    assert ended("""
def interrupted(*arguments, **keywords):
    raise KeyboardInterrupt

threading._start_new_thread = threading._start_joinable_thread = interrupted
try:
    Work(stopped.wait, "test", stopped.set)
except KeyboardInterrupt:
    tell(str(len(threading.enumerate())))
""") == (0, "2", "")


def test_the_exit_status_is_the_scripts() -> None:
    assert ended("""
Work(stopped.wait, "test", stopped.set)
sys.exit(3)
""") == (3, "", "")


def test_work_that_does_not_end_is_waited_for_in_vain_and_not_for_ever() -> None:
    assert ended("""
threads.EXIT_SECONDS = threads.NOTICE_SECONDS = 0.01
soon(stopped.wait, "test")
""") == (0, "", "")


COMPILER = """
threads.EXIT_SECONDS = threads.NOTICE_SECONDS = 0.01
begun = threading.Event()

def compile():
    with compiling:
        begun.set()
        said.wait()
        tell("made")

Work(compile, "test")
begun.wait()
sys.stderr = Told()
"""


def test_the_compiler_is_waited_for_longer_which_is_said() -> None:
    assert ended(COMPILER + "on_write = said.set") == (0, "made", f"{WAITING}\n")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_wait_and_the_process() -> None:
    script = COMPILER + "on_write = lambda: signal.raise_signal(signal.SIGINT)"
    assert ended(script) == (-signal.SIGINT, "", f"{WAITING}\n")


def test_what_is_being_stored_is_stored_and_nothing_is_begun_after_it() -> None:
    assert ended("""
begun = threading.Event()

def store():
    with storing:
        assert not ending()
        begun.set()
        threads._closing.wait()
        with ThreadPoolExecutor() as executor:
            executor.submit(tell, "stored").result()
    with storing:
        assert ending()
    tell(" once")

Work(store, "test")
begun.wait()
""") == (0, "stored once", "")


def test_threads_that_are_no_daemons_are_served_until_they_are_done() -> None:
    assert ended("""
def use():
    threading.main_thread().join()
    tell(f"stopped: {stopped.is_set()}")

Work(stopped.wait, "test", stopped.set)
threading.Thread(target=use).start()
""") == (0, "stopped: False", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_waits_for_nothing_of_its_parents() -> None:
    assert ended("""
import warnings
warnings.simplefilter("ignore")
release = threading.Event()
threads.EXIT_SECONDS = threads.NOTICE_SECONDS = 1000

def work():
    with compiling, storing:
        release.wait()

Work(work, "test", lambda: tell("stopped "))
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    tell(f"child {status} ")
    release.set()
""") in {(0, "child 0 stopped ", ""), (0, "child 0 ", "")}


def test_a_warning_of_another_thread_is_printed_where_warnings_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error")
        patch.setattr(threading, "excepthook", threading.__excepthook__)
        assert soon(lambda: warn("the disk is full"), "test").result(PATIENCE) is None
        with pytest.raises(RuntimeWarning, match="the disk is full"):
            warn("the disk is full")
    assert "RuntimeWarning: the disk is full" in capsys.readouterr().err


def test_an_error_of_work_that_is_begun_soon_is_its_result() -> None:
    with pytest.raises(ZeroDivisionError):
        soon(lambda: 1 // 0, "test").result(PATIENCE)
