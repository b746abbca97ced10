"""Images by every way in: chats and their later turns, branches, the terminal, and bodies of all APIs."""

import base64
import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from PIL import Image

from rekindle import Generation, InvalidRequest, Session
from rekindle.cli.chat import commands
from rekindle.cli.chat.screen import Screen
from rekindle.cli.chat.talk import Talk
from rekindle.formats.images.sources import image_source
from rekindle.server import app
from tests.unit.asgi import ask
from tests.unit.cards import Page

pytestmark = pytest.mark.anyio
GOLDEN = Path(__file__).parents[1] / "goldens" / "vision" / "smolvlm"
IMAGES = [GOLDEN / f"image-{index}.png" for index in range(3)]
FILE = base64.b64encode(IMAGES[0].read_bytes()).decode()
URL = f"data:image/png;base64,{FILE}"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
SPACED: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "regex": " [a-z]{12}[.]"}
"""Answers that begin with a space, as those of SmolVLM."""
BODY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def question(*parts: Any) -> list[Any]:
    """Return a conversation of one message, of texts and paths of images."""
    contents = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts
    ]
    return [{"role": "user", "content": contents}]


def repr_of(generation: Generation) -> str:
    """Return the plain text of a generation in a cell."""
    return generation._repr_mimebundle_()["text/plain"]


@pytest.mark.wide
@pytest.mark.parametrize("key", ["path", "url"])
async def test_parts_for_transformers_name_the_image_by_path_and_url(session: Session, key: str) -> None:
    expected = await session.generate(question(IMAGES[0], "What is it?"), **GREEDY)
    for image in (str(IMAGES[0]), URL):
        messages = question(IMAGES[0], "What is it?")
        messages[0]["content"][0] = {"type": "image", key: image}
        assert (await session.generate(messages, **GREEDY)).token_ids == expected.token_ids
        assert session.count_tokens(messages) == expected.usage.prompt_tokens
    messages[0]["content"][0] = {"type": "image", key: "https://e.example/a.png"}
    with pytest.raises(InvalidRequest, match="nothing is fetched"):
        await session.generate(messages, **GREEDY)


@pytest.mark.wide
async def test_later_turns_of_a_chat_see_its_images(session: Session) -> None:
    chat = session.chat(**GREEDY)
    first = await chat.say("What is it?", images=[IMAGES[0]])
    assert first.token_ids == (await session.generate(question(IMAGES[0], "What is it?"), **GREEDY)).token_ids
    second = await chat.say("And why?")
    messages: Any = [*question(IMAGES[0], "What is it?"), first.message, {"role": "user", "content": "And why?"}]
    alone = await session.generate(messages, **GREEDY)
    assert (second.token_ids, second.prompt_token_ids) == (alone.token_ids, alone.prompt_token_ids)
    other = session.chat(**GREEDY)
    await other.say("What is it?", images=[IMAGES[1]])
    third = await other.say("And why?")
    assert third.prompt_token_ids != second.prompt_token_ids, "its image has another size"
    streamed = [piece.text async for piece in chat.fork().stream("Again?", images=[IMAGES[2]])]
    assert "".join(streamed)


@pytest.mark.parametrize("images", [(IMAGES[0], None, IMAGES[1], None), (None, IMAGES[0], None)])
async def test_a_turn_is_computed_from_its_new_tokens_on(session: Session, images: tuple[Path | None, ...]) -> None:
    # The template writes a space before answers, and the answers begin with one, as those of SmolVLM.
    chat = session.chat(**SPACED)
    known: tuple[int, ...] = ()
    for number, image in enumerate(images):
        before = session.stats.scheduler.embedded_pictures
        answer = await chat.say(f"Question {number}?", images=None if image is None else [image])
        assert answer.prompt_token_ids[: len(known)] == known
        assert answer.cached_tokens >= (len(known) - 1) // 16 * 16
        assert session.stats.scheduler.embedded_pictures - before <= (image is not None)
        assert answer.text.startswith(" ")
        assert chat.messages[-1]["content"] == answer.text.strip()
        text = session.decode(answer.prompt_token_ids).replace("<image>", "")
        shown = re.sub("(<fake_token[^>]*>|<row[^>]*>|<global[^>]*>|\n)+", "", text)
        rendered = session.render(chat.messages[:-1]).replace("<image>", "").replace("\n", "")
        assert shown == rendered
        alone = await session.generate(chat.messages[:-1], cache_salt="alone", **SPACED)
        assert alone.usage.image_tokens == answer.usage.image_tokens
        known = answer.prompt_token_ids + answer.token_ids


