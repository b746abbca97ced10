"""Images in bodies of all APIs: files alone, within bounds, each in its place in the conversation."""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rekindle.formats.images.sources import ImageFile
from rekindle.formats.response import MessageForm
from rekindle.server import app
from rekindle.server.anthropic.body import read_messages
from rekindle.server.common.errors import ApiError
from rekindle.server.common.fields import Fields
from rekindle.server.common.messages import ModelTemplate
from rekindle.server.common.pictures import MOST_IMAGES
from rekindle.server.judging.encoding_body import read_embedding, read_tokenize
from rekindle.server.ollama.body import read_ollama_chat, read_ollama_generate
from rekindle.server.openai.chat.body import read_chat
from rekindle.server.openai.responses.body import read_response
from tests.unit.asgi import ask
from tests.unit.images.vision_goldens import SMOLVLM
from tests.unit.scripted import Serve

pytestmark = pytest.mark.anyio

PNG = (SMOLVLM / "image-0.png").read_bytes()
FILE = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{FILE}"
FORM = MessageForm()
TEMPLATE = ModelTemplate(FORM, frozenset())
TEXT = {"type": "text", "text": "What?"}


def url_part(url: Any = URL, **others: Any) -> dict[str, Any]:
    """Return the part of a chat completion."""
    return {"type": "image_url", "image_url": {"url": url, **others}}


def block(data: Any = FILE, kind: str = "base64") -> dict[str, Any]:
    """Return the block of an Anthropic message."""
    return {"type": "image", "source": {"type": kind, "media_type": "image/png", "data": data}}


def chat(*parts: Any) -> Any:
    """Return the prompt of a chat completion."""
    return read_chat(Fields({"messages": [{"role": "user", "content": list(parts)}]}), FORM).call.prompt


def response(*parts: Any) -> Any:
    """Return the prompt of a response."""
    return read_response(Fields({"input": [{"role": "user", "content": list(parts)}]}), FORM, (), {}).call.prompt


def message(*parts: Any) -> Any:
    """Return the prompt of an Anthropic message."""
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": list(parts)}]}
    return read_messages(Fields(body), TEMPLATE).call.prompt


def ollama(*images: Any) -> Any:
    """Return the prompt of an Ollama chat."""
    body = {"messages": [{"role": "user", "content": "What?", "images": list(images)}]}
    call = read_ollama_chat(Fields(body), TEMPLATE).call
    assert call is not None
    return call.prompt


def generated(*images: Any) -> Any:
    """Return the prompt of Ollama's generation."""
    call = read_ollama_generate(Fields({"prompt": "What?", "images": list(images)}), TEMPLATE).call
    assert call is not None
    return call.prompt


def of_chat(data: Any) -> Any:
    """Return the prompt of a chat completion with a file."""
    return chat(url_part(f"data:image/png;base64,{data}" if isinstance(data, str) else data), TEXT)


def of_response(data: Any) -> Any:
    """Return the prompt of a response with a file."""
    url = f"data:image/png;base64,{data}" if isinstance(data, str) else data
    return response({"type": "input_image", "image_url": url}, {"type": "input_text", "text": "What?"})


def of_message(data: Any) -> Any:
    """Return the prompt of an Anthropic message with a file."""
    return message(block(data), TEXT)


APIS: Mapping[str, Callable[[Any], Any]] = {
    "chat": of_chat,
    "responses": of_response,
    "anthropic": of_message,
    "ollama": ollama,
    "ollama generate": generated,
}


@pytest.mark.parametrize("api", APIS)
def test_an_image_is_a_part_before_its_text(api: str) -> None:
    (only,) = APIS[api](FILE)
    assert only["role"] == "user"
    image, text = only["content"]
    assert (image["type"], text) == ("image", TEXT)
    assert isinstance(image["image"], ImageFile)
    assert image["image"].data == PNG


