"""Mixes of requests, for comparisons of the answers of sessions with different layouts."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from rekindle.session.session import Session

Asks = Sequence[tuple[list[int], dict[str, Any]]]

ASK = st.tuples(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.fixed_dictionaries(
        {"max_tokens": st.integers(0, 20), "ignore_eos": st.booleans(), "seed": st.integers(0, 5)},
        optional={
            "temperature": st.just(0.9),
            "logprobs": st.integers(0, 3),
            "prompt_logprobs": st.integers(0, 2),
            "presence_penalty": st.just(0.6),
            "stop_token_ids": st.lists(st.integers(0, 250), max_size=60),
            "min_tokens": st.integers(0, 9),
            "bad_words": st.just([[5], [7, 9]]),
            "logit_bias": st.just({3: 2.0}),
        },
    ),
)
"""The parts of a prompt, 11 tokens each, and the keywords of a call."""


def check(alone: Session, session: Session, asks: Asks, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Compare a session's answers to concurrent requests with those of another session to each request by itself.

    Args:
        alone: answers each request by itself.
        meanwhile: called after the submission of all requests.
    """
    handles = []
    for parts, options in asks:
        options = options | {"min_tokens": min(options.get("min_tokens", 0), options["max_tokens"])}
        prompt = [part for part in parts for _ in range(11)]
        handles.append((session.submit(token_ids=prompt, **options), prompt, options))
    meanwhile()
    for handle, prompt, options in handles:
        mine, theirs = handle.result(), alone.generate_sync(token_ids=prompt, **options)
        assert mine.token_ids == theirs.token_ids
        assert (mine.finish_reason, mine.stopped_by) == (theirs.finish_reason, theirs.stopped_by)
        assert mine.logprobs == theirs.logprobs
        assert mine.prompt_logprobs == theirs.prompt_logprobs