async def test_edited_turns_keep_the_tokens_of_their_own_images(session: Session) -> None:
    chat = session.chat(**SPACED)
    first = await chat.say("What is it?", images=[IMAGES[0]])
    await chat.say("And why?")
    chat.undo()
    chat.undo()
    other = await chat.say("What is it?", images=[IMAGES[1]])
    again = await session.chat(**SPACED).say("What is it?", images=[IMAGES[1]])
    assert other.prompt_token_ids == again.prompt_token_ids
    assert other.prompt_token_ids != first.prompt_token_ids


async def test_a_chat_shows_thumbnails_and_sizes(session: Session) -> None:
    chat = session.chat(**GREEDY)
    await chat.say("What is it?", images=[IMAGES[0]])
    plain, html = chat._repr_mimebundle_().values()
    assert "[image of " in plain
    assert html.count('<img src="data:image/jpeg;base64,') == 1


async def test_images_come_with_a_message(session: Session) -> None:
    chat = session.chat(**GREEDY)
    with pytest.raises(InvalidRequest, match="images come with a message"):
        await chat.say(images=[IMAGES[0]])
    with pytest.raises(InvalidRequest, match="cannot be read"):
        await chat.say("What?", images=["no such.png"])
    assert len(chat) == 0


async def test_a_branch_has_the_images_of_its_generation(session: Session) -> None:
    answer = await session.generate(question(IMAGES[0], "What is it?"), **GREEDY)
    branch = await answer.branch(2, answer.token_ids[2])
    assert branch.token_ids == answer.token_ids
    with pytest.raises(InvalidRequest, match="token of an image, and no image"):
        await session.generate(token_ids=answer.prompt_token_ids, **GREEDY)
    with pytest.raises(InvalidRequest, match="token of an image, and no image"):
        await session.generate("What is <image>?", **GREEDY)


@pytest.mark.parametrize(
    ("path", "body", "answer_of"),
    [
        (
            "/v1/chat/completions",
            {
                "max_tokens": 8,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": URL}},
                            {"type": "text", "text": "What is it?"},
                        ],
                    }
                ],
            },
            lambda reply: (
                reply["choices"][0]["message"]["content"],
                reply["usage"]["prompt_tokens"],
                reply["usage"]["prompt_tokens_details"]["image_tokens"],
            ),
        ),
        (
            "/v1/responses",
            {
                "max_output_tokens": 8,
                "input": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "input_image", "image_url": URL},
                            {"type": "input_text", "text": "What is it?"},
                        ],
                    }
                ],
            },
            lambda reply: (
                reply["output"][0]["content"][0]["text"],
                reply["usage"]["input_tokens"],
                reply["usage"]["input_tokens_details"]["image_tokens"],
            ),
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 8,
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": FILE}},
                            {"type": "text", "text": "What is it?"},
                        ],
                    }
                ],
            },
            lambda reply: (
                reply["content"][0]["text"],
                reply["usage"]["input_tokens"] + reply["usage"]["cache_read_input_tokens"],
            ),
        ),
    ],
)
async def test_bodies_have_the_answer_of_the_session(
    session: Session, path: str, body: dict[str, Any], answer_of: Any
) -> None:
    expected = await session.generate(question(IMAGES[0], "What is it?"), **GREEDY)
    reply = await ask(app(session), path, {**BODY, **body})
    answer = answer_of(reply.json)
    counts = (expected.usage.prompt_tokens, expected.usage.image_tokens)
    assert answer == (expected.text, *counts)[: len(answer)], "Anthropic's usage has no place for images"
    damaged = json.loads(json.dumps({**BODY, **body}).replace(FILE, FILE[:400]))
    reply = await ask(app(session), path, damaged)
    assert (reply.status, "damaged" in reply.body.decode()) == (400, True)


