"""Images have their text and their tokens in prompts, and no text of a user is an image."""

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rekindle.assembly.looking import Looks
from rekindle.assembly.preparing.preparer import Preparer
from rekindle.assembly.preparing.prompt_reader import PromptReader
from rekindle.client.calls.prompts import one_chat
from rekindle.core.errors import InvalidRequest, PromptTooLong
from rekindle.core.messages import (
    Continued,
    Conversation,
    Illustrated,
    KnownTokens,
    PicturedTokens,
    Prompt,
    Submit,
    Verbatim,
)
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.formats.checkpoints.huggingface.tokenizer import load_tokenizer
from rekindle.formats.images.memory import ImageMemory
from rekindle.formats.images.processors.processor import tokens_of
from rekindle.formats.images.sources import image_source
from tests.unit.images.vision_goldens import SMOLVLM, smolvlm_images, smolvlm_prompts

GOLDEN: dict[str, Any] = json.loads((SMOLVLM / "golden.json").read_text())
ARRAYS = np.load(SMOLVLM / "golden.npz")
IMAGE = 4
"""The id of the token of images."""
RULES = smolvlm_images()
SQUARE = Image.new("RGB", (8, 8), (200, 100, 0))
TOKENS = tokens_of(RULES, 8, 8)
WIDE = Image.new("RGB", (40, 8), (0, 100, 200))
"""An image in several tiles."""
FAKE = 3
"""The id of the token around tiles."""


def reader(*, images: bool = True, template: str | None = None) -> PromptReader:
    """Return the reader of prompts of the tiny SmolVLM."""
    tokenizer = load_tokenizer(SMOLVLM)
    assert tokenizer is not None
    if template is not None:
        tokenizer = tokenizer.with_chat_template(template)
    prompts = smolvlm_prompts() if images else None
    return PromptReader(tokenizer, 512, 2048, images=prompts, picture_rows=1024)


READER = reader()


def chat(*content: Any, role: str = "user", **variables: Any) -> Conversation:
    """Return a conversation of one message, of texts and images."""
    parts = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p} for p in content]
    return one_chat([{"role": role, "content": parts}], {"chat_template_kwargs": variables} if variables else {})


