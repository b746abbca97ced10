"""Texts and images with attention to later tokens are whole in a chunk; pages of such texts enter no cache."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.assembly.limits.resolution import resolve_limits
from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.errors import ConfigError
from rekindle.core.messages import Plan
from rekindle.core.models.config import ModelConfig
from rekindle.settings.engine import Settings
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


def test_the_state_of_the_first_token_is_one_sum() -> None:
    engine = ByHand(model=looking_ahead(both_ways=True), page_size=16, max_context=96, max_prefill_tokens=96)
    (plan,) = engine.admit(0, [7] * 40, 0, pooling="cls")
    (chunk,) = plan.chunks
    assert chunk.summing is not None
    assert (chunk.summing.first, chunk.summing.count) == (0, 1)


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


def test_a_chunk_has_room_for_the_largest_image_or_the_settings_are_refused() -> None:
    def chunk(tokens: int, settings: Settings) -> int:
        limits = resolve_limits(settings, looking_ahead(), 4, picture_rows=4096, picture_tokens=tokens)
        assert limits.whole_images
        return limits.prefill_chunk

    assert chunk(280, Settings()) == 512
    assert chunk(1120, Settings()) == 1136
    assert chunk(70, Settings(max_prefill_tokens=96)) == 96
    with pytest.raises(ConfigError, match=r"max_prefill_tokens must be at least 96 .* got 64: the 70 tokens"):
        chunk(70, Settings(max_prefill_tokens=64))
    with pytest.raises(ConfigError, match="prefill_chunk must be at least 96 for this model, got 32"):
        chunk(70, Settings(prefill_chunk=32))


def test_a_text_may_have_2048_tokens_unless_the_settings_say_otherwise() -> None:
    model = replace(looking_ahead(both_ways=True), max_context=32_768)
    for choice, most in (
        (Settings(), 2048),
        (Settings(max_context=4096), 4096),
        (Settings(max_prefill_tokens=64), 64),
    ):
        limits = resolve_limits(choice, model, 4)
        assert limits.max_prefill_tokens == limits.max_context == limits.prefill_chunk == most


def test_a_tick_has_room_for_many_texts_of_an_encoder_unless_the_settings_say_otherwise() -> None:
    model = replace(looking_ahead(both_ways=True), max_context=512)
    encoder = replace(model, predicts=False)
    for own, choice, most in (
        (model, Settings(), 512),
        (encoder, Settings(), 2048),
        (encoder, Settings(max_prefill_tokens=1024), 1024),
        (encoder, Settings(prefill_buckets=(512,)), 512),
    ):
        limits = resolve_limits(choice, own, 4)
        assert (limits.max_prefill_tokens, limits.max_context) == (most, 512)