async def test_bodies_of_ollama_have_images(session: Session) -> None:
    options = {"temperature": 0, "num_predict": 8}
    message = {"role": "user", "content": "What is it?", "images": [FILE]}
    expected = await session.generate(question(IMAGES[0], "What is it?"), temperature=0, max_tokens=8)
    chat = await ask(app(session), "/api/chat", {"messages": [message], "options": options, "stream": False})
    assert chat.json["message"]["content"] == expected.content
    assert chat.json["prompt_eval_count"] == expected.usage.prompt_tokens
    body = {"prompt": "What is it?", "images": [FILE], "options": options, "stream": False}
    assert (await ask(app(session), "/api/generate", body)).json["response"] == expected.content


async def test_tokens_of_images_are_counted(session: Session) -> None:
    expected = await session.generate(question(IMAGES[0], "What is it?"), **GREEDY)
    assert session.count_tokens(question(IMAGES[0], "What is it?")) == expected.usage.prompt_tokens
    assert session.tokenizer
    token = session.tokenizer.encode_chat("<image>")[0]
    assert expected.usage.image_tokens == expected.prompt_token_ids.count(token) > 0
    assert f"(1 image: {expected.usage.image_tokens}" in repr_of(expected)
    alone = await session.generate("What is it?", **GREEDY)
    assert alone.usage.image_tokens == 0
    assert "image" not in repr_of(alone)
    chat = {**BODY, "messages": question("What is it?"), "max_tokens": 8}
    reply = await ask(app(session), "/v1/chat/completions", chat)
    assert reply.json["usage"]["prompt_tokens_details"].keys() == {"cached_tokens"}


async def test_cards_and_tables_show_thumbnails(session: Session) -> None:
    answer = await session.generate("What is it?", images=IMAGES[:2], **GREEDY)
    page = Page(answer.card("Generation"))
    urls = [value for name, value in page.attributes if name == "src"]
    assert [sizes_of(url) for url in urls] == [smaller(path, 256) for path in IMAGES[:2]]
    words = [
        f"image of {width} x {height} pixels" for height, width in (image_source(path).size for path in IMAGES[:2])
    ]
    assert [value for name, value in page.attributes if name == "alt"] == words
    assert "2 images: " in repr_of(answer)
    scored = await session.generate("What is it?", images=IMAGES[:1], prompt_logprobs=0, **GREEDY)
    assert "image tokens]" in Page(scored.card("Generation")).text
    again = pickle.loads(pickle.dumps(answer))
    assert "<img" not in again.card("Generation")
    assert f"images: {answer.usage.image_tokens}" in repr_of(again)
    images: Any = [[IMAGES[0]], [IMAGES[1]], None]
    answers: Any = await session.generate(["Say", "Say", "No"], images=images, n=2, max_tokens=2, ignore_eos=True)
    plain, html = answers._repr_mimebundle_().values()
    assert html.count("<img ") == 2, "samples of one prompt show its images once"
    assert plain.count("Say (1 image)") == 2
    assert all(max(sizes_of(url)) <= 96 for url in re.findall(r'src="([^"]*)"', html))


