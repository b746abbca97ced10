"""Print the longest stop of the server's event loop, by route and input, at the largest body allowed.

The embedded model answers. A stop is the time that a timer of the loop waits beyond its period, less the time for which
its thread waited for a core: the model's threads and other processes take the cores too. Each input is sent several
times, and its row has the shortest of the longest stops.
"""

import argparse
import gc
import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import anyio

import rekindle
from rekindle.server import app
from rekindle.server.http.limits import Limits
from tests.bench.say import waiting
from tests.bench.workload import MODEL
from tests.unit.asgi import ask

PERIOD: Final = 1e-3
USER: Final = {"role": "user", "content": "Hello"}
CHAT: Final[dict[str, Any]] = {"messages": [USER], "max_tokens": 1}
ASKED: Final = 0.05
"""Seconds of a stop above which its work belongs on a thread."""
WORDS: Final = "The loop of a server does little for each request, however large. "

Body = Callable[[int], dict[str, Any]]
"""Returns a body of about so many bytes."""


def many(item: Any, size: int) -> list[Any]:
    """Return a list of one item with about so many bytes as JSON."""
    return [item] * (size // (len(json.dumps(item)) + 2))


def words(size: int, width: int = 12) -> list[str]:
    """Return distinct words with about so many bytes as JSON."""
    return [f"w{place:0{width - 1}d}" for place in range(size // (width + 4))]


def text(size: int) -> str:
    """Return a text of about so many bytes."""
    return WORDS * (size // len(WORDS))


def function(name: str, description: str = "") -> dict[str, Any]:
    """Return the function of a tool."""
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return {"name": name, "description": description, "parameters": parameters}


def tools(size: int) -> list[dict[str, Any]]:
    """Return tools of Chat Completions with about so many bytes."""
    return [{"type": "function", "function": function(f"f{place}")} for place in range(size // 160)]


def flat_tools(size: int, description: int = 0) -> list[dict[str, Any]]:
    """Return tools of Responses with about so many bytes, each with a description of so many bytes."""
    count = size // (150 + description)
    return [{"type": "function", **function(f"f{place}", text(description))} for place in range(count)]


def chat(name: str, value: Callable[[int], Any]) -> tuple[str, Body]:
    """Return the route of chats, and bodies with a large field."""
    return "/v1/chat/completions", lambda size: {**CHAT, name: value(size)}


INPUTS: Final[dict[str, tuple[str, Body]]] = {
    "messages": chat("messages", lambda size: many(USER, size)),
    "one message": chat("messages", lambda size: [{"role": "user", "content": text(size)}]),
    "blocks": chat("messages", lambda size: [{"role": "user", "content": many({"type": "text", "text": "a"}, size)}]),
    "a role": chat("messages", lambda size: [{"role": "r" * size, "content": "a"}]),
    "tools": chat("tools", tools),
    "a described tool": chat("tools", lambda size: [{"type": "function", "function": function("f", text(size))}]),
    "bad_words": chat("bad_words", words),
    "short bad_words": chat("bad_words", lambda size: words(min(size, 20_000 * 16))),
    "logit_bias": chat("logit_bias", lambda size: dict.fromkeys(map(str, range(size // 12)), 1)),
    "stop": chat("stop", words),
    "one stop": chat("stop", text),
    "stop_token_ids": chat("stop_token_ids", lambda size: many(1, size)),
    "allowed_token_ids": chat("allowed_token_ids", lambda size: many(1, size)),
    "a schema": chat(
        "response_format",
        lambda size: {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": words(size)}}},
    ),
    "guided_choice": chat("guided_choice", words),
    "guided_regex": chat("guided_regex", lambda size: "a" * size),
    "guided_grammar": chat("guided_grammar", lambda size: "start: " + " ".join(f'"{word}"' for word in words(size))),
    "cache_salt": chat("cache_salt", text),
    "metadata": chat("metadata", lambda size: dict.fromkeys(words(size), "a")),
    "an unknown field": chat("x", lambda size: many([1], size)),
    "template variables": chat("chat_template_kwargs", lambda size: dict.fromkeys(words(size), 1)),
    "prompt": ("/v1/completions", lambda size: {"prompt": text(size), "max_tokens": 1}),
    "a prompt without spaces": ("/v1/completions", lambda size: {"prompt": "a" * size, "max_tokens": 1}),
    "prompts": ("/v1/completions", lambda size: {"prompt": many("Hello", size), "max_tokens": 1}),
    "2,048 prompts": ("/v1/completions", lambda size: {"prompt": [text(size // 2048)] * 2048, "max_tokens": 1}),
    "short prompts": ("/v1/completions", lambda size: {"prompt": ["a b c"] * 2048, "max_tokens": 1}),
    "lists of token ids": (
        "/v1/completions",
        lambda size: {"prompt": [many(1, size // 2048)] * 2048, "max_tokens": 1},
    ),
    "token ids": ("/v1/completions", lambda size: {"prompt": many(1, size), "max_tokens": 1}),
    "input": ("/v1/responses", lambda size: {"input": text(size), "max_output_tokens": 1}),
    "items": ("/v1/responses", lambda size: {"input": many(USER, size), "max_output_tokens": 1}),
    "input of item_references": (
        "/v1/responses",
        lambda size: {"input": many({"type": "item_reference", "id": "msg_1_0"}, size)},
    ),
    "tools of responses": (
        "/v1/responses",
        lambda size: {"input": "a", "tools": flat_tools(size), "tool_choice": "none", "max_output_tokens": 1},
    ),
    "described tools": (
        "/v1/responses",
        lambda size: {"input": "a", "tools": flat_tools(size, 10_000), "tool_choice": "none", "max_output_tokens": 1},
    ),
    "a stream with tools": (
        "/v1/responses",
        lambda size: {
            "input": "a",
            "tools": flat_tools(size, 10_000),
            "tool_choice": "none",
            "max_output_tokens": 1,
            "stream": True,
        },
    ),
    "metadata of responses": (
        "/v1/responses",
        lambda size: {"input": "a", "max_output_tokens": 1, "metadata": dict.fromkeys(words(size), "a")},
    ),
    "input_tokens": ("/v1/responses/input_tokens", lambda size: {"input": text(size)}),
    "blocks of messages": (
        "/v1/messages",
        lambda size: {"messages": [{"role": "user", "content": many({"type": "text", "text": "a"}, size)}]},
    ),
    "system of messages": ("/v1/messages", lambda size: {"messages": [USER], "system": text(size), "max_tokens": 1}),
    "stop_sequences": (
        "/v1/messages",
        lambda size: {"messages": [USER], "stop_sequences": words(size), "max_tokens": 1},
    ),
    "count_tokens": ("/v1/messages/count_tokens", lambda size: {"messages": [{**USER, "content": text(size)}]}),
    "a history": ("/api/chat", lambda size: {"messages": many(USER, size), "stream": False}),
    "prompt of Ollama": ("/api/generate", lambda size: {"prompt": text(size), "stream": False}),
    "context": ("/api/generate", lambda size: {"prompt": "a", "context": many(1, size), "stream": False}),
    "keep_alive": ("/api/generate", lambda size: {"prompt": "a", "keep_alive": "1s" * (size // 2), "stream": False}),
    "embed": ("/api/embed", lambda size: {"input": [text(size // 2048)] * 2048}),
    "show": ("/api/show", lambda size: {"model": "a" * size}),
    "embeddings": ("/v1/embeddings", lambda size: {"input": [text(size // 2048)] * 2048}),
    "short embeddings": ("/v1/embeddings", lambda size: {"input": ["a b c"] * 2048}),
    "documents": ("/v1/rerank", lambda size: {"query": "a", "documents": [text(size // 2000)] * 2000}),
    "pairs": ("/v1/score", lambda size: {"text_1": "a", "text_2": [text(size // 2000)] * 2000}),
    "classify": ("/v1/classify", lambda size: {"input": [text(size // 2048)] * 2048}),
    "pooling": ("/v1/pooling", lambda size: {"input": [text(size // 2048)] * 2048}),
    "tokenize": ("/tokenize", lambda size: {"prompt": text(size)}),
    "token_strs": ("/tokenize", lambda size: {"prompt": text(size), "return_token_strs": True}),
    "token_strs of 1.8 MB": ("/tokenize", lambda size: {"prompt": text(1_800_000), "return_token_strs": True}),
    "pieces": ("/tokenize", lambda size: {"content": text(size), "with_pieces": True}),
    "tokenize a chat": ("/tokenize", lambda size: {"messages": many(USER, size)}),
    "detokenize": ("/detokenize", lambda size: {"tokens": [1, 2, 3] * min(size // 12, 2**20 // 3)}),
    "a model's name": chat("model", lambda size: "m" * size),
}


def waited_for_a_core() -> float:
    """Return the seconds for which this thread was ready and no core was free, on Linux; elsewhere 0."""
    schedule = Path("/proc/thread-self/schedstat")  # nanoseconds on a core and in the queue for one, and turns
    return int(schedule.read_text().split()[1]) * 1e-9 if schedule.exists() else 0.0


class Timer:
    """Timer of an event loop.

    Attributes:
        longest: the longest stop so far, in seconds.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        """Note the stops until cancelled."""
        while True:
            begin, waited = perf_counter(), waited_for_a_core()
            await anyio.sleep(PERIOD)
            stop = perf_counter() - begin - PERIOD
            self.longest = max(self.longest, stop - (waited_for_a_core() - waited))


async def longest_stop(server: Any, path: str, data: bytes) -> tuple[float, int, str]:
    """Return the longest stop of the loop during a request, the status of its answer, and the start of its body."""
    timer = Timer()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timer.run)
        await anyio.sleep(0.02)
        reply = await ask(server, path, data)
        await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    return timer.longest, reply.status, reply.body[:200].decode("utf-8", "replace")


def measure(names: list[str], rounds: int, size: int, shows: bool) -> None:
    """Print a row for each input."""
    worst = 0.0
    with waiting("opening the model"):
        session = rekindle.open_sync(MODEL, dtype="float32", progress=False, precompile="all")
    print(f"{'route':28} {'input':24} {'MB':>6} {'status':>6} {'stop':>8}")
    with session:
        server = app(session, limits=Limits(body_bytes=size))
        for name in names:
            path, body = INPUTS[name]
            data = json.dumps(body(size - 100_000), separators=(",", ":")).encode()
            anyio.run(ask, server, "/tokenize", {"prompt": "a"})  # imports
            gc.collect()
            stops = [anyio.run(longest_stop, server, path, data) for _ in range(rounds)]
            stop, status, start = min(stops)
            worst = max(worst, stop)
            mark = "  too long" if stop > ASKED else ""
            answer = f"  {start}" if shows else ""
            print(
                f"{path:28} {name:24} {len(data) / 1e6:6.1f} {status:6} {1e3 * stop:5.0f} ms{mark}{answer}", flush=True
            )
    print(f"longest stop: {1e3 * worst:.0f} ms (asked: at most {1e3 * ASKED:.0f} ms)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="the inputs; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=Limits().body_bytes / 1e6, help="the largest body")
    parser.add_argument("--answers", action="store_true", help="print the start of each answer")
    options = parser.parse_args()
    measure(options.names or list(INPUTS), options.rounds, round(options.megabytes * 1e6), options.answers)