def with_files(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages of a golden with the paths of their images."""
    return [
        {
            **message,
            "content": [
                {**part, "image": SMOLVLM / part["image"]} if part["type"] == "image" else part
                for part in message["content"]
            ],
        }
        for message in messages
    ]


def runs_of(text: str) -> list[list[Any]]:
    """Return the runs of an image's text, as the goldens have them."""
    runs: list[list[Any]] = []
    while text:
        end = text.index(">") + 1 if text.startswith("<") else 1
        word, text = text[:end], text[end:]
        if runs and runs[-1][0] == word != "\n":
            runs[-1][1] += 1
        else:
            runs.append([word, 1])
    return runs


@pytest.mark.parametrize("index", range(len(GOLDEN["prompts"])))
def test_prompts_are_those_of_transformers(index: int) -> None:
    golden = GOLDEN["prompts"][index]
    conversation = one_chat(with_files(golden["messages"]), {})
    prompt = READER.read(conversation)
    ids, pictures = prompt.ids, prompt.pictures
    assert list(ids) == ARRAYS[f"{index}_input_ids"].reshape(-1).tolist()
    assert READER.count(conversation) == golden["prompt_tokens"] == len(ids)
    assert READER.rendered(conversation) == golden["text"]
    assert [picture.tokens for picture in pictures] == golden["image_tokens"]
    places = np.concatenate([picture.positions for picture in pictures])
    assert places.tolist() == [place for place, token in enumerate(ids) if token == IMAGE]
    sources = [part["image"] for part in golden["messages"][0]["content"] if part["type"] == "image"]
    sizes = [image_source(SMOLVLM / name).pixels().shape[:2] for name in sources]
    assert [runs_of(RULES.text(*size)) for size in sizes] == golden["image_runs"]
    expected = ARRAYS[f"{index}_pixel_values"]
    expected = expected.reshape(-1, *expected.shape[-3:])
    tiles = [RULES.normalization.apply(RULES.tiles(image_source(SMOLVLM / name).pixels())) for name in sources]
    np.testing.assert_array_equal(np.concatenate(tiles).transpose(0, 3, 1, 2), expected)
    assert [len(picture.patches().values) for picture in pictures] == list(map(len, tiles))


LITERALS = ["<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_2_col_3>"]


@given(
    parts=st.lists(
        st.one_of(st.just(SQUARE), st.lists(st.sampled_from([*LITERALS, "a", " ", "\n", "<", ">"])).map("".join)),
        min_size=1,
        max_size=5,
    )
)
def test_texts_of_image_tokens_in_words_of_users_are_words(parts: list[Any]) -> None:
    """Check any mix of images and texts: each image has its tokens, and each text is kept."""
    parts = [part for part in parts if part] or ["a"]
    conversation = chat(*parts)
    prompt = READER.read(conversation)
    ids, pictures = prompt.ids, prompt.pictures
    images = sum(part is SQUARE for part in parts)
    assert [picture.tokens for picture in pictures] == [TOKENS] * images
    assert ids.count(IMAGE) == images * TOKENS
    tokenizer = READER.tokenizer
    assert tokenizer is not None
    words = "".join(RULES.text(8, 8) if part is SQUARE else part for part in parts)
    assert words in tokenizer.decode(ids, skip_special_tokens=False)
    image_ids = {tokenizer.backend.token_to_id(text) for text in LITERALS}
    text_alone = tokenizer.encode_chat(RULES.text(8, 8))
    assert sum(token in image_ids for token in ids) == images * sum(token in image_ids for token in text_alone)


def test_literals_elsewhere_in_a_conversation_are_words() -> None:
    """Check tools, variables and texts of other roles."""
    template = "{{ tools }}{{ note }}{% for m in messages %}{% for p in m.content %}" + (
        "{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}{% endfor %}"
    )
    prepare = reader(template=template)
    tool = {"type": "function", "function": {"name": "f", "description": "<image>"}}
    messages = [{"role": "user", "content": [{"type": "image", "image": SQUARE}, {"type": "text", "text": "<image>"}]}]
    conversation = one_chat(messages, {"tools": [tool], "chat_template_kwargs": {"note": "<image>"}})
    prompt = prepare.read(conversation)
    ids, pictures = prompt.ids, prompt.pictures
    assert [picture.tokens for picture in pictures] == [TOKENS]
    assert ids.count(IMAGE) == TOKENS
    assert prepare.rendered(conversation).count("<image>") == 4


def test_a_conversation_without_images_is_tokenized_as_ever() -> None:
    plain = reader(images=False)
    conversation = chat("What is\n\nthis?")
    assert READER.read(conversation) == plain.read(conversation)
    assert READER.count(conversation) == plain.count(conversation)


@pytest.mark.parametrize("text", ["before <image> between <image> after", "a question"])
def test_raw_prompts_have_images_at_their_placeholders_or_first(text: str) -> None:
    images = ((image_source(SQUARE), "auto"), (image_source(SQUARE), "low"))
    prompt = READER.read(Illustrated(text, images))
    ids, pictures = prompt.ids, prompt.pictures
    tokenizer = READER.tokenizer
    assert tokenizer is not None
    texts = [RULES.text(8, 8), RULES.at_low_detail().text(8, 8)]
    pieces = text.split("<image>") if "<image>" in text else ["", "", text]
    whole = pieces[0] + texts[0] + pieces[1] + texts[1] + pieces[2]
    assert list(ids) == tokenizer.encode(whole)
    assert [picture.tokens for picture in pictures] == [TOKENS, RULES.tokens_of_tile]
    assert pictures[0].digest != pictures[1].digest
    assert READER.count(Illustrated(text, images)) == len(ids)
    turn = Continued(KnownTokens(ids, images), Illustrated(text, images))
    assert READER.count(turn) == len(READER.read(turn).ids), "images are counted, and not decoded"
    assert READER.count(Continued((5, 6), "more")) == 2 + len(tokenizer.encode("more", False))


@pytest.mark.parametrize(("text", "count"), [("<image>", 2), ("<image> <image>", 1)])
def test_another_number_of_placeholders_is_an_error(text: str, count: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{text.count('<image>')} times '<image>' for {count} images"):
        READER.read(Illustrated(text, ((image_source(SQUARE), "auto"),) * count))


def test_images_of_a_continuation_are_behind_those_of_the_prefix() -> None:
    first = Illustrated("<image> one", ((image_source(SQUARE), "auto"),))
    prompt = READER.read(Continued(first, Illustrated("two <image>", first.images)))
    ids, pictures = prompt.ids, prompt.pictures
    places = np.concatenate([picture.positions for picture in pictures])
    assert places.tolist() == [place for place, token in enumerate(ids) if token == IMAGE]
    assert pictures[0] == pictures[1], "one image twice"
    verbatim = READER.read(Illustrated(Verbatim("two <image>"), first.images)).ids
    assert ids[-len(verbatim) :] == verbatim


@pytest.mark.parametrize("side", ["left", "right"])
@settings(max_examples=40)
@given(
    parts=st.lists(st.sampled_from(["two words", "\n", WIDE, SQUARE]), min_size=1, max_size=5),
    most=st.integers(12, 120),
)
def test_a_cut_prompt_has_whole_images_and_their_pixels(side: Any, parts: list[Any], most: int) -> None:
    prompt = chat(*parts)
    whole = READER.read(prompt)
    params = SamplingParams(truncate_prompt_tokens=most, truncation_side=side)
    cut = READER.read(prompt, params)
    assert len(cut.ids) <= most
    assert cut == whole or len(whole.ids) > most
    count = len(cut.pictures)
    kept = whole.pictures[:count] if side == "right" else whole.pictures[len(whole.pictures) - count :]
    assert cut.pictures == kept, "those nearest to the side that stays"
    places = [place for picture in cut.pictures for place in picture.positions.tolist()]
    assert places == [place for place, token in enumerate(cut.ids) if token == IMAGE]
    assert [len(picture.positions) for picture in cut.pictures] == [len(picture.positions) for picture in kept]
    assert fakes(cut) == sum(FAKES[picture.tokens] for picture in kept), "no text of an image without the image"


def fakes(prompt: PicturedTokens) -> int:
    """Return the number of tokens around tiles."""
    return prompt.ids.count(FAKE)


FAKES = {tokens_of(RULES, *size): RULES.text(*size).count(RULES.fake) for size in ((8, 8), (8, 40))}
"""The tokens around the tiles of an image, by the number of its embeddings."""


def request_of(prompt: Prompt, **params: Any) -> Request | Exception:
    """Return the outcome of a submission."""
    preparer = Preparer(READER, frozenset({2}), None, Looks(READER.capacity, 0, 0))
    return preparer.outcome(Submit(0, prompt, SamplingParams(**params)))


def test_a_request_has_its_images() -> None:
    request = request_of(chat("What is ", SQUARE, "?"))
    assert isinstance(request, Request)
    assert [picture.tokens for picture in request.pictures] == [TOKENS]
    copy = pickle.loads(pickle.dumps(request))
    assert copy == request
    np.testing.assert_array_equal(copy.pictures[0].patches().values, request.pictures[0].patches().values)
    text = request_of(chat("What?"))
    assert isinstance(text, Request)
    assert text.pictures == ()


def test_errors_are_told_in_time() -> None:
    assert isinstance(request_of(chat(*[SQUARE] * 60, "?")), PromptTooLong)
    cut = request_of(chat(SQUARE), truncate_prompt_tokens=4, truncation_side="right")
    assert isinstance(cut, Request)
    assert cut.pictures == (), "an image without room leaves"
    nothing = request_of(Illustrated(Verbatim("<image>"), ((image_source(SQUARE), "auto"),)), truncate_prompt_tokens=4)
    assert isinstance(nothing, InvalidRequest)
    assert "room for the image" in str(nothing)
    for prompt in (chat(SQUARE, "?"), Illustrated("a", ((image_source(SQUARE), "auto"),))):
        with pytest.raises(InvalidRequest, match="takes no images"):
            reader(images=False).read(prompt)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{{ m.role }}{% endfor %}",
    ],
)
def test_a_template_without_a_place_for_an_image_is_named(template: str) -> None:
    with pytest.raises(InvalidRequest, match=r"chat template .*(place|image)"):
        reader(template=template).read(chat(SQUARE, "?"))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "user", "content": [{"type": "image"}]}], r"messages\[0\]: an image must be a PIL image"),
        ([{"role": "system", "content": [{"type": "image", "image": SQUARE}]}], r"messages\[0\]\['content'\]\[0\]"),
        ([{"role": "user", "content": [{"type": "image", "image": SQUARE, "detail": "most"}]}], "auto, low or high"),
        ([{"role": "user", "content": [{"type": "audio", "video": "x"}]}], "'type': 'image'"),
    ],
)
def test_malformed_parts_are_named(messages: list[Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        one_chat(messages, {})


def test_a_final_message_that_ends_with_an_image_is_not_continued() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "image": SQUARE}]}]
    with pytest.raises(InvalidRequest, match="ends with text"):
        one_chat(messages, {"continue_final_message": True})


