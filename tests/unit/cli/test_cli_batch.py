"""`rekindle batch` answers each line as the server would, and goes on after a kill; wrong lines open no model."""

import io
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

import rekindle
from rekindle.__main__ import main
from rekindle.cli.batch import running as batch_running
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.server import application
from rekindle.session.session import Session
from tests.unit.asgi import ask
from tests.unit.command_line import fake_opening, running, writing_model
from tests.waiting import PATIENCE, until_blocking

MODEL = "fake"
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


def line(custom_id: str, body: Mapping[str, Any], url: str = "/v1/chat/completions") -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": MODEL, **body}}


LINES = [
    line("chat", CHAT),
    line("ünï", {"prompt": "Hi", "max_tokens": 2, "logprobs": 1}, "/v1/completions"),
    line("response", {"input": "Hi", "max_output_tokens": 2}, "/v1/responses"),
    line("too long", {"messages": [{"role": "user", "content": "x" * 9999}]}),
    line("bad value", {**CHAT, "temperature": -1}),
    line("bad field", {**CHAT, "temprature": 1}),
    line("no role", {"messages": [{"content": "Hi"}]}),
    line("last", CHAT),
]
OPTIONS = "--page-size 16 --max-context 128 --max-running 2 --prefill-buckets 32 --decode-buckets 2 --window 2"
SMALL = [*OPTIONS.split(), "--max-prefill-tokens", "32"]
RANDOM = re.compile(r'"(?:chatcmpl|cmpl|resp|msg)[-_][0-9a-f]{32}[_0-9]*"|"created(?:_at)?": ?\d+|"request_id": ?"\w+"')


def written(path: Path, lines: Iterable[Mapping[str, Any]]) -> str:
    path.write_text("".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in lines), encoding="utf-8")
    return str(path)


def read(path: Path) -> list[Any]:
    return [json.loads(each) for each in path.read_bytes().decode().splitlines()]


def constant(answers: Iterable[Any]) -> list[str]:
    """Return answers without what differs between two of the same request."""
    return [RANDOM.sub("", json.dumps(each["response"]["body"], ensure_ascii=False)) for each in answers]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, byte_tokenizer: Tokenizer) -> list[str]:
    """Open the fake device, and return the list of opened models."""
    opening, models = fake_opening(byte_tokenizer), []

    def noted(model: str, **options: Any) -> Session:
        models.append(model)
        session: Session = opening(model, **options)
        return session

    monkeypatch.setattr(rekindle, "open_sync", noted)
    return models


