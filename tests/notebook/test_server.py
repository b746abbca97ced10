"""A session is served beside the cells that use it, to clients in the same kernel too, and leaves no port behind."""

import pytest

from tests.notebook.driver import Notebook
from tests.notebook.kernels import COLAB

pytestmark = pytest.mark.notebook

ASK = """
import http.client, urllib.error, urllib.request

def ask(path, **body):
    "Ask the server, and block until it has answered."
    given = json.dumps(body).encode() if body else None
    request = urllib.request.Request(server.url + path, given, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)

def complete(token_ids, **options):
    return ask("/v1/completions", prompt=token_ids, ignore_eos=True, **options)
"""
STREAM = """
connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
body = json.dumps({"prompt": PROMPT, "max_tokens": 60000, "ignore_eos": True, "stream": True})
connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
reply = connection.getresponse()
events = iter(reply.readline, b"")  # of a slow first token, comments go before
first = json.loads(next(line for line in events if line.startswith(b"data: "))[6:])["choices"][0]["text"]
"""
PAGES = 2 * 64


def test_a_cell_that_blocks_is_served_by_its_own_kernel_out_of_the_same_cache(notebook: Notebook) -> None:
    notebook.run(ASK)
    assert notebook.run("server = await session.serve(port=0)") == ""
    text = notebook.run("print(complete(PROMPT, max_tokens=len(GOLDEN))['choices'][0]['text'])")
    assert text == notebook.run("print(''.join(f'w{token}' for token in GOLDEN))")

    notebook.run("documents = [[first + place % 400 for place in range(140)] for first in (3, 4)]")
    notebook.run("cached = complete(documents[0], max_tokens=2)['usage']['prompt_tokens_details']['cached_tokens']")
    mine = "print(cached, (await session.generate(token_ids=documents[0], max_tokens=2)).cached_tokens)"
    assert notebook.run(mine) == f"0 {PAGES}\n"
    notebook.run("answer = await session.generate(token_ids=documents[1], max_tokens=2)")
    theirs = "print(complete(documents[1], max_tokens=2)['usage']['prompt_tokens_details']['cached_tokens'])"
    assert notebook.run(theirs) == f"{PAGES}\n"
    notebook.run("await server.close()")


def test_cells_generate_while_clients_are_served_and_stop_them(notebook: Notebook) -> None:
    notebook.run(ASK)
    notebook.run("server = await session.serve(port=0)")
    notebook.run(STREAM)
    assert notebook.run("print(list((await session.generate(**EXPECTED)).token_ids) == GOLDEN)") == "True\n"
    assert notebook.run("print(first[0], session.stats.scheduler.running)") == "w 1\n"
    notebook.run("connection.close(); reply.close()")
    notebook.run("while session.requests or session.stats.scheduler.running: time.sleep(0.005)")
    counts = notebook.run("counts = session.stats.scheduler; print(counts.running, counts.waiting)")
    assert counts == "0 0\n"
    notebook.run("server.close_sync()")
    assert notebook.run("print(server, server.closed.closed)") == "<rekindle.server.Server closed> True\n"


@pytest.mark.wide
def test_a_server_ends_with_its_session_and_with_the_kernel(fresh: Notebook, prelude: str, kernel: str) -> None:
    opening = "session = await open_tiny(precompile='lazy', progress=False)"
    fresh.run(opening + "; server = await session.serve(port=0)")
    port = int(fresh.run("port = int(server.url.rpartition(':')[2]); print(port)"))
    fresh.run("await session.close()")
    assert fresh.run("await server.close(); print(server.closed.closed)") == "True\n"

    fresh.run(ASK)
    fresh.run(f"{opening}; server = await session.serve(port={port})")
    fresh.run(STREAM)
    _, status = fresh.restart()
    assert status == 0 or kernel == COLAB

    fresh.run(prelude)
    fresh.run(ASK)
    fresh.run(f"{opening}; server = await session.serve(port={port})")
    assert fresh.run("print(ask('/health'))") == "{'status': 'ok'}\n"
    fresh.run("session.close_sync()")
    assert fresh.log() == ""