def test_a_repeated_file_is_decoded_once() -> None:
    memory, first, second = (
        ImageMemory(most=2),
        *(image_source((SMOLVLM / f"image-{index}.png").read_bytes()) for index in (0, 1)),
    )
    identity = memory.identity(first, RULES)
    assert memory.identity(first, RULES) == identity
    assert memory.decoded == 1
    assert memory.identity(first, RULES.at_low_detail()).digest != identity.digest
    memory.identity(second, RULES)
    assert memory.decoded == 3
    memory.identity(first, RULES)
    assert memory.decoded == 4, "the least recently used one is forgotten"


def test_the_digest_is_of_pixels_and_not_of_a_file() -> None:
    pixels = image_source(SMOLVLM / "image-0.png").pixels()
    memory = ImageMemory()
    identity = memory.identity(image_source(SMOLVLM / "image-0.png"), RULES)
    assert memory.identity(image_source(pixels), RULES) == identity
    assert len(identity.digest) == 16
    changed = pixels.copy()
    changed[-1, -1, -1] ^= 1
    turned = pixels.reshape(pixels.shape[1], pixels.shape[0], 3)
    digests = {memory.identity(image_source(each), RULES).digest for each in (pixels, changed, turned)}
    assert len(digests) == 3, "a pixel and the size matter"
