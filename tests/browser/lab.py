"""A JupyterLab server of the tests' own. It neither reads nor writes the user's settings, extensions or notebooks."""

import json
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from tests.waiting import PATIENCE, until_blocking

KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
SETTINGS = {
    "apputils-extension/notification": {"checkForUpdates": False, "doNotDisturbMode": True, "fetchNews": "false"},
    # The browser says whether pages are light or dark, and JupyterLab follows it.
    "apputils-extension/themes": {"adaptive-theme": True},
    "docmanager-extension/plugin": {"autosave": False},
    # All cells are part of the page, wherever it is scrolled to.
    "notebook-extension/tracker": {"windowingMode": "none"},
}
OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.port=0",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
    "--LabApp.news_url=",
)
READY = re.compile(r"http://127\.0\.0\.1:(\d+)/lab\?token=")
LAST_SECONDS = 20
"""Seconds that a server has to stop before it is killed."""


class Lab:
    """A running server.

    Args:
        port, token: the port where it listens, and the token that it asks for.
        root: the folder of its notebooks.
    """

    def __init__(self, port: int, token: str, root: Path):
        self._port = port
        self._token = token
        self._root = root

    def write(self, name: str, cells: Sequence[str]) -> None:
        """Write a notebook with these cells of code into the folder. None of them has been run."""
        blank: dict[str, object] = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
        content = {
            "cells": [blank | {"id": f"cell-{place}", "source": cell} for place, cell in enumerate(cells)],
            "metadata": {"kernelspec": KERNEL},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        self.put(name, json.dumps(content))

    def put(self, name: str, notebook: str) -> None:
        """Write a notebook's file into the folder. JupyterLab does not trust outputs that it has not seen made."""
        (self._root / name).write_text(notebook, encoding="utf-8")

    def start_kernel(self, name: str) -> None:
        """Start the kernel that a notebook will have when it is opened."""
        self._ask("POST", "sessions", {"path": name, "name": name, "type": "notebook", "kernel": KERNEL})

    def read(self, name: str) -> str:
        """Return the file of a notebook, as it was last saved."""
        return (self._root / name).read_text(encoding="utf-8")

    def address(self, name: str, *, seven: bool = False) -> str:
        """Return the address of a notebook's page, in JupyterLab or in Notebook 7.

        Each name has its own workspace, so no other one opens there.
        """
        page = "notebooks" if seven else f"doc/workspaces/{quote(Path(name).stem)}/tree"
        return f"http://127.0.0.1:{self._port}/{page}/{quote(name)}?token={self._token}"

    def end_kernels(self) -> None:
        """End all kernels, as a user does who is done with their notebooks."""
        for session in self._ask("GET", "sessions"):
            self._ask("DELETE", f"sessions/{session['id']}")

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Ask the server's REST API for something, and return its answer."""
        request = Request(
            f"http://127.0.0.1:{self._port}/api/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self._token}", "Content-Type": "application/json"},
            method=method,
        )
        with urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read() or "null")


@contextmanager
def open_lab(
    home: Path, environment: Mapping[str, str], startup: str = "", python: Path = Path(sys.executable)
) -> Iterator[Lab]:
    """Start a server whose kernels run on its own Python. It writes only into `home`.

    Args:
        home: an empty folder.
        environment: the environment variables of the server and its kernels.
        startup: code that each kernel runs before the first cell.
        python: the interpreter of the server and its kernels.

    Raises:
        RuntimeError: the server did not start; the message has its log.
    """
    root, settings = home / "notebooks", home / "settings"
    root.mkdir()
    before_cells = home / "ipython" / "profile_default" / "startup"
    before_cells.mkdir(parents=True)
    (before_cells / "first.py").write_text(startup, encoding="utf-8")
    for name, values in SETTINGS.items():
        path = settings / f"@jupyterlab/{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
    token = secrets.token_hex(16)
    own = {
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTER_TOKEN": token,
    }
    log = home / "server.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [str(python), "-m", "jupyterlab", *OPTIONS, f"--ServerApp.root_dir={root}"],
            env={**environment, **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        ) as server,
    ):
        try:
            yield Lab(_port(server, log), token, root)
        finally:
            server.terminate()  # this ends its kernels too
            try:
                server.wait(LAST_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    """Wait until the server listens, which is a moment after it says so, and return its port."""
    ports: list[int] = []

    def listens() -> bool:
        if found := READY.search(log.read_text(errors="replace")):
            address = ("127.0.0.1", int(found[1]))
            with suppress(ConnectionRefusedError), socket.create_connection(address):
                ports.append(address[1])
        return bool(ports) or server.poll() is not None

    until_blocking(listens, "JupyterLab listened")
    if not ports:
        raise RuntimeError(f"JupyterLab did not start:\n{log.read_text(errors='replace')}")
    return ports[0]
