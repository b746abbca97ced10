"""A server runs beside the cells on a socket, and ends in order: by itself, with its session, or with its process."""

import gc
import json
import shutil
import socket
import ssl
import subprocess
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

import rekindle
from rekindle.core.errors import ConfigError
from rekindle.server.listening.running import bind, check_certificate
from rekindle.session.session import Session
from rekindle.settings.server import ServerSettings
from rekindle.testing import FakeSettler, expected_tokens, fake_limits, fake_loaded_engine, fake_session
from tests.unit.sessions import assert_all_ends_free, assert_all_is_free, submitted
from tests.unit.sockets import ask, asking, connected
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

TEXT = "/v1/completions"


async def test_cells_and_clients_use_one_session_at_once(texts: Session) -> None:
    async with texts.serve(port=0) as server:
        body = {"prompt": [3, 1, 4], "max_tokens": 5}
        reply: Any = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(texts.generate, "a cell")
            _, reply = await to_thread.run_sync(ask, server.url, TEXT, body)
        answer = await texts.generate(token_ids=[3, 1, 4], max_tokens=5)
        assert answer.token_ids == expected_tokens([3, 1, 4], 5)
        assert reply["choices"][0]["text"] == answer.text
        assert server.url in repr(server)
        html = server._repr_mimebundle_()["text/html"]
        assert f"base_url=&quot;{server.url}/v1&quot;, model=&quot;fake&quot;" in html
    assert repr(server) == "<rekindle.server.Server closed>"
    assert server.url not in server._repr_mimebundle_()["text/html"]
    with pytest.raises(ConnectionRefusedError):
        ask(server.url, "/health")
    assert_all_is_free(texts)


async def test_a_stream_comes_over_a_socket_event_by_event(held_session: Session, settler: FakeSettler) -> None:
    body = {"prompt": [3, 1, 4], "max_tokens": 3, "stream": True, "logprobs": 0}
    with held_session.serve_sync(port=0) as server, closing(asking(server.url, TEXT, body)) as connection:
        settler.step()
        settler.step()
        reply = await to_thread.run_sync(connection.getresponse)
        first = await to_thread.run_sync(reply.readline)
        assert first.startswith(b"data: {")
        assert not next(iter(held_session.requests.values())).done
        settler.release()
        with reply:
            assert reply.read().endswith(b"data: [DONE]\n\n")


async def test_a_client_that_hangs_up_frees_its_slot(held_session: Session, settler: FakeSettler) -> None:
    with held_session.serve_sync(port=0) as server:
        with closing(asking(server.url, TEXT, {"prompt": [3, 1, 4], "max_tokens": 4000})):
            (handle,) = await submitted(held_session)
        # Nothing settles meanwhile, or all tokens could have come before the server hears of it.
        await until(lambda: handle.done, "the server had heard that its client is gone")
        settler.release()
        with pytest.raises(rekindle.RequestCancelled):
            await handle
        await assert_all_ends_free(held_session)


async def test_closing_lets_requests_under_way_end_and_takes_no_other(
    held_session: Session, settler: FakeSettler
) -> None:
    server = await held_session.serve(port=0, grace=PATIENCE)
    body = {"prompt": [3, 1, 4], "max_tokens": 3}
    replies: list[Any] = []

    async def client() -> None:
        replies.append(await to_thread.run_sync(ask, server.url, TEXT, body))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client)
        await submitted(held_session)
        tasks.start_soon(server.close)
        await until(lambda: server._listener.fileno() == -1, "the server listened no more")
        with pytest.raises(ConnectionRefusedError):
            ask(server.url, "/health")
        assert not replies
        settler.release()
    assert replies[0][1]["usage"]["completion_tokens"] == 3
    assert server.closed.closed
    await server.close()


