"""A response can be named by the next request, as long as it is kept."""

import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from rekindle.server import app
from rekindle.server.application import application
from rekindle.server.http.access import Access
from rekindle.server.http.exchange import Service
from rekindle.server.http.limits import Limits
from rekindle.server.models.gate import Gate
from rekindle.server.models.served import OneModel
from rekindle.server.openai.responses.kept import KeptResponse, KeptResponses, OnDisk
from rekindle.session.session import Session
from tests.unit.asgi import Caller, Reply, ask
from tests.unit.scripted import scripted_session
from tests.waiting import PATIENCE, until

PATH = "/v1/responses"
USER = {"type": "message", "role": "user", "content": "Weather?"}


def entry(name: str, text: str = "", previous: str | None = None) -> KeptResponse:
    output = [{"content": [{"text": f"output {text}"}]}]
    return KeptResponse([{"content": f"input {text}"}], previous, {"id": name, "output": output})


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with scripted_session(monkeypatch, lambda prompt: "It is warm and dry.") as session:
        yield session


def name_of(number: int) -> str:
    return f"resp-{number:032x}"


def names_in(directory: Path) -> list[str]:
    return [file.stem for file in directory.iterdir()]


async def respond(server: Any, **fields: Any) -> Any:
    reply: Reply = await ask(server, PATH, {"input": [USER], "max_output_tokens": 9, **fields})
    assert reply.status == 200, reply.body
    return reply.json