def test_lines_have_the_answers_and_errors_of_the_server_in_their_order(
    opened: list[str], tmp_path: Path, byte_tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = written(tmp_path / "in.jsonl", LINES), tmp_path / "out.jsonl"
    assert main(["batch", source, str(output)]) == 1
    assert opened == [MODEL], "the lines name it"
    answers = read(output)
    assert [each["custom_id"] for each in answers] == [each["custom_id"] for each in LINES]
    assert all(each.keys() == {"id", "custom_id", "response", "error"} for each in answers)
    assert len({each["id"] for each in answers} | {each["response"]["request_id"] for each in answers}) == 16
    with fake_opening(byte_tokenizer)(MODEL) as session:
        app = application.app(session)
        for asked, answer in zip(LINES, answers, strict=True):
            reply = anyio.run(ask, app, asked["url"], asked["body"])
            response = answer["response"]
            assert response["status_code"] == reply.status
            assert constant([answer]) == constant([{"response": {"body": reply.json}}])
    assert [each["response"]["status_code"] for each in answers] == [200] * 3 + [400] * 4 + [200]
    assert "8 lines in" in (said := capsys.readouterr().err)
    assert "4 errors: 4 with status 400" in said
    assert not (tmp_path / "out.jsonl.part").exists()


def test_embeddings_come_from_a_model_and_names_are_of_options(
    opened: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line("a", CHAT), line("b", {**CHAT, "model": "gpt-4o-mini"}), {**line("c", CHAT), "body": CHAT}]
    source = written(tmp_path / "in.jsonl", lines)
    assert main(["batch", source, str(tmp_path / "out.jsonl")]) == 1
    assert "name several models, 'fake', 'gpt-4o-mini'" in capsys.readouterr().err
    assert main(["batch", source, str(tmp_path / "out.jsonl"), "-m", "owner/fake", "--name", "fake"]) == 1
    said = capsys.readouterr().err
    assert "line 2: there is no model 'gpt-4o-mini'; there is 'fake', 'owner/fake', and --name gpt-4o-mini" in said
    assert opened == []
    arguments = ["-m", "owner/fake", "--name", "gpt-4o-mini", "--name", "fake", "--quiet"]
    assert main(["batch", source, str(tmp_path / "out.jsonl"), *arguments]) == 0
    assert [each["response"]["body"]["model"] for each in read(tmp_path / "out.jsonl")] == ["gpt-4o-mini"] * 3
    assert capsys.readouterr().err == ""


def test_wrong_lines_are_told_by_number_before_a_model_opens(
    opened: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps(line("a", CHAT))
    texts = [
        *("\ufeff" + good, "", "nope", "[1]", '{"custom_id": "x"}', good),
        *(json.dumps(line("x", CHAT, "/v1/chat/completion")), json.dumps(line("s", {**CHAT, "stream": True}))),
        *(json.dumps({**line("g", CHAT), "method": "GET"}), json.dumps({**line("m", CHAT), "more": 1})),
        *(json.dumps({**line("b", CHAT), "body": "x"}), json.dumps({**line("i", CHAT), "custom_id": 3})),
        *["{"] * 5,
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(texts), encoding="utf-8")
    assert main(["batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")]) == 1
    head, *told = capsys.readouterr().err.splitlines()
    assert head.endswith("in.jsonl has 15 wrong lines, so nothing was asked:")
    for number, words in (
        (3, "it is no JSON"),
        (4, "it must be an object with custom_id, method, url and body, got [1]"),
        (5, "it lacks method, url and body"),
        (6, "its custom_id 'a' is that of line 1 too"),
        (7, "got '/v1/chat/completion'; did you mean /v1/chat/completions?"),
        (8, "its body has stream"),
        (9, "method must be 'POST', got 'GET'"),
        (10, "it has 'more', which no line has"),
        (11, "body must be an object, got 'x'"),
        (12, "custom_id must be a text, got 3"),
    ):
        assert (text := told.pop(0)).startswith(f"  line {number}: ")
        assert words in text
    assert told == ["  and 5 more"]
    assert opened == []
    assert [each.name for each in tmp_path.iterdir()] == ["in.jsonl"]


def test_paths_are_checked_before_a_model_opens(
    opened: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, empty = written(tmp_path / "in.jsonl", [line("a", CHAT)]), written(tmp_path / "empty.jsonl", [])
    for arguments, words in (
        ((source, source), "has the requests; give another path"),
        ((source, empty), "there is a file"),
        ((source, str(tmp_path / "no" / "out")), "there is no folder"),
        ((str(tmp_path / "no"), str(tmp_path / "out")), "there is no file"),
        ((empty, str(tmp_path / "out")), "has no line; each line is an object with custom_id, method, url and body"),
        ((source, str(tmp_path / "out"), "--window", "0"), "window must be an integer from 1"),
    ):
        assert main(["batch", *arguments]) == 1
        assert words in capsys.readouterr().err
    assert opened == []


def failing(app: ASGIApp, failures: list[str]) -> ASGIApp:
    """Return an app with a status of 503 for bodies that have one of these texts."""
    error = b'{"error": {"message": "later"}}'

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        messages = [message]

        async def again() -> Any:
            return messages.pop() if messages else await receive()

        if any(text.encode() in message["body"] for text in failures):
            headers = [(b"x-request-id", b"r")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": error})
        else:
            await app(scope, again, send)

    return serve


def test_failures_of_the_server_are_repeated_by_the_same_command_alone(
    opened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line(str(place), {**CHAT, "messages": [{"role": "user", "content": f"<{place}>"}]}) for place in range(5)]
    source, output, failures, asked = written(tmp_path / "in.jsonl", lines), tmp_path / "out", ["<3>"], list[str]()
    make, part = application.app, tmp_path / "out.part"
    monkeypatch.setattr(application, "app", lambda *given, **named: failing(make(*given, **named), failures))
    own_ask = batch_running.ask

    async def noted(app: ASGIApp, each: Any) -> Any:
        asked.append(each.custom_id)
        return await own_ask(app, each)

    monkeypatch.setattr(batch_running, "ask", noted)
    assert main(["batch", source, str(output), "--window", "1"]) == 1
    assert [each["response"]["status_code"] for each in read(output)] == [200, 200, 200, 503, 200]
    assert "the server failed at 1 line, which the same command asks again" in capsys.readouterr().err
    before, kept = read(output), part.read_bytes()
    failures.clear()
    for arguments, words in (
        (["--name", "other"], "were made with names='fake', and this command has names='other, fake'"),
        (["--chat-template", source], "were made with chat_template='#"),
    ):
        assert main(["batch", source, str(output), "-m", MODEL, *arguments]) == 1
        assert words in capsys.readouterr().err
    changed = written(tmp_path / "changed", [*lines[:2], line("2", {**CHAT, "max_tokens": 1}), *lines[3:]])
    assert main(["batch", changed, str(output)]) == 1
    assert "at place 3, the answer to another request: '2', but the line is '2' now" in capsys.readouterr().err
    assert asked == ["0", "1", "2", "3", "4"], "nothing else was asked, and nothing written"
    assert (read(output), part.read_bytes()) == (before, kept)
    part.write_bytes(kept + b'{"place": 3, "pro')
    assert main(["batch", source, str(output)]) == 0
    assert asked[5:] == ["3"]
    assert "4 answered by an earlier run" in capsys.readouterr().err
    after = read(output)
    assert after[:3] + after[4:] == before[:3] + before[4:]
    assert after[3]["response"]["status_code"] == 200
    assert not part.exists()


def crowded(app: ASGIApp, room: int, refused: list[int]) -> ASGIApp:
    """Return an app with a status of 429 for more requests at once than `room`, noted in `refused`."""
    served = 0

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal served
        if served == room:
            refused.append(served)
            await send({"type": "http.response.start", "status": 429, "headers": [(b"x-request-id", b"r")]})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        served += 1
        try:
            await app(scope, receive, send)
        finally:
            served -= 1

    return serve


@pytest.mark.parametrize(("room", "status"), [(2, 200), (0, 429)])
def test_lines_without_room_wait_for_others(
    opened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, status: int
) -> None:
    make, refused = application.app, list[int]()
    monkeypatch.setattr(application, "app", lambda *given, **named: crowded(make(*given, **named), room, refused))
    source, output = written(tmp_path / "in.jsonl", [line(str(place), CHAT) for place in range(9)]), tmp_path / "out"
    assert main(["batch", source, str(output), "--quiet"]) == (room == 0)
    assert [each["response"]["status_code"] for each in read(output)] == [status] * 9
    assert refused


def test_the_server_that_is_not_installed_is_told(
    opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rekindle.cli.batch.answers", None)
    assert main(["batch", "in.jsonl", "out.jsonl"]) == 1
    assert "install it: pip install 'rekindle-llm[server]'" in capsys.readouterr().err


@pytest.mark.wide
def test_a_killed_batch_goes_on_where_it_was(families: Path, tmp_path: Path) -> None:
    """Run each command in a process of its own: tests have settings of JAX that are part of the fingerprint."""
    model = writing_model(families, tmp_path / "tiny")
    bodies = [{"prompt": f"Hi {place}", "max_tokens": 60, "ignore_eos": True, "temperature": 0} for place in range(40)]
    lines = [line(str(place), {**body, "model": model}, "/v1/completions") for place, body in enumerate(bodies)]
    source, output, part = written(tmp_path / "in.jsonl", lines), tmp_path / "out", tmp_path / "out.part"
    with running("batch", source, str(output), *SMALL) as process:
        until_blocking(lambda: part.exists() and part.read_bytes().count(b"\n") > 3, "some lines have an answer")
        process.kill()
        assert process.wait(PATIENCE) == -9
    kept = part.read_bytes().count(b"\n")
    assert 3 < kept < 40
    assert not output.exists()
    with running("batch", source, str(output), *SMALL) as process:
        _, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert f"40 lines in {output}" in notes
    assert f"{kept} answered by an earlier run" in notes
    with running("batch", source, str(tmp_path / "whole"), *SMALL, "--quiet") as process:
        assert process.wait(PATIENCE) == 0
    assert constant(read(output)) == constant(read(tmp_path / "whole"))
    assert not part.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with a name")
@pytest.mark.parametrize("way", ["fifo", "descriptor", "standard input"])
def test_lines_come_from_a_pipe(opened: list[str], tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with a file; what a pipe has is gone once it was read."""
    written(tmp_path / "in.jsonl", LINES[:2])
    data, output = (tmp_path / "in.jsonl").read_bytes(), tmp_path / "out.jsonl"
    assert main(["batch", str(tmp_path / "in.jsonl"), str(tmp_path / "expected.jsonl"), *SMALL]) == 0
    reader, writer = os.pipe()
    name = {"fifo": str(tmp_path / "fifo"), "descriptor": f"/dev/fd/{reader}", "standard input": "-"}[way]
    if way == "fifo":
        os.mkfifo(name)
    else:
        os.write(writer, data)
    os.close(writer)
    thread = threading.Thread(target=Path(name).write_bytes if way == "fifo" else bytes, args=(data,))
    thread.start()
    with os.fdopen(reader, "rb") as pipe:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe))
        assert main(["batch", name, str(output), *SMALL]) == 0
    thread.join(PATIENCE)
    assert constant(read(output)) == constant(read(tmp_path / "expected.jsonl"))
    assert not list(Path(tempfile.gettempdir()).glob("rekindle-batch-*"))


def test_wrong_lines_of_standard_input_and_pipes_for_answers_are_told(
    opened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"{}")))
    assert main(["batch", "-", str(tmp_path / "out.jsonl")]) == 1
    assert "standard input has 1 wrong line" in capsys.readouterr().err
    assert not opened
    os.mkfifo(tmp_path / "out.jsonl.part")
    assert main(["batch", written(tmp_path / "in.jsonl", LINES[:1]), str(tmp_path / "out.jsonl"), *SMALL]) == 1
    assert "must be a file on disk" in capsys.readouterr().err