async def test_requests_that_do_not_end_in_time_are_cancelled_and_told_so(
    settler: FakeSettler, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_session(fake_loaded_engine(fake_limits(max_running=2), settler=settler)) as session:
        server = await session.serve(port=0, grace=0.1)
        body = {"prompt": [3, 1, 4], "max_tokens": 4000, "logprobs": 0}
        whole, stream = (asking(server.url, TEXT, {**body, "stream": streams}) for streams in (False, True))
        handles = await submitted(session, 2)
        for _ in range(8):  # which is enough for the first token of each, and far from the last
            settler.step()
        reply = await to_thread.run_sync(stream.getresponse)
        await server.close()
        settler.release()
        for handle in handles:
            with pytest.raises(rekindle.RequestCancelled):
                await handle
        with whole.getresponse() as refused, reply:
            assert refused.status == 503
            assert (
                "the server shut down before the answer was complete" in json.loads(refused.read())["error"]["message"]
            )
            *_, last, done, _ = reply.read().split(b"\n\n")
        assert (
            "the server shut down before the answer was complete"
            in json.loads(last.removeprefix(b"data: "))["error"]["message"]
        )
        assert done == b"data: [DONE]"
        whole.close()
        stream.close()
        await assert_all_ends_free(session)
        assert not caplog.records


async def test_a_session_ends_with_its_servers() -> None:
    async with fake_session() as session:
        servers = [await session.serve(port=0), session.serve_sync(port=0)]
        for server in servers:
            assert ask(server.url, "/health") == (200, {"status": "ok"})
    for server in servers:
        assert server.closed.closed
        with pytest.raises(ConnectionRefusedError):
            ask(server.url, "/health")
    with pytest.raises(rekindle.SessionClosed):
        await session.generate(token_ids=[1])
    with pytest.raises(rekindle.SessionClosed):
        session.serve_sync(port=0)


async def test_requests_under_way_are_told_that_their_session_is_closed(held_session: Session) -> None:
    server = await held_session.serve(port=0, grace=PATIENCE)
    with closing(asking(server.url, TEXT, {"prompt": [3, 1, 4], "max_tokens": 3})) as connection:
        await submitted(held_session)
        await held_session.close()
        assert server.closed.closed
        with connection.getresponse() as reply:
            assert (reply.status, json.loads(reply.read())["error"]["type"]) == (503, "service_unavailable_error")


async def test_a_server_that_was_closed_does_not_keep_its_session() -> None:
    session = fake_session()
    with session.serve_sync(port=0) as server:
        assert ask(server.url, "/health") == (200, {"status": "ok"})
    stopped = session._engine.thread.stopped
    reference = weakref.ref(session)
    del session, server

    def is_gone() -> bool:
        gc.collect()
        return reference() is None

    await until(is_gone, "nobody had the session any more")
    await stopped.wait(0)


@pytest.mark.parametrize(
    ("keys", "name", "status"),
    [
        ([], "localhost", 200),
        ([], "LOCALHOST:80", 200),
        ([], "127.0.0.1:1234", 200),
        ([], "[::1]", 200),
        ([], "[::1]:1234", 200),
        ([], "0.0.0.0:8000", 200),
        ([], "localhost.", 200),
        ([], "app.localhost:80", 200),
        ([], "localhost.a.example", 421),
        ([], "a.example:80", 421),
        ([], "a.example", 421),
        ([], "", 421),
        (["key"], "a.example", 200),
    ],
)
def test_a_page_whose_name_leads_to_this_machine_is_no_page_of_the_server(
    session: Session, keys: list[str], name: str, status: int
) -> None:
    with session.serve_sync(port=0, api_keys=keys) as server, closing(connected(server.url)) as connection:
        connection.putrequest("GET", "/v1/models", skip_host=True)
        connection.putheader("Host", name)
        connection.putheader("Authorization", "Bearer key")
        connection.endheaders()
        with connection.getresponse() as reply:
            assert (reply.status, "error" in json.loads(reply.read())) == (status, status != 200)


@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("a.example", 421)])
def test_a_target_may_be_a_whole_url_and_its_host_is_the_one_that_counts(
    session: Session, host: str, status: int
) -> None:
    with session.serve_sync(port=0) as server, closing(connected(server.url)) as connection:
        connection.request("GET", f"http://{host}/v1/models?a=b", headers={"Host": "localhost"})
        with connection.getresponse() as reply:
            assert (reply.status, "error" in json.loads(reply.read())) == (status, status != 200)


async def test_an_address_that_is_taken_says_what_to_do(session: Session) -> None:
    async with session.serve(port=0) as server:
        with pytest.raises(rekindle.ConfigError, match="give another port"):
            await session.serve(port=int(server.url.rpartition(":")[2]))
    with pytest.raises(rekindle.ConfigError, match="port must be from 0 to 65535, got 70000"):
        session.serve_sync(port=70000)
    with pytest.raises(rekindle.ConfigError, match="port must be from 0 to 65535, got '8000'"):
        session.serve_sync(port="8000")  # type: ignore[arg-type]
    session.serve_sync(port=0, grace=86400).close_sync()
    with pytest.raises(rekindle.ConfigError, match="grace must be from 0 to 86400, got 86401"):
        session.serve_sync(grace=86401)
    with pytest.raises(rekindle.ConfigError, match="grace must be from 0 to 86400, got -1; it is in seconds"):
        session.serve(port=0, grace=-1)


async def test_a_closed_session_is_not_served() -> None:
    async with fake_session() as session:
        pass
    with pytest.raises(rekindle.SessionClosed):
        session.serve(port=0)


async def test_a_server_that_was_not_awaited_says_so(session: Session) -> None:
    pending = session.serve(port=0)
    with pytest.raises(AttributeError, match=r"server = await session.serve"):
        pending.close()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"server = await session.serve"):
        pending.url  # type: ignore[attr-defined]  # noqa: B018
    assert repr(pending) == "<rekindle server that does not run yet; server = await session.serve(...)>"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the key")
def test_an_encrypted_key_is_refused_without_a_question_in_the_terminal(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-subj", "/CN=x", "-keyout"]
    subprocess.run(
        [*command, str(key), "-out", str(certificate), "-passout", "pass:word"], check=True, capture_output=True
    )
    with pytest.raises(ConfigError, match="without a passphrase") as raised:
        check_certificate(ServerSettings(ssl_certfile=certificate, ssl_keyfile=key))
    assert isinstance(raised.value.__cause__, ssl.SSLError), "a terminal would be asked for it before"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the system has no IPv6")
@pytest.mark.parametrize("host", ["::", "0:0:0:0:0:0:0:0"])
def test_all_addresses_are_those_of_ipv4_too(host: str) -> None:
    with bind(ServerSettings(host=host, port=0)) as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, port), timeout=10):
                pass
