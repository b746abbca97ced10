"""The limits of all random stories."""

from typing import Any

from hypothesis import strategies as st

PAGE = 16
WAYS: dict[str, st.SearchStrategy[Any]] = {
    "ticks": st.sampled_from(["alternate", "prefill-first", "combined"]),
    "overlap": st.booleans(),
    "page_size": st.just(PAGE),
}
"""Strategies for every way to run ticks, with pages so small that a short request needs several."""
