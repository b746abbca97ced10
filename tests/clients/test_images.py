"""OpenAI's, Anthropic's and Ollama's own clients send images, and are told of bad files in their own errors."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

import rekindle
from rekindle.results.generation import Generation
from rekindle.server.listening.running import Server

GOLDEN = Path(__file__).parents[1] / "goldens" / "vision" / "smolvlm"
IMAGE = GOLDEN / "image-0.png"
NAME = GOLDEN.name
FILE = base64.b64encode(IMAGE.read_bytes()).decode()
CUT = FILE[:400]
WORDS = "What is it?"
BAD = [f"data:image/png;base64,{CUT}", "https://example.com/a.png", "/etc/passwd"]


@pytest.fixture(scope="module")
def session() -> Iterator[rekindle.Session]:
    settings: Any = {"page_size": 16, "max_prefill_tokens": 64, "max_running": 4, "precompile": "lazy"}
    with rekindle.open_sync(GOLDEN, dtype="float32", progress=False, **settings) as session:
        yield session


@pytest.fixture(scope="module")
def server(session: rekindle.Session) -> Iterator[Server]:
    with session.serve_sync(port=0) as server:
        yield server


@pytest.fixture(scope="module")
def expected(session: rekindle.Session) -> Generation:
    """Return the answer of the session."""
    messages: Any = [{"role": "user", "content": WORDS}]
    answer: Generation = session.generate_sync(messages, images=[IMAGE], temperature=0, max_tokens=8)
    return answer


def test_openais_client_sends_images(server: Server, expected: Generation) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        def ask(url: str) -> Any:
            parts: Any = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": WORDS}]
            messages: Any = [{"role": "user", "content": parts}]
            return client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=8)

        chat = ask(f"data:image/png;base64,{FILE}")
        assert chat.choices[0].message.content == expected.content
        assert chat.usage.prompt_tokens == expected.usage.prompt_tokens
        assert chat.usage.prompt_tokens_details.image_tokens == expected.usage.image_tokens > 0
        items: Any = [
            {"type": "input_image", "image_url": f"data:image/png;base64,{FILE}"},
            {"type": "input_text", "text": WORDS},
        ]
        response = client.responses.create(
            model=NAME, input=[{"role": "user", "content": items}], temperature=0, max_output_tokens=8
        )
        assert response.output_text == expected.content
        details: Any = response.usage.input_tokens_details if response.usage else None
        assert details.image_tokens == expected.usage.image_tokens
        for url in BAD:
            with pytest.raises(openai.BadRequestError, match=r"image"):
                ask(url)


def test_anthropics_client_sends_images(server: Server, expected: Generation) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:

        def messages(data: str) -> Any:
            source = {"type": "base64", "media_type": "image/png", "data": data}
            return [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": WORDS}]}]

        options: Any = {"model": NAME, "max_tokens": 8}
        answer: Any = client.messages.create(messages=messages(FILE), **options)
        assert answer.content[0].text == expected.content
        with client.messages.stream(messages=messages(FILE), **options) as stream:
            assert stream.get_final_text() == expected.content
        count = client.messages.count_tokens(model=NAME, messages=messages(FILE))
        assert count.input_tokens == expected.usage.prompt_tokens
        with pytest.raises(anthropic.BadRequestError, match="damaged"):
            client.messages.create(messages=messages(CUT), **options)


def test_ollamas_client_sends_images(server: Server, expected: Generation) -> None:
    client = ollama.Client(host=server.url)
    options = {"num_predict": 8, "temperature": 0}
    message = {"role": "user", "content": WORDS, "images": [str(IMAGE)]}
    chat = client.chat(model=NAME, messages=[message], options=options)
    assert chat.message.content == expected.content
    assert chat.prompt_eval_count == expected.usage.prompt_tokens
    whole = client.generate(model=NAME, prompt=WORDS, images=[IMAGE.read_bytes()], options=options)
    assert whole.response == expected.content
    with pytest.raises(ollama.ResponseError, match="damaged") as caught:
        client.chat(model=NAME, messages=[{**message, "images": [CUT]}], options=options)
    assert caught.value.status_code == 400
