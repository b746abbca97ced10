"""Hosts are joined only if they agree, and the loss of one is reported to all its dependents."""

import os
import socket
import stat
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rekindle
from rekindle.__main__ import main
from rekindle.assembly.devices import places_over
from rekindle.core.concurrency.progress import Progress, silent
from rekindle.core.device.orders import SharedWeights, StateOrder
from rekindle.core.device.programs.functions import GATHER
from rekindle.core.errors import ConfigError, HostLost, HostRefused, InvalidRequest, RekindleError, UnsafeStorage
from rekindle.core.store.snapshot_key import content_fingerprint
from rekindle.hosts import following, joining, meeting
from rekindle.hosts.address import Address
from rekindle.hosts.agreement import code_facts
from rekindle.hosts.follower_group import FollowerGroup
from rekindle.hosts.link import Link
from rekindle.hosts.members import Members
from rekindle.hosts.opening import require_shareable, weights_request
from rekindle.hosts.secret import shared_secret
from rekindle.hosts.wire import order_of
from rekindle.settings.engine import Settings, SettingsOptions
from tests.engine.small import FEW_PAGES
from tests.waiting import PATIENCE, until_blocking

SECRET = "a secret of the tests"


def free_address() -> Address:
    return Address("127.0.0.1", joining.free_port("127.0.0.1"))


def test_the_secret_of_the_cache_directory_is_made_once_and_for_this_user_alone() -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: shared_secret(), range(8)))
    assert len(secrets) == 1
    path = Path(os.environ["REKINDLE_CACHE"], "hosts-secret")
    assert len(path.read_bytes()) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir() if "secret" in each.name] == [path.name]
    path.chmod(0o640)
    with pytest.raises(UnsafeStorage, match="can be read by others"):
        shared_secret()


def test_a_secret_that_is_given_goes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_SECRET", "that of the environment")
    assert shared_secret() == b"that of the environment"
    assert shared_secret(SECRET) == SECRET.encode()
    with pytest.raises(ConfigError, match="at least 16 characters"):
        shared_secret("short")
    assert not Path(os.environ["REKINDLE_CACHE"], "hosts-secret").exists()


@pytest.mark.parametrize("listen", ["7468", "localhost", ":7468", "localhost:", "localhost:0", "localhost:65536", 7468])
def test_an_address_is_a_host_and_a_port(listen: Any) -> None:
    with pytest.raises(ConfigError, match=r"such as 127\.0\.0\.1:7468; got"):
        rekindle.Hosts(listen=listen)


def test_bad_hosts_are_refused_where_they_are_given(families: Path) -> None:
    for followers in (0, True, "2"):
        with pytest.raises(ConfigError, match="followers must be an integer of at least 1"):
            rekindle.Hosts(followers)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"hosts must be a rekindle\.Hosts, got 2"):
        rekindle.open(families / "llama-tied", hosts=2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="with hosts, logits_processor must be None"):
        require_shareable(Settings(logits_processor=lambda logits, _: logits), None, 1)
    with pytest.raises(ConfigError, match="leave out mesh, data, replicas, prefill and decode"):
        require_shareable(Settings(data=2), None, 2)
    with pytest.raises(ConfigError, match=r"tensor must be a multiple of the 2 processes .*, such as tensor=2; got 1"):
        rekindle.open_sync(families / "llama-tied", progress=False, hosts=rekindle.Hosts(), tensor=1)
    assert "not joined yet" in repr(rekindle.Hosts())


def test_a_process_that_has_used_a_device_cannot_join(families: Path) -> None:
    jax.devices()
    settings: SettingsOptions = {**FEW_PAGES, "tensor": 2}
    with pytest.raises(ConfigError, match="restart this process"):
        rekindle.open_sync(families / "llama-tied", progress=False, hosts=rekindle.Hosts(), **settings)
    with pytest.raises(ConfigError, match="restart this process"):
        following.follow(free_address(), print, print)


def error_of(future: "Future[Any]") -> RekindleError:
    error = future.exception()
    assert isinstance(error, RekindleError), error
    return error


def meet(
    monkeypatch: pytest.MonkeyPatch, *followers: dict[str, Any], count: int = 1
) -> tuple[RekindleError, list[RekindleError]]:
    """Let followers meet a leader, and return the errors of all."""
    monkeypatch.setattr(joining, "require_untouched", lambda: None)
    monkeypatch.setattr(joining, "lead", lambda *_: pytest.fail("they have joined"))
    address = free_address()
    with ThreadPoolExecutor(1 + len(followers)) as pool:
        leader = pool.submit(meeting.meet, address, count, SECRET.encode(), silent)
        coming = [
            pool.submit(
                following.follow,
                address,
                lambda _: None,
                lambda why, _: pytest.fail(why),
                **{"secret": SECRET, **follower},
            )
            for follower in followers
        ]
    errors = [error_of(leader), *map(error_of, coming)]
    return errors[0], errors[1:]


