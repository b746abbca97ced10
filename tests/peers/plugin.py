"""A plugin for pytest in an environment of a peer: stand-ins for heavy imports, and the reason of each failure.

It imports nothing of Rekindle.
"""

import base64
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import re
import signal
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

HEAVY = ("vllm", "torch", "transformers", "wget", "mteb", "PIL", "tests.models", "tests.conftest")
"""Packages and modules with a stand-in where they are missing."""
OUTCOMES: list[dict[str, str]] = []
ANSWERS: list[str] = []
"""The refusals of the server in the current test."""


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        is_heavy = any(name == each or name.startswith(f"{each}.") for each in HEAVY)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_heavy else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _StandIn(ModuleType):
    __path__ = []  # noqa: RUF012 - as every package has

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "get_tokenizer":
            return lambda *arguments, **options: ServerTokenizer()
        if name in STANDING_IN:
            return STANDING_IN[name]
        if name[:1].isupper() and name.endswith("Response"):
            return type(name, (_Answer,), {})
        if name[:1].isupper() and name.endswith(("Error", "Exception")):
            return type(name, (Exception,), {})
        return MagicMock(name=f"{self.__name__}.{name}")


class _Answer(SimpleNamespace):
    """Stand-in for a model of an answer: its fields as attributes, unchecked."""

    @classmethod
    def model_validate(cls, values: Any) -> Any:
        return json.loads(json.dumps(values), object_hook=lambda fields: cls(**fields))


class ServerTokenizer:
    """The tokenizer of the server, by its routes."""

    def encode(self, text: str, add_special_tokens: bool = True, **options: object) -> list[int]:
        body = {"prompt": text, "add_special_tokens": add_special_tokens}
        tokens: list[int] = self._ask("/tokenize", body)["tokens"]
        return tokens

    def decode(self, tokens: int | Sequence[int], **options: object) -> str:
        ids = [tokens] if isinstance(tokens, int) else list(tokens)
        text: str = self._ask("/detokenize", {"tokens": ids})["prompt"]
        return text

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        body = {"messages": conversation, "add_generation_prompt": options.get("add_generation_prompt", False)}
        tokens = self._ask("/tokenize", body)["tokens"]
        return tokens if options.get("tokenize", True) else self.decode(tokens)

    def __call__(self, text: str, **options: Any) -> Any:
        return MagicMock(input_ids=self.encode(text))

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        import httpx

        return httpx.post(os.environ["PEERS_URL"] + path, json=body, timeout=60).raise_for_status().json()


class Pictures:
    """Stand-in for a server of vLLM's pictures: each is made from its name, with its mode, and has a data URL."""

    def url_for(self, name: str) -> str:
        return data_url(self.get_image_asset(name))

    def get_image_asset(self, name: str) -> Any:
        from PIL import Image

        picture = Image.new("RGB", (160, 120), f"#{zlib.crc32(name.encode()) & 0xFFFFFF:06x}")
        return picture.convert("L" if "Grayscale" in name else "RGBA" if "RGBA" in name else "RGB")


def data_url(picture: Any, **options: object) -> str:
    """Return a picture of PIL as a data URL."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def fetch_image(url: str) -> Any:
    """Return the picture of a data URL, or the one that stands for an address."""
    if not url.startswith("data:"):
        return Pictures().get_image_asset(url.rpartition("/")[2])
    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


class MediaWithBytes:
    """Stand-in for vLLM's wrapper of pictures; none is wrapped here."""


STANDING_IN: dict[str, Any] = {
    "encode_image_url": data_url,
    "fetch_image": fetch_image,
    "MediaWithBytes": MediaWithBytes,
    "iinfo": lambda kind: SimpleNamespace(min=-(1 << 63), max=(1 << 63) - 1),
}
"""Stand-ins by the names that tests import."""


@pytest.fixture(scope="session")
def local_asset_server() -> Pictures:
    return Pictures()


@pytest.fixture
def image_url(request: pytest.FixtureRequest, local_asset_server: Pictures) -> str:
    return local_asset_server.url_for(request.param)


@pytest.fixture
def image_urls(request: pytest.FixtureRequest, local_asset_server: Pictures) -> list[str]:
    return [local_asset_server.url_for(name) for name in request.param]


sys.meta_path.append(_StandIns())  # the last: what is installed comes first


def pytest_configure(config: pytest.Config) -> None:
    for listen in (_listen_to_httpx, _listen_to_requests):
        with suppress(ImportError):  # tests without this client
            listen()


def _listen_to_httpx() -> None:
    """Note each refusal to a client of httpx."""
    import httpx

    former, former_async = httpx.Client.send, httpx.AsyncClient.send

    def send(self: Any, request: Any, **options: Any) -> Any:
        response = former(self, request, **options)
        if response.status_code >= 400:
            _note(response.status_code, request.method, request.url.path, response.read())
        return response

    async def send_async(self: Any, request: Any, **options: Any) -> Any:
        response = await former_async(self, request, **options)
        if response.status_code >= 400:
            _note(response.status_code, request.method, request.url.path, await response.aread())
        return response

    httpx.Client.send, httpx.AsyncClient.send = send, send_async


def _listen_to_requests() -> None:
    """Note each refusal to a client of requests."""
    import requests

    former = requests.Session.send

    def send(self: Any, request: Any, **options: Any) -> Any:
        response = former(self, request, **options)
        if response.status_code >= 400:
            _note(response.status_code, request.method, request.path_url, response.content)
        return response

    requests.Session.send = send  # type: ignore[method-assign]


def _note(status: int, method: str, path: str, body: bytes) -> None:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body[:80].decode(errors="replace")
    if status in (404, 405) and "is not served" in message:
        message = "no such route"
    ANSWERS.append(f"{status} {method} {path}: {message}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End a test that takes too long."""
    ANSWERS.clear()
    signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, float(os.environ["PEERS_SECONDS"]))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


def _late(number: int, frame: object) -> None:
    raise TimeoutError("the test took too long")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    result = yield
    report = result.get_result()
    if report.when == "call" or report.outcome != "passed":
        reason = "" if call.excinfo is None else _reason(call.excinfo)
        if report.when == "teardown" and OUTCOMES and OUTCOMES[-1]["test"] == item.nodeid:
            return
        OUTCOMES.append({"test": item.nodeid, "outcome": report.outcome, "reason": reason})


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        last = str(report.longrepr).strip().splitlines()[-1]
        OUTCOMES.append({"test": report.nodeid, "outcome": "failed", "reason": f"not collected: {last}"})


def pytest_sessionfinish(session: pytest.Session) -> None:
    Path(os.environ["PEERS_REPORT"]).write_text(json.dumps(OUTCOMES), encoding="utf-8")


def _reason(info: pytest.ExceptionInfo[BaseException]) -> str:
    """Return the server's last refusal if the error is about it, or else the first line of the error."""
    text = str(info.value).strip().splitlines()
    line = f"{info.typename}: {text[0] if text else ''}"
    reason = ANSWERS[-1] if ANSWERS and ANSWERS[-1][:3] in line else line
    return re.sub(r"\b\d{2,}\b(?! (GET|POST|DELETE|OPTIONS))", "N", reason)