HOSTILE = {
    "no base64": "@@@@",
    "no image": base64.b64encode(b"<svg/>").decode(),
    "cut": FILE[:20],
    "too long": "A" * (28 << 20),
    "no text": 3,
    "empty": "",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("api", APIS)
def test_a_file_that_is_no_image_is_refused_with_its_place(api: str, name: str) -> None:
    with pytest.raises(ApiError) as caught:
        APIS[api](HOSTILE[name])
    assert caught.value.status == 400
    assert len(str(caught.value)) < 500


ADDRESSES = ["https://example.com/a.png", "http://127.0.0.1/", "file:///etc/passwd", "/etc/passwd", "../a.png", None]


@pytest.mark.parametrize("address", ADDRESSES)
def test_nothing_is_fetched_and_no_path_is_read(address: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda path: pytest.fail(f"{path} is read"))
    requests: list[Callable[[], Any]] = [
        lambda: chat(url_part(address)),
        lambda: chat({"type": "image_url", "image_url": address}),
        lambda: chat({"type": "image", "image": address}),
        lambda: response({"type": "input_image", "image_url": address}),
        lambda: response({"type": "input_image", "file_id": address}),
        lambda: response({"type": "image", "image": address}),
        lambda: message({"type": "image", "image": address}),
        lambda: message({"type": "image", "source": {"type": "url", "url": address}}),
        lambda: message({"type": "image", "source": {"type": "file", "file_id": address}}),
        lambda: message({"type": "image"}),
        lambda: ollama(address),
        lambda: generated(address),
    ]
    for request in requests:
        with pytest.raises(ApiError) as caught:
            request()
        assert caught.value.status == 400


def test_other_forms_of_openais_parts() -> None:
    """Check the detail, and a URL as a text."""
    low = chat(
        url_part(detail="low"), {"type": "image_url", "image_url": URL}, {"type": "input_image", "image_url": URL}
    )
    assert [part.get("detail") for part in low[0]["content"]] == ["low", None, None]
    (only,) = response({"type": "input_image", "image_url": URL, "detail": "low"})
    assert only["content"][0]["detail"] == "low"
    with pytest.raises(ApiError, match=r"messages\[0\]\.content\[0\]: .*auto, low or high"):
        chat(url_part(detail="most"))


def test_wishes_for_the_pixels_of_an_image_stay_beside() -> None:
    """Check OpenAI's parts, with wishes in the object or beside, and Anthropic's blocks."""
    parts = [url_part(max_pixels=9), {**url_part(), "max_pixels": 9}, {**url_part(max_pixels=9), "max_pixels": 8}]
    assert [part["max_pixels"] for part in chat(*parts)[0]["content"]] == [9, 9, 9]
    (only,) = response({"type": "input_image", "image_url": URL, "resized_height": 56, "resized_width": 28})
    assert (only["content"][0]["resized_height"], only["content"][0]["resized_width"]) == (56, 28)
    (only,) = message({**block(), "min_pixels": 4})
    assert only["content"][0]["min_pixels"] == 4
    with pytest.raises(ApiError, match=r"messages\[0\]\.content\[0\]: an image's max_pixels must be a positive"):
        chat(url_part(max_pixels=-1))
    video = {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{FILE},{FILE}", "fps": 1}}
    with pytest.raises(ApiError, match="a video takes no min_pixels"):
        chat({**video, "min_pixels": 9})


def test_other_parts_are_refused_in_the_words_of_the_api() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    for part in (audio, {"type": "file", "file": {}}, {"type": None}, {}):
        with pytest.raises(ApiError, match=r"messages\[0\]\.content\[0\] must be a part of the type text, image_url"):
            chat(part)
    empty = "data:image/png;base64,"
    requests: list[Callable[[], Any]] = [lambda: chat(url_part(empty)), lambda: message(block("")), lambda: ollama("")]
    for request in requests:
        with pytest.raises(ApiError, match="must be a whole file, got an empty file"):
            request()


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic", "ollama", "ollama generate"])
def test_a_request_has_at_most_sixteen_images(api: str) -> None:
    many: Mapping[str, Callable[[int], Any]] = {
        "chat": lambda count: chat(*[url_part()] * count),
        "responses": lambda count: response(*[{"type": "input_image", "image_url": URL}] * count),
        "anthropic": lambda count: message(*[block()] * count),
        "ollama": lambda count: ollama(*[FILE] * count),
        "ollama generate": lambda count: generated(*[FILE] * count),
    }
    assert sum(part["type"] == "image" for part in many[api](MOST_IMAGES)[0]["content"]) == MOST_IMAGES
    with pytest.raises(ApiError, match=f"{MOST_IMAGES} images, got {MOST_IMAGES + 1}"):
        many[api](MOST_IMAGES + 1)


def test_results_of_tools_may_have_images() -> None:
    """Check both forms: blocks of Anthropic, and the output of a call in a response."""
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "see", "input": {}}]}
    reminder = {"type": "text", "text": "<system-reminder>Be brief</system-reminder>"}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [TEXT, block()]}
    body = {"max_tokens": 1, "messages": [use, {"role": "user", "content": [result, reminder]}]}
    _, tool = read_messages(Fields(body), TEMPLATE).call.prompt
    assert (tool["role"], tool["name"]) == ("tool", "see")
    assert [part["type"] for part in tool["content"]] == ["text", "image", "text"]
    items = [
        {"type": "function_call", "call_id": "a", "name": "see", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": URL}]},
    ]
    tool = read_response(Fields({"input": items}), FORM, (), {}).call.prompt[-1]
    assert (tool["role"], tool["content"][0]["type"]) == ("tool", "image")


def test_a_raw_prompt_has_no_place_for_images() -> None:
    for body, template in (({"raw": True}, TEMPLATE), ({}, None)):
        with pytest.raises(ApiError, match="images"):
            read_ollama_generate(Fields({"prompt": "a", "images": [FILE], **body}), template)


def test_routes_of_text_alone_refuse_images() -> None:
    body = {"messages": [{"role": "user", "content": [url_part(), TEXT]}]}
    with pytest.raises(ApiError, match="cannot cut a conversation with images"):
        read_embedding(Fields({**body, "truncate_prompt_tokens": 4}), 8, FORM)
    with pytest.raises(ApiError, match="text alone"):
        read_tokenize(Fields(body), FORM)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [url_part(), TEXT]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [block(), TEXT]}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [block(), TEXT]}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "What?", "images": [FILE]}]}),
        ("/api/generate", {"prompt": "What?", "images": [FILE]}),
    ],
)
@pytest.mark.parametrize("valid", [True, False])
async def test_a_text_model_and_a_bad_file_are_told_in_the_form_of_the_api(
    serve: Serve, path: str, body: dict[str, Any], valid: bool
) -> None:
    bad = body if valid else json.loads(json.dumps(body).replace(FILE, FILE[:40]))
    reply = await ask(app(serve("no")), path, bad)
    assert reply.status == 400
    text = reply.body.decode()
    assert ("takes no images" in text) == valid
    assert ("damaged" in text) == (not valid)
    error = json.loads(text)["error"]
    assert isinstance(error, str) if path.startswith("/api") else error["type"] == "invalid_request_error"
