"""A kernel without a front end, and its messages to a notebook's server."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.first_minutes.step import PATIENCE_S, Run, Watch, plain, run_of

SHOWN = ("stream", "display_data", "update_display_data", "execute_result", "error", "comm_open", "comm_msg")
"""Types of messages for a cell's output."""


class Kernel:
    """A running kernel."""

    def __init__(self, client: BlockingKernelClient):
        self._client = client

    def cell(self, code: str) -> Run:
        """Run a cell to its end."""
        watch, status, texts = Watch(), 0, [""]
        message_id = self._client.execute(code)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                message: dict[str, Any] = self._client.get_iopub_msg(timeout=1.0)
            except Empty:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind in SHOWN:
                watch.mark()
                texts.append(_text(kind, content))
            status = status or int(kind == "error")
            if kind == "status" and content["execution_state"] == "idle" and _answers(message, message_id):
                return run_of(watch, status, plain("".join(texts)))
        return run_of(watch, 124, plain("".join(texts)))


def _answers(message: dict[str, Any], message_id: str) -> bool:
    return bool(message["parent_header"].get("msg_id") == message_id)


def _text(kind: str, content: dict[str, Any]) -> str:
    """Return the output in a message as text; updates of a display are left out, except for the last one."""
    if kind == "stream":
        return str(content["text"])
    if kind == "error":
        return "\n".join(content["traceback"]) + "\n"
    if kind in ("display_data", "execute_result"):
        return str(content["data"].get("text/plain", sorted(content["data"]))) + "\n"
    return ""


@contextmanager
def kernel(python: Path, folder: Path, variables: Mapping[str, str], log: Path) -> Iterator[tuple[Kernel, Run]]:
    """Start the kernel of an environment, and yield it with the step of its start."""
    watch = Watch()
    command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager = KernelManager()
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv = command
    with log.open("ab") as output:
        manager.start_kernel(cwd=str(folder), env=dict(variables), stdout=output, stderr=output)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        yield Kernel(client), run_of(watch, 0, "")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
