"""Stand-in for `tests.utils` of vLLM: a server that runs already. It imports nothing of Rekindle."""

import os
from pathlib import Path
from typing import Any, Self

import pytest

ROCM_EXTRA_ARGS: list[str] = []
ROCM_ENV_OVERRIDES: dict[str, str] = {}
TIMEOUT = 100.0
VLLM_PATH = Path(os.environ["PEERS_CHECKOUT"])


class RemoteOpenAIServer:
    """The server at PEERS_URL, whatever model and arguments a test asks for."""

    DUMMY_API_KEY = "none"

    def __init__(self, model: str, *arguments: object, **options: object):
        self.model = model
        self.url_root = os.environ["PEERS_URL"].rstrip("/")
        address = self.url_root.partition("//")[2]
        self.host, _, port = address.partition(":")
        self.port = int(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *(part.strip("/") for part in parts)])

    def get_client(self, **options: Any) -> Any:
        import openai

        return openai.OpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, **_options(options))

    def get_async_client(self, **options: Any) -> Any:
        import openai

        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, **_options(options))

    def get_client_anthropic(self, **options: Any) -> Any:
        import anthropic

        return anthropic.Anthropic(base_url=self.url_root, api_key=self.DUMMY_API_KEY, **_options(options))

    def get_async_client_anthropic(self, **options: Any) -> Any:
        import anthropic

        return anthropic.AsyncAnthropic(base_url=self.url_root, api_key=self.DUMMY_API_KEY, **_options(options))


def _options(options: dict[str, Any]) -> dict[str, Any]:
    return {"max_retries": 0, **options, "timeout": TIMEOUT}


def multi_gpu_only(**options: object) -> Any:
    return pytest.mark.skip(reason="needs several GPUs")


requires_fp8 = pytest.mark.skip(reason="needs FP8")
