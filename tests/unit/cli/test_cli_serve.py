"""`rekindle serve` says where it serves, and ends in order when it is told to."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import rekindle
from rekindle.__main__ import main
from rekindle.cli.serve import wait_for_signals
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.threads import WAITING
from rekindle.core.errors import ConfigError
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.session.serving import models_in
from tests.sentence_models import embedding_model
from tests.unit.lora import random_parts, saved
from tests.unit.sockets import ask
from tests.waiting import PATIENCE

TEXT = "/v1/completions"
SETTINGS = ["--page-size", "16", "--max-context", "64", "--max-running", "1", "--max-prefill-tokens", "16", "--quiet"]
TEMPLATE = "{{ messages[0].content }}"
KEY = {"authorization": "Bearer key"}


@pytest.fixture(scope="module")
def serving(
    families: Path, module_cache: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve a tiny model in a process of its own, and return it with its address."""
    model = embedding_model(families / "qwen3-embed", tmp_path_factory.mktemp("models") / "tiny")
    parts = random_parts(open_checkpoint(model).config, 2, selects=lambda name: name.endswith("q_proj"))
    adapter = f"sql={saved(tmp_path_factory.mktemp('adapters') / 'sql', parts)}"
    template = tmp_path_factory.mktemp("templates") / "short.jinja"
    template.write_text(TEMPLATE)
    command = [sys.executable, "-m", "rekindle", "serve", str(model), "--port", "0", "--adapter", adapter, *SETTINGS]
    command += ["--chat-template", str(template)]
    path = os.pathsep.join([str(Path(rekindle.__file__).parents[1]), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "REKINDLE_API_KEY": "key"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        try:
            yield process, address
        finally:
            process.kill()


@pytest.mark.wide
def test_it_serves_with_its_settings_and_its_key_and_ends_at_sigterm(
    serving: tuple[subprocess.Popen[str], str],
) -> None:
    process, address = serving
    assert address.startswith("http://127.0.0.1:")
    assert address.endswith("/v1")
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 3}
    status, reply = ask(address, TEXT, body, KEY)
    assert (status, reply["usage"]["completion_tokens"]) == (200, 3)
    status, reply = ask(address, TEXT, body | {"model": "sql"}, KEY)
    assert (status, reply["model"], reply["usage"]["completion_tokens"]) == (200, "sql", 3)
    assert ask(address, "/tokenizer_info", None, KEY)[1]["chat_template"] == TEMPLATE
    assert ask(address, TEXT, {"prompt": "x" * 100}, KEY)[0] == 400
    assert ask(address, TEXT, body, {"authorization": "Bearer no"})[0] == 401
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)) as client:
        streamed = json.dumps(body | {"max_tokens": 40, "ignore_eos": True, "stream": True})
        client.request("POST", TEXT, streamed, KEY | {"content-type": "application/json"})
        response = client.getresponse()
        first = response.readline()
        process.send_signal(signal.SIGTERM)
        events = [line for line in (first + response.read()).splitlines() if line]
    assert events[-1] == b"data: [DONE]", "a stream in flight ends whole"
    assert json.loads(events[-2].removeprefix(b"data: "))["choices"][0]["finish_reason"] == "length"
    assert process.wait(timeout=PATIENCE) == 0
    assert process.stderr is not None
    assert process.stderr.read() in {"", f"{WAITING}\n"}  # programs that nobody waits for may still compile


