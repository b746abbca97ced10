"""A terminal: commands and their output, and an IPython that a newcomer types into."""

import os
import pty
import re
import select
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from tests.first_minutes.step import PATIENCE_S, Run, Watch, plain, run_of

ROWS, COLUMNS = 40, 110
TIMED_OUT = 124
PASTE = "\x1b[200~{}\x1b[201~"
"""A paste, as terminals send it."""
ENTER = "\r"
ADDRESS = r"http://[\w.]+:\d+"
TRACEBACK = re.compile(r"Traceback \(most recent call last\)|^\w*Error\b", re.M)


class Terminal:
    """A process in a terminal.

    Args:
        command: its program and arguments.
        folder, variables: its working directory and environment variables.
        stdin: the content of standard input; None for the keyboard.
    """

    def __init__(self, command: Sequence[str], folder: Path, variables: Mapping[str, str], stdin: str | None = None):
        self._ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        source = theirs if stdin is None else subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=folder, env=dict(variables), stdin=source, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        if stdin is not None and self.process.stdin is not None:
            self.process.stdin.write(stdin.encode())
            self.process.stdin.close()
        self.text = ""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Send Ctrl-C, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def listen(self, watch: Watch, pattern: str = "", patience: float = PATIENCE_S) -> bool:
        """Read until a pattern is in the text since the call, or the process ends. Return False after the patience."""
        end, begin = time.monotonic() + patience, len(self.text)
        while time.monotonic() < end:
            if pattern and re.search(pattern, plain(self.text[begin:])):
                return True
            if not select.select([self._ours], [], [], 0.05)[0]:
                continue
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # the other end is closed
                piece = b""
            if not piece:
                return not pattern
            watch.mark()
            self.text += piece.decode(errors="replace")
        return False

    def close(self, patience: float = 30.0) -> int:
        """Return the exit status, after a kill if the process outlives the patience."""
        try:
            status = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            status = TIMED_OUT
        os.close(self._ours)
        return status


def run(command: Sequence[str], folder: Path, variables: Mapping[str, str], stdin: str | None = None) -> Run:
    """Run a command to its end."""
    watch, terminal = Watch(), Terminal(command, folder, variables, stdin)
    terminal.listen(watch)
    return run_of(watch, terminal.close(), plain(terminal.text))


def serve(command: Sequence[str], folder: Path, variables: Mapping[str, str], ask: str) -> Run:
    """Start a server, run a command when it has printed its address, and end the server with Ctrl-C."""
    watch, terminal = Watch(), Terminal(command, folder, variables)
    ready = terminal.listen(watch, ADDRESS)
    address = re.search(ADDRESS, plain(terminal.text))
    answer = 1
    if ready and address:
        answer = subprocess.run(["sh", "-c", ask.format(address[0])], cwd=folder, env=dict(variables)).returncode
        watch.mark()
    terminal.interrupt()
    terminal.listen(watch, patience=30.0)
    status = terminal.close()
    return run_of(watch, answer or (status if status != 130 else 0), plain(terminal.text))


class IPython:
    """An IPython in a terminal, with pastes and keys."""

    def __init__(self, terminal: Terminal):
        self._terminal = terminal
        self._number = 1

    def cell(self, code: str) -> Run:
        """Paste a cell, press Enter, and read until the next prompt."""
        begin, watch = len(self._terminal.text), Watch()
        self._number += 1
        self._terminal.type(PASTE.format(code.rstrip("\n")) + ENTER)
        # A cell of several lines is submitted by an empty last line.
        prompt = rf"In \[{self._number}\]:"
        ended = self._terminal.listen(watch, prompt, 3.0)
        if not ended and "\n" in code.strip():
            self._terminal.type(ENTER)
        ended = ended or self._terminal.listen(watch, prompt)
        text = plain(self._terminal.text[begin:])
        return run_of(watch, TIMED_OUT if not ended else int(bool(TRACEBACK.search(text))), text)


@contextmanager
def ipython(program: Path, folder: Path, variables: Mapping[str, str]) -> Iterator[tuple[IPython, Run]]:
    """Start IPython, and yield it with the step of its start. It ends with the exit of the context."""
    watch = Watch()
    terminal = Terminal([str(program)], folder, {**variables, "PROMPT_TOOLKIT_NO_CPR": "1"})
    ready = terminal.listen(watch, r"In \[1\]:", 120.0)
    try:
        yield IPython(terminal), run_of(watch, 0 if ready else TIMED_OUT, plain(terminal.text))
    finally:
        terminal.type("\x15exit" + ENTER)
        terminal.listen(Watch(), patience=20.0)
        terminal.close()
