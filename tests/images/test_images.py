"""Images in prompts, on a tiny SmolVLM: one tower run for each image, raw prompts, samples and prefixes."""

from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle import InvalidRequest, Session
from tests.engine.pictured import GOLDEN, GREEDY, messages_of

pytestmark = pytest.mark.anyio


@pytest.mark.wide
async def test_many_questions_on_one_image_run_the_tower_once() -> None:
    with rekindle.open_sync(GOLDEN, dtype="float32", page_size=16, restore="off", progress=False) as session:
        image = GOLDEN / "image-1.png"
        asked: Any = [[{"role": "user", "content": f"Is it {word}?"}] for word in "abcdefghijklmnop"]
        answers = await session.generate(asked, images=[[image]] * 16, **GREEDY)
        alone = [await session.generate(each, images=[image], **GREEDY) for each in asked[:3]]
        stats = session.stats
        assert [each.token_ids for each in alone] == [each.token_ids for each in answers[:3]]
        assert (stats.scheduler.pictures, stats.scheduler.embedded_pictures) == (19, 1)
        assert stats.unexpected_compilations == 0


@pytest.mark.wide
async def test_a_raw_prompt_has_its_images_in_their_places_or_first(session: Session) -> None:
    image = GOLDEN / "image-0.png"
    placed = await session.generate("<image> What is it?", images=[image], **GREEDY)
    first = await session.generate(" What is it?", images=[image], **GREEDY)
    assert placed.token_ids == first.token_ids
    with pytest.raises(InvalidRequest, match="has 2 times '<image>' for 1 images"):
        await session.generate("<image> and <image>", images=[image])


@pytest.mark.wide
async def test_samples_and_prefixes_have_the_image(session: Session) -> None:
    image = GOLDEN / "image-1.png"
    question: Any = [{"role": "user", "content": "What is it?"}]
    drawn: dict[str, Any] = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True, "images": [image]}
    samples = await session.generate(question, n=2, seed=3, **drawn)
    again = [await session.generate(question, seed=each.seed, **drawn) for each in samples]
    assert [each.token_ids for each in samples] == [each.token_ids for each in again]
    alone = await session.generate([*messages_of(0), {"role": "user", "content": "And why?"}], **GREEDY)
    async with session.prefix(messages_of(0)) as prefix:
        answer = await prefix.generate("And why?", **GREEDY)
    assert answer.token_ids == alone.token_ids
    assert answer.prompt_token_ids == alone.prompt_token_ids


@pytest.mark.wide
async def test_a_text_model_and_a_small_buffer_say_why(families: Path) -> None:
    image = GOLDEN / "image-0.png"
    settings: Any = {"restore": "off", "progress": False}
    text_model = rekindle.open_sync(families / "llama-tied", **settings)
    with text_model, pytest.raises(InvalidRequest, match="the model takes no images"):
        await text_model.generate([{"role": "user", "content": "a"}], images=[image])
    small = rekindle.open_sync(GOLDEN, image_bytes=4096, **settings)
    with small, pytest.raises(InvalidRequest, match="image_bytes"):
        await small.generate("a", images=[image])


PLACES = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}"
    "<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}{% endfor %}"
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
)


@pytest.mark.wide
@pytest.mark.parametrize("template", [PLACES, None])
async def test_a_picture_of_a_tool_is_seen_also_where_the_template_has_no_place_for_results(
    template: str | None,
) -> None:
    def look() -> object:
        """Look."""
        return ["a square", (GOLDEN / "image-0.png").read_bytes()]

    settings: Any = {"page_size": 16, "restore": "off", "progress": False, "chat_template": template}
    question: Any = [{"role": "user", "content": "look"}]
    with rekindle.open_sync(GOLDEN, dtype="float32", max_running=4, **settings) as session:
        run = await session.run_tools(
            question, [look], tool_choice="look", parallel_tool_calls=False, limit=2, max_tokens=80, temperature=0
        )
        assert run.answer.usage.image_tokens > 0
        assert run.results[0].content.startswith("a square\n[image, image/png, ")
        assert not isinstance(run.messages[2]["content"], str)
