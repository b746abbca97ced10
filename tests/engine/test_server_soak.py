"""Clients may leave, flood, stall and err: all others get their answers, and no client leaves anything behind."""

import asyncio
import logging
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

import rekindle
from rekindle.server.listening.running import Server
from rekindle.session.session import Session
from tests.costs import memory
from tests.engine.soak_clients import Case, Clients
from tests.sentence_models import embedding_model
from tests.waiting import until

pytestmark = pytest.mark.anyio

LOG = logging.getLogger("rekindle.soak")
SECONDS = 600.0
WARM_UP = 1 / 3
"""The fraction of the time that is the warm-up; afterwards memory may not grow."""
MOST_GROWTH = 16 << 20
"""The most bytes of growth after the warm-up. Some 8,000 clients then send 11,000 requests of tens of kB each: a leak
of 2 kB per request would be more."""
ASKING, STAYING = 12, 12
"""The number of clients of either kind at once."""
LEFT_SECONDS = 180.0
"""Seconds for the server to forget the last client."""

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
PREFIX = "Some texts begin alike, so that they share pages of the cache. "
CONSTRAINTS: tuple[dict[str, Any], ...] = (
    {"guided_regex": r"(19|20)\d\d-(0[1-9]|1[0-2])-\d\d"},
    {"guided_choice": ["yes, it certainly is", "no"]},
    {"guided_json": {"type": "object", "properties": {"a": {"enum": [1, 22, 333]}}, "required": ["a"]}},
)


def cases(session: Session, count: int, chance: random.Random) -> list[Case]:
    """Return requests of all kinds, with the session's answers."""
    result = []
    for number in range(count):
        text = PREFIX * chance.randrange(2) + "".join(chance.choices("abc xyz.", k=chance.randrange(1, 90)))
        if number % 6 == 0:
            vectors = session.embed_sync([text, text[:9]], normalize=True)
            result.append(Case("/v1/embeddings", {"input": [text, text[:9]]}, [], vectors.tolist()))
            result.append(further_case(session, number, text))
            continue
        options: dict[str, Any] = {"max_tokens": chance.randrange(1, 60)}
        if number % 2:
            options |= {"temperature": 1.0, "seed": number}
        constraint: dict[str, Any] = chance.choice(CONSTRAINTS) if number % 3 == 1 else {}
        own = {
            name.replace("guided_json", "json_schema").removeprefix("guided_"): of for name, of in constraint.items()
        }
        n = chance.randrange(1, 4) if number % 2 else None
        chats = number % 4 < 2
        prompt: Any = [{"role": "user", "content": text}] if chats else text
        answers = session.generate_sync(prompt, n=n or 1, logprobs=0, **options, **own)
        body = {**options, **constraint, "n": n or 1, "messages" if chats else "prompt": prompt}
        scores = {"logprobs": True, "top_logprobs": 0} if chats else {"logprobs": 0}
        path = "/v1/chat/completions" if chats else "/v1/completions"
        numbers = [[token.logprob for token in answer.logprobs or ()] for answer in answers]
        result.append(Case(path, {**body, **scores}, [answer.text for answer in answers], numbers))
    return result