def test_a_follower_of_another_version_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "code_facts", lambda: {**code_facts(), "packages": "jax 0.0.1"})
    leader, (follower,) = meet(monkeypatch, {})
    for error in (leader, follower):
        assert isinstance(error, HostRefused)
        assert "of another version" in str(error)
        assert "jax 0.0.1" in str(error)


def test_a_number_is_had_by_one_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, followers = meet(monkeypatch, {"index": 2}, {"index": 2}, count=2)
    for error in (leader, *followers):
        assert isinstance(error, HostRefused)
    assert "asks to be process 2 of 3, but only [1] are free" in str(leader)
    assert "asks to be process 2" in " ".join(map(str, followers))


class Waiting:
    """A leader in a thread, waiting for a follower until `leave`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor):
        self.warnings, self.reports, self._stop = SimpleQueue[str](), 0, threading.Event()
        self.address = free_address()
        monkeypatch.setattr(joining, "require_untouched", lambda: None)
        monkeypatch.setattr(meeting, "warn", self.warnings.put)
        self.result = pool.submit(meeting.meet, self.address, 1, SECRET.encode(), self._report)

    def _report(self, _: Progress) -> None:
        self.reports += 1
        if self._stop.is_set():
            raise rekindle.SessionClosed("left")

    def connection(self) -> socket.socket:
        """Return a connection of a stranger."""
        connections: list[socket.socket] = []

        def connects() -> bool:
            with suppress(ConnectionRefusedError):
                connections.append(socket.create_connection(self.address))
            return bool(connections)

        until_blocking(connects, "the leader listened")
        return connections[0]

    def leave(self) -> None:
        """End the wait, and check its result: the end has no other cause."""
        self._stop.set()
        with pytest.raises(rekindle.SessionClosed, match="left"):
            self.result.result()


def test_who_is_no_follower_is_told_of_and_does_not_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as pool:
        leader = Waiting(monkeypatch, pool)
        with leader.connection() as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert "to the address of followers" in leader.warnings.get(timeout=PATIENCE)
        leader.leave()


def test_a_follower_with_another_secret_is_refused_and_the_leader_waits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(2) as pool:
        leader = Waiting(monkeypatch, pool)
        leader.connection().close()  # it listens
        follow = partial(following.follow, leader.address, lambda _: None, lambda why, _: None)
        error = error_of(pool.submit(follow, secret="a secret of somebody else"))
        assert isinstance(error, HostRefused)
        assert "has another secret" in str(error)
        warnings = [leader.warnings.get(timeout=PATIENCE) for _ in range(2)]
        assert any("has another secret" in each for each in warnings)
        leader.leave()


def test_a_stranger_that_says_nothing_holds_up_neither_the_report_nor_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.hosts.link.GREETING_SECONDS", 3600.0)
    with ThreadPoolExecutor(1) as pool:
        leader = Waiting(monkeypatch, pool)
        with leader.connection(), leader.connection() as other:
            before = leader.reports
            until_blocking(lambda: leader.reports > before + 3, "the leader looked further")
            other.sendall(b"GET / HTTP/1.1\r\n\r\n")
            leader.warnings.get(timeout=PATIENCE)
            leader.leave()


def test_a_greeting_as_a_whole_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a byte at a time, each within the timeout of a read."""
    monkeypatch.setattr("rekindle.hosts.link.GREETING_SECONDS", 0.3)
    with ThreadPoolExecutor(1) as pool:
        leader = Waiting(monkeypatch, pool)
        with leader.connection() as slow, suppress(OSError):
            while leader.warnings.empty():
                slow.sendall(b"\0")
                time.sleep(0.05)
        assert "to the address of followers" in leader.warnings.get(timeout=PATIENCE)
        leader.leave()


def test_nobody_can_listen_where_somebody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "require_untouched", lambda: None)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(ConfigError, match=r"cannot listen at .*: give Hosts another listen="),
    ):
        meeting.meet(Address(*server.getsockname()), 1, SECRET.encode(), silent)


def test_the_loss_of_a_follower_is_told_to_all(links: tuple[list[Link], list[Link]]) -> None:
    leaders, followers = links
    members = Members(leaders)
    group, losses = FollowerGroup(members, 1), SimpleQueue[HostLost]()
    members.when_lost(losses.put)
    group.send(StateOrder(GATHER, 3))
    assert [order_of(link.receive()) for link in followers] == [StateOrder(GATHER, 3), StateOrder(GATHER, 3)]
    followers[1].close()
    loss = losses.get(timeout=PATIENCE)
    assert "process 2 of 3" in str(loss)
    assert followers[0].receive().header["say"] == "over", "what cannot go on ends"
    assert group.reason(ValueError()) is loss
    for each in (group, FollowerGroup(members, 2)):
        with pytest.raises(HostLost, match="process 2 of 3"):
            each.wait(silent)


