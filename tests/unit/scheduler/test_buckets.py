"""A tick runs in the smallest bucket that holds it, and every bucket is listed in advance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.core.buckets import (
    QUERY_BLOCK,
    Bucket,
    all_buckets,
    default_decode_buckets,
    default_prefill_buckets,
    smallest,
)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(16, (16,)), (64, (16, 64)), (80, (16, 64, 80)), (4000, (16, 64, 128, 256, 512, 1024, 2048, 4000))],
)  # fmt: skip
def test_default_prefill_buckets_are_one_block_and_then_double_up_to_the_limit(
    limit: int, expected: tuple[int, ...]
) -> None:
    assert default_prefill_buckets(limit) == expected


@pytest.mark.parametrize(("limit", "expected"), [(1, (1,)), (2, (1, 2)), (4, (1, 4)), (32, (1, 4, 16, 32))])
def test_default_decode_buckets_grow_fourfold_up_to_the_limit(limit: int, expected: tuple[int, ...]) -> None:
    assert default_decode_buckets(limit) == expected


@given(limit=st.integers(1, 300).map(lambda blocks: blocks * QUERY_BLOCK), data=st.data())
def test_the_smallest_bucket_holds_what_is_needed_and_the_next_smaller_does_not(
    limit: int, data: st.DataObject
) -> None:
    sizes = default_prefill_buckets(limit)
    tokens = data.draw(st.integers(1, limit))
    bucket = smallest(sizes, tokens)
    assert bucket in sizes
    assert bucket >= tokens
    assert all(size < tokens for size in sizes if size < bucket)
    assert all(size % QUERY_BLOCK == 0 for size in sizes)


def test_nothing_needs_no_bucket() -> None:
    assert smallest((1, 4), 0) == 0


def test_more_than_the_largest_bucket_is_an_error() -> None:
    with pytest.raises(ValueError, match="5 does not fit the largest bucket, 4"):
        smallest((1, 4), 5)


def test_blocks_are_counted_in_query_blocks() -> None:
    assert Bucket(48, 3).blocks == 3
    assert Bucket(0, 3).blocks == 0


def test_both_parts_share_a_bucket_only_where_ticks_are_combined() -> None:
    alone = {Bucket(0, 1), Bucket(0, 4), Bucket(16, 0), Bucket(32, 0)}
    both = {Bucket(16, 1), Bucket(16, 4), Bucket(32, 1), Bucket(32, 4)}
    assert set(all_buckets((16, 32), (1, 4), combined=False)) == alone
    combined = all_buckets((16, 32), (1, 4), combined=True)
    assert set(combined) == alone | both
    assert len(combined) == len(set(combined))
