"""Texts and images with attention to later tokens are whole in a chunk; pages of such texts enter no cache."""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.messages import Plan
from rekindle.core.models.config import ModelConfig
from rekindle.testing import FAKE_MODEL, ByHand, fake_picture
from tests.unit.pictures import PLACEHOLDER


def looking_ahead(*, both_ways: bool = False) -> ModelConfig:
    """Return the fake model with attention to later tokens."""
    layers = (
        replace(layer, attention=None if layer.attention is None else replace(layer.attention, ahead=None))
        for layer in FAKE_MODEL.layers
    )
    return replace(FAKE_MODEL, layers=tuple(layers), both_ways=both_ways)


def chunks(engine: ByHand, plans: list[Plan]) -> Iterator[tuple[int, int, int]]:
    """Yield the request, the start and the end of each chunk, until nothing is in flight."""
    while plans or engine.in_flight or engine.cutting:
        for chunk in (each for plan in plans for each in plan.chunks):
            yield chunk.request_id, chunk.start, chunk.start + len(chunk.tokens)
        plans = (engine.settle_cut() if engine.cutting else []) + (engine.settle() if engine.in_flight else [])


def test_a_text_waits_for_a_tick_with_room_for_all_of_it() -> None:
    engine = ByHand(model=looking_ahead(both_ways=True), page_size=16, max_context=96, max_prefill_tokens=96)
    lengths = [70, 40, 90, 16, 16]
    plans = [plan for i, length in enumerate(lengths) for plan in engine.admit(i, [i] * length, 0, pooling="mean")]
    assert sorted(chunks(engine, plans)) == [(i, 0, length) for i, length in enumerate(lengths)]


def test_a_text_is_computed_again_as_a_whole() -> None:
    engine = ByHand(model=looking_ahead(both_ways=True), page_size=16, max_context=96, max_prefill_tokens=96)
    for number in range(2):
        plans = engine.admit(number, [7] * 80, 0, pooling="last")
        assert list(chunks(engine, plans)) == [(number, 0, 80)]


@settings(max_examples=30, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    sizes=st.lists(st.sampled_from([4, 8, 24, 32]), min_size=3, max_size=3),
    requests=st.integers(1, 3),
)
def test_no_chunk_cuts_an_image(gaps: list[int], sizes: list[int], requests: int) -> None:
    engine = ByHand(
        model=looking_ahead(), picture_rows=96, page_size=16, max_context=256, max_prefill_tokens=48, prefill_chunk=48
    )
    prompt, images = [], []
    for gap, size in zip(gaps, sizes, strict=False):
        prompt += [5] * gap
        images.append(range(len(prompt), len(prompt) + size))
        prompt += [PLACEHOLDER] * size
    prompt += [6] * 3
    plans = []
    for number in range(requests):
        pictures = [fake_picture(100 * number + i, each) for i, each in enumerate(images)]
        plans += engine.admit(number, [number, *prompt[1:]], 1, pictures=pictures)
    ends = dict.fromkeys(range(requests), 0)
    for number, start, end in chunks(engine, plans):
        assert start == ends[number] // QUERY_BLOCK * QUERY_BLOCK, "a block is computed as a whole"
        assert end > ends[number]
        ends[number] = end
        assert not any(image.start < end < image.stop for image in images), "an image is cut"
    assert set(ends.values()) == {len(prompt)}