def test_a_follower_that_cannot_open_the_model_says_why(links: tuple[list[Link], list[Link]]) -> None:
    leaders, followers = links
    group = FollowerGroup(Members(leaders), 7)
    group.open({"model": "m"})
    assert [link.receive().header for link in followers] == [{"say": "open", "session": 7, "model": "m"}] * 2
    followers[0].send({"say": "refused", "session": 6, "load": 0, "why": "of a session that was given up"})
    followers[0].send({"say": "ready", "session": 7, "load": 0})
    followers[1].send({"say": "refused", "session": 7, "load": 0, "why": "no model 'm'"})
    with pytest.raises(HostRefused, match="process 2 of 3 cannot follow: no model 'm'"):
        group.wait(silent)
    group.close()
    assert [link.receive().header["say"] for link in followers] == ["close", "close"]


def test_weights_are_there_when_all_have_read_them(links: tuple[list[Link], list[Link]]) -> None:
    leaders, followers = links
    group, array = FollowerGroup(Members(leaders), 1), jnp.ones(3)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(group.load, {"model": "m"}, lambda: [array])
        for link in followers:
            assert link.receive().header == {"say": "load", "session": 1, "load": 1, "model": "m"}
            assert not loading.done()
            link.send({"say": "ready", "session": 1, "load": 1})
        weights = loading.result()
        assert isinstance(weights, SharedWeights)
        assert (list(weights), weights.number) == ([array], 1)
        loading = pool.submit(group.load, {"model": "m"}, lambda: [array])
        followers[0].send({"say": "refused", "session": 1, "load": 2, "why": "there is no m here"})
        with pytest.raises(HostRefused, match="process 1 of 3 cannot follow: there is no m here"):
            loading.result()
    with pytest.raises(InvalidRequest, match="arrays are not sent"):
        weights_request({"lm_head.weight": np.ones(3)})


def test_a_follower_that_fails_says_why(links: tuple[list[Link], list[Link]]) -> None:
    leaders, followers = links
    group = FollowerGroup(Members(leaders), 1)
    followers[0].send({"say": "failed", "why": "OSError: it is broken"})
    with pytest.raises(HostLost, match=r"process 1 of 3.* it has failed: OSError: it is broken"):
        group.wait(silent)


def test_the_failure_of_a_session_ends_its_followers(links: tuple[list[Link], list[Link]]) -> None:
    leaders, followers = links
    members = Members(leaders)
    error = ValueError("it is broken")
    assert FollowerGroup(members, 1).reason(error) is error
    for link in followers:
        assert link.receive().header == {
            "say": "over",
            "why": "a session over these hosts has failed (ValueError: it is broken)",
        }
    with pytest.raises(HostLost, match=r"it is broken.*; restart this process"):
        FollowerGroup(members, 2).wait(silent)


def test_hosts_that_are_closed_let_followers_go(links: tuple[list[Link], list[Link]]) -> None:
    leaders, followers = links
    members, losses = Members(leaders), list[HostLost]()
    members.when_lost(losses.append)
    FollowerGroup(members, 1).send(StateOrder(GATHER, 1))
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(members.end)
        for link in followers:
            assert [link.receive().header["say"] for _ in range(2)] == ["gather", "end"]
            assert not ending.done(), "jax would abort those that are still there"
            link.close()
        ending.result()
    assert losses == [members.loss()], "a session that is open is told of it, once"
    assert "the hosts are closed" in str(losses[0])


def test_copies_of_weights_are_the_same_and_others_are_not(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path, content in zip(paths, (b"weights", b"weights", b"Weights"), strict=True):
        path.write_bytes(content)
    os.utime(paths[1], (0, 0))
    one, copy, other = (content_fingerprint([path]) for path in paths)
    assert one == copy != other
    assert content_fingerprint(paths[:2]) == content_fingerprint([paths[1], paths[0]]) != one


def test_devices_are_shared_out_evenly_over_processes() -> None:
    assert [len(place.devices) for place in places_over("cpu", Settings())] == [1]
    for asked_for in ("cpu:0", jax.devices()[0]):
        with pytest.raises(ConfigError, match="with hosts, device must be None or a platform"):
            places_over(asked_for, Settings(tensor=1))
    with pytest.raises(ConfigError, match="does not exist; JAX has cpu:0"):
        places_over("gpu", Settings(tensor=1))
    with pytest.raises(ConfigError, match=r"tensor=99 must be a multiple of the 1 processes.* and at most"):
        places_over(None, Settings(tensor=99))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "an address is a host and a port, such as 127.0.0.1:7468; got 'nowhere'"),
        (["localhost:7468", "--secret-file", "/nowhere/secret"], "the secret cannot be read from /nowhere/secret"),
        (["localhost:7468"], "restart this process"),
    ],
)
def test_the_command_says_why_it_cannot_follow(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jax.devices()
    assert main(["follow", *arguments]) == 1
    assert message in capsys.readouterr().err