class Ended(Feed[None]):
    """A feed that says when somebody is to hear of its end."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for = threading.Event()

    def when_closed(self, call: Callable[[], None]) -> None:
        super().when_closed(call)
        self.waited_for.set()


@pytest.mark.parametrize("stopped_by", ["a signal", "its end"])
def test_it_waits_without_waking_for_a_signal_that_another_thread_gets(stopped_by: str) -> None:
    closed = Ended()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: closed.close())

    def elsewhere() -> None:
        closed.waited_for.wait()
        if stopped_by == "a signal":
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        else:
            closed.close()

    thread = threading.Thread(target=elsewhere)
    try:
        thread.start()
        wait_for_signals(closed)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert closed.closed


def test_help_tells_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    output = capsys.readouterr().out
    assert all(
        option in output
        for option in ("--api-key", "--cors", "--host", "--max-running", "--dtype", "--kv-dtype", "--mesh")
    )


@pytest.mark.parametrize("command", ["serve tiny --port 0", "batch IN OUT -m tiny"])
def test_drafts_are_a_setting_of_the_session(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings: list[Any] = []

    def noted(model: str, **options: Any) -> None:
        settings.append(options.get("draft"))
        raise rekindle.ConfigError("seen")

    monkeypatch.setattr(rekindle, "open_sync", noted)
    line = {"custom_id": "1", "method": "POST", "url": TEXT, "body": {"model": "tiny", "prompt": "Hello"}}
    (tmp_path / "IN").write_text(json.dumps(line), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for options in ([], ["--draft", "lookup"]):
        assert main([*command.split(), "--quiet", *options]) == 1
    assert settings == [None, "lookup"]


def test_what_cannot_be_served_is_told_before_a_model_is_opened(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rekindle, "open_sync", lambda *arguments, **options: pytest.fail("it was opened"))
    assert main(["serve", "tiny", "--port", "70000"]) == 1
    assert "port must be from 0 to 65535, got 70000" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert main(["serve", "tiny", "--port", str(port)]) == 1
    assert f"the server cannot listen at 127.0.0.1:{port} (Address already in use): give" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", "tiny", "--chat-template", "no/file"])
    assert "cannot read the chat template 'no/file'" in capsys.readouterr().err
    assert main(["serve", "tiny", "--port", "0", "--ssl-certfile", "no/file"]) == 1
    assert "'no/file' must be a certificate with its private key" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
        assert main(["serve", "tiny", "--port", "0", "--otlp-traces-endpoint", "http://localhost:1"]) == 1
    assert "pip install 'rekindle-llm[otel]'" in capsys.readouterr().err
    for name in ("uvicorn", "rekindle.server.listening.running"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["serve", "tiny"]) == 1
    assert "pip install 'rekindle-llm[server]'" in capsys.readouterr().err


def test_the_tables_of_a_file_are_models_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("model", "adapters"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    table = '[{}]\nmodel = "{}"\nadapters = {{sql = "{}"}}\n'
    (tmp_path / "models.toml").write_text(table.format("a", "model", "adapters") + table.format("b", "owner/name", "x"))
    a, b = models_in("models.toml").values()
    assert a == {"model": str(tmp_path / "model"), "adapters": {"sql": str(tmp_path / "adapters")}}, "of any directory"
    assert b == {"model": "owner/name", "adapters": {"sql": "x"}}
    (tmp_path / "models.toml").write_text('[a]\nmodel = ""')
    with pytest.raises(ConfigError, match="must be a table with model"):
        models_in("models.toml")
    (tmp_path / "models.toml").write_text(f'[a]\nmodel = "{"x" * 999}"')
    assert models_in("models.toml") == {"a": {"model": "x" * 999}}


def test_models_of_a_server_are_checked_by_name() -> None:
    one: dict[str, Any] = {"model": "owner/one", "adapters": {"sql": "path"}}
    with pytest.raises(ConfigError, match="'a': unknown setting 'page_sice'"):
        rekindle.serve({"a": {"model": "owner/one", "page_sice": 16}})
    with pytest.raises(ConfigError, match="the adapter 'sql' of 'a' has the name of a model"):
        rekindle.serve({"a": one, "sql": "owner/other"})
    with pytest.raises(ConfigError, match="the adapter 'sql' of 'a' has the name of a model"):
        rekindle.serve({"a": one, "b": {"model": "owner/other", "aliases": ["sql"]}})
    with pytest.raises(ConfigError, match="the alias 'a' of 'b' is the name of a model already"):
        rekindle.serve({"a": one, "b": {"model": "owner/other", "aliases": ["a"]}})
    with pytest.raises(ConfigError, match="aliases of 'a' must be a list of non-empty strings, got 'gpt'"):
        rekindle.serve({"a": {**one, "aliases": "gpt"}})
    with pytest.raises(ConfigError, match="'a' and 'b' both have an adapter 'sql'"):
        rekindle.serve({"a": one, "b": one})
