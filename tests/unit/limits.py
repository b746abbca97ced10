"""What the limits of random stories have in common."""

from typing import Any

from hypothesis import strategies as st

PAGE = 16
WAYS: dict[str, st.SearchStrategy[Any]] = {
    "ticks": st.sampled_from(["prefill-first", "combined"]),
    "overlap": st.booleans(),
    "page_size": st.just(PAGE),
}
"""Every way to run ticks, on pages so small that a short request needs several."""
