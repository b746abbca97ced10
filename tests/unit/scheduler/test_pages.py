"""Every page but the null page is free or held by one owner."""

import pytest

from rekindle.core.page import NULL_PAGE
from rekindle.core.scheduler.cache.prefix_cache import PagePool


def test_every_page_but_the_null_page_is_handed_out_once() -> None:
    pool = PagePool(6)
    assert pool.free == 5
    pages = pool.allocate(2) + pool.allocate(3)
    assert sorted(pages) == [1, 2, 3, 4, 5]
    assert NULL_PAGE not in pages
    assert pool.free == 0


def test_an_allocation_is_all_or_nothing() -> None:
    pool = PagePool(4)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="3 pages requested, and 2 are free"):
        pool.allocate(3)
    assert pool.free == 2
    assert len(pool.allocate(2)) == 2


def test_none_can_be_asked_of_an_empty_pool() -> None:
    pool = PagePool(2)
    pool.allocate(1)
    assert pool.allocate(0) == []


def test_a_released_page_is_reused_after_all_that_were_free_before() -> None:
    pool = PagePool(5)
    first = pool.allocate(2)
    pool.release(first)
    assert pool.allocate(4) == [3, 4, *first]
