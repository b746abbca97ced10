"""A device without memory for a step fails the requests that need it; the others get the same tokens."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

import rekindle
from rekindle.core.buckets import Bucket
from rekindle.core.errors import OutOfMemory
from rekindle.server.common.errors import api_error_of
from tests.engine.small import SMALL

PROMPTS = [[5, 6, 7], list(range(3, 100))]
XLAS = "RESOURCE_EXHAUSTED: Out of memory allocating 2147483648 bytes.\nBFC allocator"
OURS = (
    r"out of memory: the device has no room for a step of this request \(RESOURCE_EXHAUSTED: Out of memory allocating "
    r"2147483648 bytes\.\)\. The session goes on\. Open it with a lower max_prefill_tokens \(now 64\), max_running "
)


class Poisoned:
    """An output that is read in vain, as of a step that fails after its call returned."""

    def copy_to_host_async(self) -> None:
        pass

    def __array__(self, *_: object, **__: object) -> Any:
        raise jax.errors.JaxRuntimeError(XLAS)


def raise_at_once(compute: Callable[[], Any]) -> Any:
    raise jax.errors.JaxRuntimeError(XLAS)


def consume_arguments(compute: Callable[[], Any]) -> Any:
    compute()
    raise jax.errors.JaxRuntimeError(XLAS)


def poison_outputs(compute: Callable[[], Any]) -> Any:
    pages, slots, outputs = compute()
    return pages, slots, replace(outputs, tokens=Poisoned())


@pytest.fixture(scope="module")
def session(families: Path) -> Any:
    with rekindle.open_sync(families / "qwen3", **SMALL, progress=False) as session:
        yield session


@pytest.mark.parametrize("fail", [raise_at_once, consume_arguments, poison_outputs])
@pytest.mark.parametrize("is_prompt", [True, False])
def test_a_request_fails_with_what_to_lower_and_the_session_lives(
    fail: Callable[[Callable[[], Any]], Any], is_prompt: bool, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers(session)
    executables = session._engine.facts.lanes[0].executables
    call, call_now, losses = executables.call, executables._call, session._engine.facts.stats().lanes[0].device_losses
    is_next = list[bool]()

    async def mark(key: Any, program: Any, *arguments: Any) -> Any:
        if isinstance(key, Bucket) and bool(key.prefill_tokens) == is_prompt and is_armed:
            is_next.append(True)
            is_armed.clear()
        return await call(key, program, *arguments)

    def call_or_fail(program: Any, *arguments: Any) -> Any:
        compute = partial(call_now, program, *arguments)
        return fail(compute) if is_next and is_next.pop() else compute()

    monkeypatch.setattr(executables, "call", mark)
    monkeypatch.setattr(executables, "_call", call_or_fail)
    is_armed = set[str]() if is_prompt else {"rows"}
    first = session.submit(
        token_ids=PROMPTS[0], max_tokens=40, temperature=0, ignore_eos=True, cache_salt=fail.__name__
    )
    if is_prompt:
        stream = iter(first)
        next(stream)
        is_armed.add("prompt")
        with pytest.raises(OutOfMemory, match=OURS):
            session.generate_sync(token_ids=PROMPTS[1], max_tokens=4, cache_salt=fail.__name__)
        assert [*stream]
        assert first.result().token_ids == expected[0]
    else:
        with pytest.raises(OutOfMemory, match=OURS):
            first.result()
    assert not is_armed
    assert session._engine.facts.stats().lanes[0].device_losses == losses + 1
    assert answers(session) == expected
    assert session.error is None


def answers(session: Any) -> list[Any]:
    generations = session.generate_sync(token_ids=PROMPTS, max_tokens=40, temperature=0, ignore_eos=True)
    return [each.token_ids for each in generations]


def test_a_client_is_told_to_come_back_and_no_sizes() -> None:
    answer = api_error_of(OutOfMemory("out of memory: 2147483648 bytes"), {})
    assert answer.status == 503
    assert "had no memory for this request; retry later" in answer.message
    assert "2147483648" not in answer.message
