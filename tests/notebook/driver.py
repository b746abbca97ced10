"""Drive a real Jupyter kernel as a front end does, and receive the outputs of its cells."""

import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.waiting import PATIENCE

SILENCE = PATIENCE
"""Seconds of a kernel's silence after which the test fails: far more than any cell here takes."""
LAST_SECONDS = 40.0
"""Seconds for a kernel's end by itself: far more than it takes, and far less than its longest request."""


@dataclass
class Cell:
    """One executed cell.

    Attributes:
        stdout, stderr: its printed text.
        displays: the number of its displays, its value and widgets included.
        shown: the text and HTML of its displays and of their updates.
        error: the name of its exception, or "".
        traceback: the traceback of the exception.
    """

    stdout: str = ""
    stderr: str = ""
    displays: int = 0
    shown: str = ""
    error: str = ""
    traceback: str = ""


class Running:
    """A cell in execution."""

    def __init__(self, notebook: "Notebook", code: str):
        self._notebook = notebook
        self._cell = Cell()
        self._idle = False
        # Otherwise a cell that follows an interrupted one at once would be dropped with it.
        self._id = notebook.client.execute(code, stop_on_error=False)

    def wait_for(self, text: str) -> None:
        """Return as soon as the cell has printed `text`."""
        while text not in self._cell.stdout:
            assert not self._idle, f"the cell ended without printing {text!r}: {self._cell}"
            self._read()

    def interrupt(self) -> tuple[Cell, float, float]:
        """Interrupt the kernel as the stop button does, and wait for the end of the cell.

        Returns:
            The cell, and when the interrupt was sent and answered, on the clock of `time.monotonic`, which all
            processes share.
        """
        start = time.monotonic()
        self._notebook.manager.interrupt_kernel()
        self._reply(SILENCE)
        answered = time.monotonic()
        return self._outputs(), start, answered

    def end(self) -> Cell:
        """Wait for the end of the cell."""
        self._reply(SILENCE)
        return self._outputs()

    def _reply(self, timeout: float) -> None:
        while True:
            reply = self._notebook.client.get_shell_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == self._id:
                break
        content = reply["content"]
        if content["status"] != "ok":
            self._cell.error = content.get("ename", content["status"])
            self._cell.traceback = "\n".join(content.get("traceback", []))

    def _outputs(self) -> Cell:
        while not self._idle:
            self._read()
        return self._cell

    def _read(self) -> None:
        message = self._notebook.hear(SILENCE)
        if message["parent_header"].get("msg_id") != self._id:
            self._notebook.stray.append(message)
            return
        content = message["content"]
        match message["msg_type"]:
            case "stream" if content["name"] == "stdout":
                self._cell.stdout += content["text"]
            case "stream":
                self._cell.stderr += content["text"]
            case "display_data" | "execute_result" | "update_display_data" as kind:
                self._cell.displays += kind != "update_display_data"
                self._cell.shown += "".join(
                    f"{content['data'].get(each, '')}\n" for each in ("text/plain", "text/html")
                )
            case "status" if content["execution_state"] == "idle":
                self._idle = True


class Notebook:
    """A running kernel and its front end.

    Attributes:
        messages: the messages of all cells, in order.
        stray: the messages of other cells than the one in execution, such as a late print of an earlier one.
    """

    def __init__(self, manager: KernelManager, client: BlockingKernelClient, log: Path):
        self.manager = manager
        self.client = client
        self.messages: list[dict[str, Any]] = []
        self.stray: list[dict[str, Any]] = []
        self._log = log
        self._greeting = log.read_text(errors="replace")

    @property
    def process(self) -> Any:
        """The kernel's process, a `subprocess.Popen`."""
        provisioner: Any = self.manager.provisioner
        return provisioner.process

    def restart(self) -> tuple[float, int]:
        """Restart the kernel as a front end does: by a request, and by force if it has not ended in time.

        Returns:
            The seconds until the old process was gone and the new one had started, and the old one's exit status.
        """
        process, start = self.process, time.monotonic()
        self.manager.restart_kernel()
        seconds = time.monotonic() - start
        self.client.wait_for_ready(timeout=SILENCE)
        return seconds, process.wait()

    def kill(self) -> None:
        """Kill the kernel at once, as a system without memory does, and start another one."""
        self.process.kill()
        self.process.wait()
        self.manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=SILENCE)

    def shutdown(self) -> tuple[float, int]:
        """Shut the kernel down as `restart` does; return the seconds until it was gone, and its exit status."""
        process, start = self.process, time.monotonic()
        self.manager.shutdown_kernel()
        return time.monotonic() - start, process.wait()

    def hear(self, timeout: float) -> dict[str, Any]:
        """Return the kernel's next message; raise `queue.Empty` after so many seconds of silence."""
        message: dict[str, Any] = self.client.get_iopub_msg(timeout=timeout)
        self.messages.append(message)
        return message

    def start(self, code: str) -> Running:
        """Execute a cell without waiting for it."""
        return Running(self, code)

    def run(self, code: str) -> str:
        """Execute a cell that must end without an error and write nothing to stderr.

        Returns:
            Its printed text.
        """
        cell = self.start(code).end()
        assert not cell.error, cell.traceback
        assert cell.stderr == "", cell.stderr
        return cell.stdout

    def stray_output(self) -> str:
        """Return the text outside of cells: the kernel's log, and late prints of earlier cells."""
        self.run("import gc; gc.collect()")  # Python warns of a coroutine that was never awaited when it is dropped
        while True:
            try:
                self.stray.append(self.hear(0.5))
            except queue.Empty:
                break
        late = [message["content"]["text"] for message in self.stray if message["msg_type"] == "stream"]
        return self.log() + "".join(late)

    def log(self) -> str:
        """Return the process's log, without its greeting at every start."""
        text = self._log.read_text(errors="replace")
        return text.replace(self._greeting, "") if self._greeting else text


@contextmanager
def open_notebook(
    log: Path, command: Sequence[str], environment: Mapping[str, str], patience: float = LAST_SECONDS
) -> Iterator[Notebook]:
    """Start a fresh kernel, and kill it at the end if it is still there.

    Args:
        log: the file for the process's own output.
        command: starts the kernel; `{connection_file}` stands for the file that names its ports.
        environment: the environment variables of the process.
        patience: the seconds for its end at a restart or shutdown.
    """
    manager = KernelManager(shutdown_wait_time=2 * patience)  # the second half is for ending it with a signal
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv = list(command)
    with log.open("wb") as output:
        manager.start_kernel(env=dict(environment), stdout=output, stderr=output)
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=SILENCE)
            yield Notebook(manager, client, log)
        finally:
            client.stop_channels()
            if manager.is_alive():
                manager.shutdown_kernel(now=True)
            manager.cleanup_resources()