async def test_the_cache_counts_tokens_of_images(session: Session) -> None:
    salted: Any = {**GREEDY, "cache_salt": "of this test"}
    messages: Any = question("See", IMAGES[0], "there, and think about it")
    answer = await session.generate(messages, **salted)
    await session.generate([messages] * 24, **salted)  # the view has the paths with the most hits
    (path,) = (each for each in session.cache.hottest if "there, and think" in each.text)
    assert f"See[{answer.usage.image_tokens} image tokens]there, and think" in path.text
    assert "image tokens]" in session.cache.draw().text
    assert "<image>" not in repr(session.cache)


def smaller(path: Path, longest: int) -> tuple[int, int]:
    """Return the size of a thumbnail of a file."""
    with Image.open(path) as image:
        image.thumbnail((longest, longest))
        width, height = image.size
    return width, height


def sizes_of(url: str) -> tuple[int, int]:
    """Return (width, height) of the JPEG in a data: URL."""
    kind, data = url.split(",")
    assert kind == "data:image/jpeg;base64"
    width, height = Image.open(io.BytesIO(base64.b64decode(data))).size
    return width, height


class Scripted:
    """Lines of a chat in the terminal, which nobody types."""

    interactive = False

    def read(self, text: str = "") -> str:
        """Return no line."""
        raise EOFError

    def ask(self, question: str) -> str:
        """Return no answer."""
        return ""


async def test_the_terminal_sends_an_image_with_the_next_message(session: Session, tmp_path: Path) -> None:
    talk = Talk(session, Scripted(), Screen(quiet=True), {"temperature": 0, "max_tokens": 8, "ignore_eos": True})

    def converse() -> None:
        commands.run(talk, f"/image {IMAGES[0]}")
        talk.say("What is it?")
        talk.say("And why?")
        commands.run(talk, f"/save {tmp_path / 'chat.json'}")
        before = talk.chat.messages
        commands.run(talk, f"/load {tmp_path / 'chat.json'}")
        assert [message["role"] for message in talk.chat.messages] == [message["role"] for message in before]
        with pytest.raises(InvalidRequest, match="cannot be read"):
            commands.run(talk, "/image no-such.png")
        with pytest.raises(InvalidRequest, match="nothing is fetched: got 'https://example"):
            commands.run(talk, "/image https://example.com/cat.png")

    await to_thread.run_sync(converse)
    answer = await session.generate(question(IMAGES[0], "What is it?"), **GREEDY)
    assert talk.chat.messages[1]["content"] == answer.content
    kept = talk.chat.messages[0]["content"][0]["image"]
    assert image_source(kept).pixels().tolist() == image_source(IMAGES[0]).pixels().tolist()


async def test_a_map_has_a_column_of_images(session: Session, tmp_path: Path) -> None:
    template: Any = question("{photo}", "Is it {word}?")
    template[0]["content"][0] = {"type": "image", "image": "{photo}"}
    rows: Any = [{"photo": Image.open(IMAGES[0]), "word": "a"}, {"photo": str(IMAGES[1]), "word": "b"}]
    path = tmp_path / "answers.jsonl"
    answers: Any = await session.map(rows, template=template, path=path, **GREEDY)
    alone = [
        await session.generate(question(image, f"Is it {word}?"), **GREEDY)
        for image, word in zip(IMAGES[:2], "ab", strict=True)
    ]
    assert [each.token_ids for each in answers] == [each.token_ids for each in alone]
    before = session.stats.scheduler.pictures
    again: Any = await session.map(rows, template=template, path=path, **GREEDY)
    assert [each.token_ids for each in again] == [each.token_ids for each in alone]
    assert session.stats.scheduler.pictures == before, "the file has all answers"
    names: Any = [{"name": image.name, "word": "a"} for image in IMAGES[:1]]
    template[0]["content"][0] = {"type": "image", "image": f"{GOLDEN}/{{name}}"}
    by_name: Any = await session.map(names, template=template, **GREEDY)
    assert by_name[0].token_ids == alone[0].token_ids
