"""Fixtures of the unit tests: sessions on the fake device, a small disk, interrupts, and links of processes."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from rekindle.core.concurrency import mailbox
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.hosts.link import Link, greet
from rekindle.session.session import Session
from rekindle.testing import FakeSettler, fake_limits, fake_loaded_engine, fake_session
from tests.unit.scripted import HERMES, Serve, scripted_session


@pytest.fixture(scope="session", autouse=True)
def _slow_pulse() -> Iterator[None]:
    """Slow the pulse, because `wait_all_tasks_blocked` looks every 100 ms and would always find it at work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mailbox, "PULSE_SECONDS", 3600.0)
        yield


@pytest.fixture
def settler() -> FakeSettler:
    return FakeSettler(held=True)


@pytest.fixture
def session() -> Iterator[Session]:
    with fake_session() as session:
        yield session


@pytest.fixture
def held_session(settler: FakeSettler) -> Iterator[Session]:
    """Open a session with one slot and two places in the queue; its ticks wait for the settler."""
    limits = fake_limits(max_running=1)
    with fake_session(fake_loaded_engine(limits, settler=settler), max_waiting=2) as session:
        yield session


@pytest.fixture
def texts(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer)) as session:
        yield session


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Yield a function to open a session with a scripted model."""
    with ExitStack() as sessions:

        def open_session(answer: str | Callable[[str], str], template: str = HERMES) -> Session:
            script = answer if callable(answer) else lambda prompt: answer
            return sessions.enter_context(scripted_session(monkeypatch, script, template))

        yield open_session


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 2 MiB, soon full."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(place)]
    if mount is None or subprocess.run([mount, *options], capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Enable interrupts here and in child processes, also under a shell with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def links() -> Iterator[tuple[list[Link], list[Link]]]:
    """Return both ends of two links, the leader's first."""
    pairs = []
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            near = socket.create_connection(server.getsockname())
            follower = pool.submit(greet, near, b"secret", "follower")
            pairs.append((greet(server.accept()[0], b"secret", "leader"), follower.result()))
    yield [leader for leader, _ in pairs], [follower for _, follower in pairs]
    for pair in pairs:
        for link in pair:
            link.close()
