"""Run `generate` and a streamed chat over HTTP on the fake device, and print the extent of the code run.

A trace of all threads counts functions, files and lines by phase. The printed JSON also has the number of our modules
by the end of `generate`. `test_trace.py` runs this module in a child process.
"""

import asyncio
import json
import sys
import threading
from collections import defaultdict
from types import CodeType, FrameType
from typing import Any
from urllib.request import Request, urlopen

from rekindle.core.text.tokenizer import Tokenizer
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session

OURS = ("/toolkit/rekindle/", "/kernels/rekindle_kernels/")


class Trace:
    """Lines and functions of Rekindle run in each phase."""

    def __init__(self) -> None:
        self.phase, self.modules = "", 0
        self._ours: dict[CodeType, bool] = {}
        self._lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self._functions: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self._files: dict[str, dict[str, None]] = defaultdict(dict)

    def call(self, frame: FrameType, event: str, argument: Any) -> Any:
        """See `sys.settrace`."""
        code = frame.f_code
        if code not in self._ours:
            self._ours[code] = any(part in code.co_filename for part in OURS) and "/testing/" not in code.co_filename
        if not self._ours[code]:
            return None
        if not code.co_name.startswith("<"):
            self._functions[self.phase].add((code.co_filename, code.co_firstlineno))
            self._files[self.phase].setdefault(code.co_filename)
        return self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._lines[self.phase].add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def files(self, phase: str) -> list[str]:
        """Return the files of a phase by the order of their first calls."""
        return [name.partition("/toolkit/rekindle/")[2] for name in self._files[phase]]

    def counts(self, phase: str) -> dict[str, int]:
        """Return the numbers of functions, files and lines of a phase."""
        functions, lines = self._functions[phase], self._lines[phase]
        files = {file for file, _ in functions | lines}
        return {"functions": len(functions), "files": len(files), "lines": len(lines)}


def loaded_modules() -> int:
    """Return the number of Rekindle's modules in this process, without those of tests and fake devices."""
    ours = [name.split(".") for name in list(sys.modules)]
    return sum(name[0] in ("rekindle", "rekindle_kernels") and "testing" not in name for name in ours)


def byte_tokenizer() -> Tokenizer:
    """Make a tokenizer with the 256 bytes as tokens."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, chat_template="{% for message in messages %}{{ message.content }}{% endfor %}")


async def main(trace: Trace) -> None:
    """Run each phase twice; the first run belongs to the start."""
    trace.phase = "open"
    with fake_session(fake_loaded_engine(fake_limits(), tokenizer=byte_tokenizer())) as session:
        for phase in ("first generate", "generate"):
            trace.phase = phase
            await session.generate("hello", max_tokens=4)
            trace.phase = ""
            await asyncio.sleep(0.1)
        trace.modules = loaded_modules()
        server = await session.serve(port=0)
        body = {"model": session.name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}
        url = f"{server.url.removesuffix('/v1').rstrip('/')}/v1/chat/completions"
        request = Request(url, json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        for phase in ("first chat", "chat"):
            trace.phase = phase
            await asyncio.to_thread(lambda: urlopen(request).read())
            trace.phase = ""
            await asyncio.sleep(0.1)
        await server.close()


if __name__ == "__main__":
    trace = Trace()
    threading.settrace(trace.call)
    sys.settrace(trace.call)
    asyncio.run(main(trace))
    sys.settrace(None)
    threading.settrace(None)
    counts = {phase: trace.counts(phase) for phase in ("generate", "chat")}
    sys.stdout.write(json.dumps({**counts, "modules": trace.modules, "files": trace.files("generate")}))