@pytest.mark.anyio
async def test_a_conversation_goes_on_from_a_response_by_its_id(scripted: Session) -> None:
    server = app(scripted)
    first = await respond(server)
    second = await respond(server, previous_response_id=first["id"])
    third = await respond(server, previous_response_id=second["id"], store=False)
    assert (first["previous_response_id"], second["previous_response_id"]) == (None, first["id"])
    items = [USER, *first["output"], USER, *second["output"], USER]
    for response, count in ((second, 3), (third, 5)):
        length = len(items[: items.index(USER, 1) + 1]) if count == 3 else len(items)
        whole = await respond(server, input=items[:length], store=False)
        assert response["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
        assert response["usage"]["input_tokens_details"]["cached_tokens"] > 0
    total = await ask(server, f"{PATH}/input_tokens", {"input": [USER], "previous_response_id": second["id"]})
    assert total.json == {"object": "response.input_tokens", "input_tokens": third["usage"]["input_tokens"]}
    missing = await ask(server, PATH, {"input": "a", "previous_response_id": third["id"]})
    assert (missing.status, missing.error["code"]) == (400, "previous_response_not_found")
    assert missing.error["param"] == "previous_response_id"


@pytest.mark.anyio
async def test_a_kept_response_is_shown_and_dropped_by_its_id(scripted: Session) -> None:
    server = app(scripted)
    reply = await ask(server, PATH, {"input": [USER], "stream": True})
    (created,) = [line for line in reply.body.decode().splitlines() if '"type":"response.created"' in line]
    name = created.partition('"id":"')[2].partition('"')[0]
    response = await ask(server, f"{PATH}/{name}")
    assert (response.json["id"], response.json["status"]) == (name, "completed")
    (item,) = (await ask(server, f"{PATH}/{name}/input_items")).json["data"]
    assert item == {
        "id": f"in_{name.removeprefix('resp-')}_0",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Weather?"}],
    }
    dropped = await ask(server, f"{PATH}/{name}", method="DELETE")
    assert dropped.json == {"id": name, "object": "response", "deleted": True}
    for path, method in ((name, "GET"), (name, "DELETE"), (f"{name}/input_items", "GET")):
        assert (await ask(server, f"{PATH}/{path}", method=method)).status == 404


@pytest.mark.anyio
async def test_a_kept_response_has_the_parts_it_was_created_with_and_no_stream(scripted: Session) -> None:
    server, logprobs = app(scripted), "message.output_text.logprobs"
    without = f"{PATH}/{(await respond(server))['id']}"
    with_them = f"{PATH}/{(await respond(server, include=[logprobs]))['id']}"
    for query in ("", "stream=false", "include=reasoning.encrypted_content", "include[]=reasoning.encrypted_content"):
        assert (await ask(server, f"{without}?{query}")).status == 200
    response = (await ask(server, f"{with_them}?include[]={logprobs}")).json
    assert response["output"][0]["content"][0]["logprobs"]
    for query, param, text in (
        (f"include={logprobs}", "include", "created without"),
        ("include=others", "include", "include has 'others'"),
        ("stream=true", "stream", "not served for a kept response"),
        ("starting_after=3", "starting_after", "not served for a kept response"),
    ):
        refused = await ask(server, f"{without}?{query}")
        assert (refused.status, refused.error["param"], text in refused.error["message"]) == (400, param, True)


@pytest.mark.anyio
async def test_a_conversation_that_is_too_long_is_cut_if_the_request_allows_it(scripted: Session) -> None:
    server, long = app(scripted), [{**USER, "content": "x" * 5000}, USER]
    for truncation in (None, "disabled"):
        refused = await ask(server, PATH, {"input": long, "truncation": truncation})
        assert refused.error["code"] == "context_length_exceeded"
    cut = await respond(server, input=long, truncation="auto")
    assert cut["usage"]["input_tokens"] == 1024 - 9
    refused = await ask(server, PATH, {"input": long, "truncation": "some"})
    assert (refused.status, refused.error["param"]) == (400, "truncation")


@pytest.mark.anyio
async def test_input_items_come_in_pages(scripted: Session) -> None:
    server = app(scripted)
    texts = ["a", "b", "c"]
    response = await respond(server, input=[{**USER, "content": text} for text in texts])

    async def page(query: str) -> tuple[list[str], Any]:
        listing = (await ask(server, f"{PATH}/{response['id']}/input_items?{query}")).json
        return [item["content"][0]["text"] for item in listing["data"]], listing

    assert (await page(""))[0] == ["c", "b", "a"]
    two, first = await page("order=asc&limit=2")
    assert (two, first["has_more"]) == (["a", "b"], True)
    rest, last = await page(f"order=asc&limit=2&after={first['last_id']}")
    assert (rest, last["has_more"]) == (["c"], False)
    nines = "9" * 5000
    for query, param in (
        ("limit=0", "limit"),
        (f"limit={nines}", "limit"),
        ("limit=\u0662", "limit"),
        ("after=x", "after"),
        ("order=up", "order"),
        ("before=x", "before"),
    ):
        refusal = await ask(server, f"{PATH}/{response['id']}/input_items?{query}")
        assert (refusal.status, refusal.error["param"]) == (400, param)


@pytest.mark.anyio
async def test_log_probabilities_are_those_of_the_text(scripted: Session) -> None:
    server = app(scripted)
    fields = {"input": [USER], "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = (await respond(server, **fields))["output"][-1]["content"][0]
    reply = await ask(server, PATH, {**fields, "max_output_tokens": 9, "stream": True})
    assert whole["logprobs"]
    assert all(len(each["top_logprobs"]) == 2 for each in whole["logprobs"])
    texts = "".join(each["token"] for each in whole["logprobs"])
    assert whole["text"].strip() in texts
    assert reply.body.count(b'"top_logprobs"') >= len(whole["logprobs"])


@pytest.mark.anyio
@pytest.mark.parametrize("answer", ["<think>So warm.</think>Paris is warm.", "<think>h</think>h", "Paris."])
async def test_log_probabilities_are_without_reasoning_and_marks(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = answer.rpartition(">")[2]
    with scripted_session(monkeypatch, lambda prompt: answer) as session:
        server = app(session)
        fields = {"input": [USER], "include": ["message.output_text.logprobs"], "max_output_tokens": 60}
        whole = (await respond(server, **fields))["output"][-1]["content"][0]
        reply = await ask(server, PATH, {**fields, "stream": True})
    events = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: ")]
    streamed = events[-1]["response"]["output"][-1]["content"][0]
    deltas = [each for event in events if event["type"].endswith("text.delta") for each in event.get("logprobs", [])]
    for logprobs in (whole["logprobs"], streamed["logprobs"], deltas):
        assert "".join(each["token"] for each in logprobs) == text


@pytest.mark.anyio
@pytest.mark.parametrize("item", [{"type": "reasoning", "content": 5}, {"type": "reasoning", "summary": []}])
async def test_malformed_reasoning_is_refused(scripted: Session, item: dict[str, Any]) -> None:
    reply = await ask(app(scripted), PATH, {"input": [item]})
    assert (reply.status, reply.error["param"]) == (400, "input")


@pytest.mark.anyio
async def test_conversations_are_their_items_in_order() -> None:
    responses = KeptResponses()
    responses.put(entry(name_of(1), "1"))
    responses.put(entry(name_of(2), "2", previous=name_of(1)))
    items = await responses.conversation(name_of(2))
    assert items is not None
    outputs = [[{"text": f"output {number}"}] for number in (1, 2)]
    assert [item["content"] for item in items] == ["input 1", outputs[0], "input 2", outputs[1]]
    assert await responses.delete(name_of(1))
    assert (await responses.conversation(name_of(2))) is None
    assert not await responses.delete(name_of(1))


@pytest.mark.anyio
async def test_beyond_the_limit_those_unused_for_longest_are_dropped() -> None:
    size = len(entry(name_of(0)).json)
    responses = KeptResponses(memory=2 * size)
    for number in range(2):
        responses.put(entry(name_of(number)))
    assert (await responses.get(name_of(0))) is not None
    responses.put(entry(name_of(2)))
    assert [(await responses.get(name_of(number))) is not None for number in range(3)] == [True, False, True]
    responses.put(entry(name_of(3), "x" * 3 * size))
    assert (await responses.get(name_of(3))) is None, "one that is too large is not kept"


@pytest.mark.anyio
async def test_copies_on_disk_outlive_the_process_within_their_limit(tmp_path: Path) -> None:
    size = len(entry(name_of(0)).json)
    responses = KeptResponses(tmp_path, disk=2 * size)
    for number in range(3):
        responses.put(entry(name_of(number)))
    await responses.settle()
    assert len(names_in(tmp_path)) == 2
    again = KeptResponses(tmp_path, disk=2 * size)
    assert [(await again.get(name_of(number))) is not None for number in range(3)] == [False, True, True]
    assert await again.delete(name_of(1))
    assert names_in(tmp_path) == [name_of(2)]
    (tmp_path / f"{name_of(2)}.json").unlink()
    assert (await KeptResponses(tmp_path).get(name_of(2))) is None
    assert (await KeptResponses(tmp_path).get("../secrets")) is None


@pytest.mark.anyio
@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_that_cannot_be_written_is_still_an_answer(
    scripted: Session, tmp_path: Path, streams: bool
) -> None:
    responses = KeptResponses(tmp_path / "missing")
    server = application(Service(OneModel(scripted, None), Limits(), Gate()), Access(), responses)
    reply = await ask(server, PATH, {"input": [USER], "max_output_tokens": 9, "stream": streams})
    assert reply.status == 200
    assert b"internal_server_error" not in reply.body
    (name,) = set(re.findall(r"resp-[0-9a-f]{32}", reply.body.decode()))
    assert (await ask(server, f"{PATH}/{name}")).status == 200, "it is in memory"


@pytest.mark.anyio
async def test_a_damaged_file_is_no_response(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"[1]", b'{"items"', b'{"others": 1}', b"\xff\xfe")):
        (tmp_path / f"{name_of(number)}.json").write_bytes(content)
        assert (await KeptResponses(tmp_path).get(name_of(number))) is None


@pytest.mark.anyio
async def test_processes_share_a_directory(tmp_path: Path) -> None:
    one, other = KeptResponses(tmp_path), KeptResponses(tmp_path)
    for number in (1, 2):
        one.put(entry(name_of(number)))
    assert await one.get(name_of(2)) == entry(name_of(2))
    assert await other.get(name_of(1)) == entry(name_of(1))
    assert await other.delete(name_of(2))
    for responses in (one, other, KeptResponses(tmp_path)):
        assert await responses.get(name_of(2)) is None, "deleted in all processes"
        assert not await responses.delete(name_of(2))


@pytest.mark.anyio
@pytest.mark.parametrize("streams", [False, True])
async def test_the_event_loop_waits_for_no_disk_and_an_answer_ends_after_its_file(
    scripted: Session, tmp_path: Path, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, may_write, write = set[int](), threading.Event(), OnDisk.put

    def put(store: OnDisk, name: str, data: bytes) -> None:
        threads.add(threading.get_ident())
        assert may_write.wait(PATIENCE)
        write(store, name, data)

    monkeypatch.setattr(OnDisk, "put", put)
    responses = KeptResponses(tmp_path)
    server = application(Service(OneModel(scripted, None), Limits(), Gate()), Access(), responses)
    caller = Caller(server, PATH, {"input": [USER], "max_output_tokens": 9, "stream": streams})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.run)
        await until(lambda: bool(threads), "the file was to be written")
        assert (caller.reply.complete, names_in(tmp_path)) == (False, [])
        may_write.set()
    assert threading.get_ident() not in threads
    (name,) = set(re.findall(r"resp-[0-9a-f]{32}", caller.reply.body.decode()))
    assert (caller.reply.complete, names_in(tmp_path)) == (True, [name])


@pytest.mark.anyio
async def test_waits_for_a_slow_disk_leave_the_threads_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read, load = threading.Event(), OnDisk.get

    def get(store: OnDisk, name: str) -> bytes | None:
        assert may_read.wait(PATIENCE)
        return load(store, name)

    monkeypatch.setattr(OnDisk, "get", get)
    responses, answers = KeptResponses(tmp_path), list[KeptResponse | None]()

    async def ask_for(name: str) -> None:
        answers.append(await responses.get(name))

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(ask_for, name_of(1))
        await anyio.wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(may_read.set)
    assert answers == [None] * 100


@pytest.mark.anyio
async def test_a_directory_may_change_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / f"{name_of(1)}.json").symlink_to(tmp_path / "gone")
    (tmp_path / "resp-other.json").write_bytes(b"another program's")
    assert (await KeptResponses(tmp_path, disk=1).get(name_of(1))) is None
    assert (tmp_path / "resp-other.json").exists()


@pytest.mark.anyio
@pytest.mark.parametrize("on_disk", [False, True])
async def test_a_response_that_cannot_be_written_as_json_is_told_in_the_log(
    tmp_path: Path, on_disk: bool, caplog: pytest.LogCaptureFixture
) -> None:
    responses, deep = KeptResponses(tmp_path if on_disk else None), dict[str, Any]()
    deep["content"] = deep
    responses.put(KeptResponse([deep], None, {"id": name_of(1), "output": []}))
    responses.put(entry(name_of(2)))
    assert [await responses.get(name_of(number)) for number in (1, 2)] == [None, entry(name_of(2))]
    assert f"the response {name_of(1)} is not kept" in caplog.text


def test_incomplete_files_are_deleted_once_no_process_can_be_at_work_on_them(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in (f"{name_of(1)}.part", f"{name_of(2)}.part", "notes.part"))
    for file in (old, new, other):
        file.write_bytes(b"{")
    for file in (old, other):
        os.utime(file, (0, 0))
    KeptResponses(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([new, other])


@pytest.mark.anyio
async def test_an_item_of_a_kept_response_can_be_named_in_place_of_its_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return "<think>\nHm\n</think>\n\nIt is warm."

    with scripted_session(monkeypatch, script) as session:
        server = app(session)
        first = await respond(server, max_output_tokens=None)
        reasoning, message = ({"type": "item_reference", "id": item["id"]} for item in first["output"])
        question = {"id": f"in_{first['id'].removeprefix('resp-')}_0"}  # the type may be absent
        again = await respond(server, input=[question, reasoning, message, {**USER, "content": "And now?"}])
        assert prompts[-1].count("Weather?") == 1
        assert "<think>Hm</think>It is warm." in prompts[-1]
        items = (await ask(server, f"{PATH}/{again['id']}/input_items?order=asc")).json["data"]
        assert items[1:3] == first["output"]
        whole = await respond(server, input=[USER, *first["output"], {**USER, "content": "And now?"}])
        assert whole["usage"]["input_tokens"] == again["usage"]["input_tokens"]
        for names, status, text in (
            (["msg_1"], 404, "no item 'msg_1'"),
            ([f"{message['id']}9"], 404, "no item"),
            ([message["id"], message["id"]], 400, "two references"),
            ([3], 400, "must be a string"),
        ):
            refused = await ask(server, PATH, {"input": [{"type": "item_reference", "id": name} for name in names]})
            assert (refused.status, refused.error["param"], text in refused.error["message"]) == (status, "input", True)
        await ask(server, f"{PATH}/{first['id']}", method="DELETE")
        assert (await ask(server, PATH, {"input": [message]})).status == 404


FORMS = {
    "another type": [1],
    "another name": {"items": [], "before": None, "response": {"id": "x", "output": []}},
    "one more": {"version": 2, "items": [], "previous": 3, "response": {"id": "x", "output": []}},
    "items": {"items": {}, "previous": None, "response": {"id": "x", "output": []}},
    "an item": {"items": ["Hi"], "previous": None, "response": {"id": "x", "output": []}},
    "the response": {"items": [], "previous": None, "response": "x"},
    "no output": {"items": [], "previous": None, "response": {"id": "x"}},
    "an output item": {"items": [], "previous": None, "response": {"id": "x", "output": [3]}},
    "its content": {"items": [], "previous": None, "response": {"id": "x", "output": [{"content": "Hi"}]}},
    "a circle": {"items": [USER], "previous": name_of(1), "response": {"id": name_of(1), "output": []}},
}
"""Data of kept responses that another version may have written, or nobody."""


@pytest.mark.anyio
@pytest.mark.parametrize("form", FORMS)
async def test_a_kept_response_in_another_form_is_absent(scripted: Session, tmp_path: Path, form: str) -> None:
    file = tmp_path / f"{name_of(1)}.json"
    file.write_text(json.dumps(FORMS[form]), encoding="utf-8")
    server = application(Service(OneModel(scripted, None), Limits(), Gate()), Access(), KeptResponses(tmp_path))
    if form != "a circle":
        for path in (name_of(1), f"{name_of(1)}/input_items"):
            assert (await ask(server, f"{PATH}/{path}")).status == 404
    refused = await ask(server, PATH, {"input": "Hi", "previous_response_id": name_of(1)})
    assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")
    item = {"type": "item_reference", "id": f"msg_{name_of(1).removeprefix('resp-')}_0"}
    assert (await ask(server, PATH, {"input": [item]})).status == 404
    assert file.exists(), "another version may still read it"