def further_case(session: Session, number: int, text: str) -> Case:
    """Return a request of another API than OpenAI's completions."""
    assert session.tokenizer is not None
    messages = [{"role": "user", "content": text}]
    chat = session.generate_sync(messages, max_tokens=20, temperature=0).text
    plain = session.generate_sync(text, max_tokens=20, temperature=0).text
    options = {"num_predict": 20, "temperature": 0}
    texts = [text[:9], text, "another"]
    ranking = sorted(session.rerank_sync(text, texts, progress=False), key=lambda each: each.index)
    every = (
        Case("/v1/messages", {"messages": messages, "max_tokens": 20, "temperature": 0}, [chat], [[]]),
        Case("/v1/responses", {"input": text, "max_output_tokens": 20, "temperature": 0, "store": False}, [chat], [[]]),
        Case("/api/chat", {"messages": messages, "options": options}, [chat], [[]]),
        Case("/api/generate", {"prompt": text, "raw": True, "options": options}, [plain], [[]]),
        Case("/v1/rerank", {"query": text, "documents": texts}, [], [[each.score for each in ranking]]),
        Case("/tokenize", {"prompt": text}, [], [session.tokenizer.encode(text)]),
    )
    return every[number // 6 % len(every)]


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a process without clients.

    Attributes:
        files: open files of the process.
        threads: names of Rekindle's threads.
        tasks, connections: of the server.
        used: requests in flight or in the queue, and pages in use.
    """

    files: int
    threads: tuple[str, ...]
    tasks: int
    connections: int
    used: int

    @classmethod
    def now(cls, session: Session, server: Server) -> "Resources":
        """Count the resources now."""
        counts = session.stats.scheduler
        state, loop = server._uvicorn.server_state, server._uvicorn.servers[0].get_loop()
        return cls(
            len(os.listdir("/proc/self/fd")),
            tuple(sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("rekindle"))),
            len(asyncio.all_tasks(loop)) + len(state.tasks),
            len(state.connections),
            counts.running + counts.waiting + counts.pages - counts.free_pages + len(session.requests),
        )


class Errors(logging.Handler):
    """Counts the logged errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages = Counter[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages[record.getMessage()] += 1


async def soaked(clients: Clients, seconds: float) -> None:
    """Run clients of all kinds for some time."""
    asking: Sequence[Callable[[], Any]] = (
        *(clients.asks,) * 24,
        *(clients.leaves_in_the_body, clients.leaves_before_a_token, clients.leaves_in_the_stream) * 3,
        *(clients.errs, clients.floods) * 2,
        *(clients.drips, clients.sends_too_much),
    )
    staying = (clients.is_silent, clients.drips_without_end, clients.stalls)
    until = monotonic() + seconds

    async def one_after_the_other(*acts: Callable[[], Any]) -> None:
        while monotonic() < until:
            await clients.act(*acts)

    async with anyio.create_task_group() as stay:
        for _ in range(STAYING):
            stay.start_soon(one_after_the_other, *staying)
        async with anyio.create_task_group() as ask:
            for _ in range(ASKING):
                ask.start_soon(one_after_the_other, *asking)
        stay.cancel_scope.cancel()


async def forgotten(session: Session, server: Server, files: int) -> None:
    """Wait until nothing is left of any client."""
    threads = ("rekindle-engine", "rekindle-server", "rekindle-watchdog")
    rest = Resources(files, threads, tasks=2, connections=0, used=0)  # the server's, and that of its app's lifespan
    with anyio.move_on_after(LEFT_SECONDS):
        while Resources.now(session, server) != rest:  # noqa: ASYNC110
            await anyio.sleep(0.1)
    assert Resources.now(session, server) == rest


@pytest.mark.deep
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # that of the clients; the server has its own
async def test_a_server_holds(families: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random()
    model = embedding_model(families / "qwen3-embed", tmp_path / "tiny")
    settings: dict[str, Any] = {"page_size": 16, "num_pages": 129, "max_context": 256, "max_running": 8}
    settings |= {"max_prefill_tokens": 64, "prefill_buckets": (64,), "decode_buckets": (8,), "max_logprobs": 20}
    settings |= {"host_cache_bytes": 1 << 20, "disk_cache_bytes": 0}  # the host's part is full after the warm-up
    session = await rekindle.open(model, progress=False, chat_template=TEMPLATE, **settings)
    errors = Errors()
    caplog.set_level(logging.ERROR, "uvicorn.error")  # which warns of each flood
    logging.getLogger().addHandler(errors)
    async with session, session.serve(port=0) as server:
        await session.precompiled(progress=False)
        requests = await anyio.to_thread.run_sync(cases, session, 60, chance)
        url = urlsplit(server.url)
        clients = Clients((url.hostname or "", url.port or 0), requests, chance.randrange(2**32))
        for _ in range(9):
            await clients.asks()
        await until(lambda: not Resources.now(session, server).connections, "the clients' connections were closed")
        files = Resources.now(session, server).files
        await soaked(clients, SECONDS * WARM_UP)
        await forgotten(session, server, files)
        warm, did = memory(), clients.did.copy()
        await soaked(clients, SECONDS * (1 - WARM_UP))
        await forgotten(session, server, files)
        growth = memory() - warm
    logging.getLogger().removeHandler(errors)
    LOG.warning("%s after the warm-up; %s; %s", (clients.did - did).total(), dict(clients.did), dict(clients.statuses))
    LOG.warning("%d files; %.1f MB and then %+.1f MB", files, warm / 2**20, growth / 2**20)
    assert growth < MOST_GROWTH
    assert set(clients.statuses) == {200, 400, 413}
    assert set(errors.messages) <= {"ASGI callable returned without completing response."}  # to clients that stall
    assert len(clients.did) == 11
    assert not [thread for thread in threading.enumerate() if thread.name == "rekindle-server"]
