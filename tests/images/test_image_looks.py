"""Looks at prompts with images, on a tiny SmolVLM: the numbers of transformers, and attention over each image."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from rekindle import InvalidRequest, Session
from tests.engine.pictured import GOLDEN, GREEDY, NUMBERS, messages_of
from tests.unit.cards import ALLOWED, DRAWN, Page

pytestmark = pytest.mark.anyio
HEADS = [(0, 0), (1, 3)]


@pytest.mark.wide
@pytest.mark.parametrize("number", [0, 1])
async def test_the_lens_of_the_last_layer_is_the_prediction_of_the_golden(session: Session, number: int) -> None:
    before = session.stats.scheduler.pictures
    look = await session.look(messages_of(number), heads=HEADS)
    assert look.token_ids == tuple(NUMBERS[f"{number}_input_ids"].reshape(-1).tolist())
    lens = await session.logit_lens(look, top=1)
    assert lens.token_ids[-1, -1, 0] == NUMBERS[f"{number}_greedy_new"][0]
    placeholder = session._engine.facts.preparer.prompts.images.placeholder  # type: ignore[union-attr]
    positions = np.flatnonzero(np.array(look.token_ids) == placeholder)
    embedded = look.embedding[positions]
    expected = NUMBERS[f"{number}_embedded"].reshape(embedded.shape)
    assert np.abs(embedded - expected).max() < 1e-5 * max(1, np.abs(expected).max())
    assert np.concatenate([image.positions for image in look.images]).tolist() == positions.tolist()
    assert lens.image_positions == set(positions.tolist())
    assert session.stats.scheduler.pictures == before, "a look is no request"


@pytest.mark.wide
async def test_pixels_reach_the_last_token_and_requests_keep_their_embeddings(session: Session) -> None:
    answer = await session.generate(messages_of(0), **GREEDY)
    upright, flipped = [await session.look(messages_of(0, is_flipped=each)) for each in (False, True)]
    assert upright.token_ids == flipped.token_ids
    assert upright.residual is not None
    assert flipped.residual is not None
    assert np.abs(upright.residual[-1, -1] - flipped.residual[-1, -1]).max() > 1e-4
    salted: Any = {**GREEDY, "cache_salt": "computed again"}
    assert (await session.generate(messages_of(0), **salted)).token_ids == answer.token_ids


@pytest.mark.wide
async def test_attention_over_an_image_has_the_layout_of_its_tiles(session: Session) -> None:
    image = Image.open(GOLDEN / "image-0.png")
    look = await session.look("<image> What is it?", images=[image], heads=HEADS)
    (looked,) = look.images
    attention = look.over_images(head=HEADS[1])
    (maps,) = attention.maps
    row = look.patterns[1, -1]
    assert attention.shares[0] == pytest.approx(float(row[looked.positions].sum()), abs=1e-6)
    assert sorted(index for grid in looked.grids for index in grid.reshape(-1)) == list(range(len(looked.positions)))
    tiles = text_places(look.tokens)
    assert maps[0].shape == (2 * (1 + max(r for r, _ in tiles)), 2 * (1 + max(c for _, c in tiles)))
    for (row_of, column_of), first in tiles.items():  # each tile has 2 x 2 tokens behind the text with its place
        tile = maps[0][2 * row_of : 2 * row_of + 2, 2 * column_of : 2 * column_of + 2]
        assert tile.reshape(-1).tolist() == row[first : first + 4].tolist()
    assert maps[1].reshape(-1).tolist() == row[looked.positions[-4:]].tolist()
    mean = look.over_images()
    assert np.allclose(mean.maps[0][0], (look.over_images(head=HEADS[0]).maps[0][0] + maps[0]) / 2)
    assert look.over_images(0).shares == (0.0,), "the first token sees no later one"


def text_places(tokens: tuple[str, ...]) -> dict[tuple[int, int], int]:
    """Return the position of the first token of each tile by its row and column, from the texts before them."""
    places = {}
    for position, text in enumerate(tokens):
        if text.startswith("<row_"):
            row, column = (int(part) - 1 for part in text[5:-1].split("_col_"))
            places[row, column] = position + 1
    return places


@pytest.mark.wide
async def test_a_cell_shows_each_image_below_its_shades(session: Session) -> None:
    images: Any = [GOLDEN / "image-0.png", GOLDEN / "image-1.png"]
    look = await session.look("<image> and <image>?", images=images, heads=HEADS)
    attention = look.over_images()
    plain, html = attention._repr_mimebundle_().values()
    assert "image 1: " in plain
    page = Page(html)
    assert page.tags <= ALLOWED | DRAWN | {"image"}
    labels = [value for name, value in page.attributes if name == "aria-label"]
    assert [label.split(",")[0] for label in labels] == ["image 0", "image 0", "image 1", "image 1"]
    assert all("most attention at row" in label for label in labels)
    assert html.count('<image href="data:image/jpeg;base64,') == 4
    assert "weights of image 1" in page.text
    assert attention.maps[0][0].shape == look.images[0].grids[0].shape
    assert all(label in look._repr_mimebundle_()["text/html"] for label in labels)
    lens = await session.logit_lens(look, top=1)
    shown = Page(lens._repr_mimebundle_()["text/html"]).text
    assert f"without {len(lens.image_positions)} tokens of images" in shown
    explained = await session.explain("<image> What is it?", images=images[:1], max_tokens=3, ignore_eos=True)
    assert [token.text for token in explained.tokens[-3:]] == [
        session._inspections.text(token) for token in explained.generation.token_ids
    ]
    assert all(token.layers for token in explained.tokens[-3:])
    greedy = await session.explain(
        "<image> What is it?", images=images[:1], max_tokens=3, temperature=0, ignore_eos=True
    )
    assert [token.likeliest[0][0] for token in greedy.tokens[-3:]] == [token.text for token in greedy.tokens[-3:]]


@pytest.mark.wide
async def test_maps_say_what_they_need(session: Session) -> None:
    images: Any = [GOLDEN / "image-0.png"]
    with pytest.raises(InvalidRequest, match="needs images and patterns"):
        (await session.look("<image> What?", images=images)).over_images()
    look = await session.look("<image> What?", images=images, heads=HEADS[:1])
    with pytest.raises(InvalidRequest, match="the look has the heads"):
        look.over_images(head=(1, 1))
    with pytest.raises(InvalidRequest, match="tokens, got token 900"):
        look.over_images(900)
    with pytest.raises(InvalidRequest, match="capture is for prompts of text"):
        await session.generate("What?", images=images, capture=[0], max_tokens=2)
