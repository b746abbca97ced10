"""Results of a notebook's cell show the facts that a user needs."""

import asyncio
import inspect
import re
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import fields, replace
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter
from IPython.lib import pretty as untyped

import rekindle
from rekindle import CachedTokens, Generation, Stats, Timings, Usage
from rekindle.notebook import front_end
from rekindle.results.facts.stats import SchedulerStats
from rekindle.session.about import Memory
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.compilations import programs_of

pretty: Callable[[object], str] = untyped.pretty
STATS = Stats(SchedulerStats(running=2, pages=364), programs=8, loads=0, compilations=8, unexpected_compilations=0)


def generated(text: str, token_ids: tuple[int, ...]) -> Generation:
    usage, timings = Usage(2, len(token_ids)), Timings(0.1, 0.2, 0.3)
    return Generation(text, token_ids, "length", None, None, None, (), None, usage, timings, CachedTokens())


def test_what_is_in_a_list_is_shown_by_its_repr_and_printed_as_its_text() -> None:
    for generation in (generated("\nOne,\ntwo", (5, 6, 7)), generated("", (2,))):
        assert pretty([generation]) == f"[{generation!r}]"
        assert str(generation) == generation.text
    with fake_session() as session:
        assert pretty([session]) == f"[{session!r}]"
    assert str(STATS) == repr(STATS)


def test_what_is_not_awaited_says_so() -> None:
    opening = rekindle.open("some-model")
    assert repr(opening) == "<rekindle.Opening of 'some-model': await it, or enter it with 'async with'>"
    assert "'smollm2-135m-instruct'" in repr(rekindle.open()), "the default model"
    with fake_session() as session:
        stream = session.stream(token_ids=[1], max_tokens=1)
        assert repr(stream).startswith("<rekindle.Stream of <rekindle.Handle ")


def test_what_is_not_awaited_says_so_when_it_is_used() -> None:
    opening: Any = rekindle.open("some-model")
    with pytest.raises(AttributeError, match=r"no attribute 'generate': it is not open yet; session = await rekindle"):
        opening.generate("Hello")
    with pytest.raises(AttributeError, match=r"'Opening' object has no attribute 'generat'$"):
        opening.generat("Hello")
    with fake_session() as session:
        holding: Any = session.prefix(token_ids=[1])
        with pytest.raises(AttributeError, match=r"'fork': it is not computed yet; doc = await session.prefix"):
            holding.fork(2)
        with pytest.raises(AttributeError, match=r"'PendingPrefix' object has no attribute 'forks'$"):
            holding.forks(2)


def preparing(ready: int, count: int) -> list[Future[Any]]:
    """Return the futures of `count` programs; the first `ready` are done."""
    futures: list[Future[Any]] = [Future() for _ in range(count)]
    for future in futures[:ready]:
        future.set_result(None)
    return futures


@pytest.mark.parametrize(("compiled", "how"), [(True, "compiled"), (False, "loaded")])
def test_a_session_says_that_programs_are_being_made_only_as_long_as_they_are(compiled: bool, how: str) -> None:
    programs = preparing(4, 13)
    loaded_engine = fake_loaded_engine(fake_limits())
    loaded_engine = replace(loaded_engine, programs=replace(programs_of(loaded_engine), preparing=programs))
    programs_of(loaded_engine).executables[0].builder.compilations = int(compiled)
    progress = f"4 of 13 programs ready, the others are being {how}"
    with fake_session(loaded_engine) as session:
        assert progress in repr(session)
        early = session.generate_sync(token_ids=[1], max_tokens=1)
        for program in programs[4:-1]:
            program.set_result(None)
        assert "12 of 13 programs ready" in repr(session)
        programs[-1].set_exception(MemoryError())
        assert repr(session).endswith("pages free>"), "what has failed is not being made"
        assert "being" not in session._repr_mimebundle_()["text/html"]
        late = session.generate_sync(token_ids=[1], max_tokens=1)
        for show in (pretty, lambda generation: generation._repr_mimebundle_()["text/html"]):
            assert (progress in show(early)) == compiled, "it may have waited for a program that was being compiled"
            assert "being" not in show(late)
        assert "12 of 13 ready" in session._repr_mimebundle_()["text/plain"]


def test_the_cell_of_open_says_that_programs_are_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    class FakeOutput:
        def draw(self, bundle: dict[str, str]) -> None:
            texts.append(bundle["text/plain"])

    texts: list[str] = []
    monkeypatch.setattr(front_end, "kernel", object)
    monkeypatch.setattr(front_end, "CellOutput", FakeOutput)
    for compiled, ready, progress in ((True, 4, True), (True, 4, False), (False, 4, True), (True, 13, True)):
        loaded_engine = fake_loaded_engine(fake_limits())
        loaded_engine = replace(
            loaded_engine, programs=replace(programs_of(loaded_engine), preparing=preparing(ready, 13))
        )
        programs_of(loaded_engine).executables[0].builder.compilations = int(compiled)
        monkeypatch.setattr("rekindle.session.opening.build", lambda *_, engine=loaded_engine, **__: engine)
        rekindle.open_sync("a-model", progress=progress).close_sync()
    of_tokens = "a-model has no tokenizer files, such as tokenizer.json: calls take token_ids=[...], not text"
    assert texts.count(of_tokens) == 3, "where progress is shown"
    assert [text for text in texts if text != of_tokens] == [
        "4 of 13 programs ready, the others are being compiled. Until then a call may wait for its program. "
        "To wait for all of them, await session.precompiled()."
    ]


@pytest.mark.parametrize("model", ["a-model", "owner/name"])
def test_a_session_is_named_as_it_was_opened(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_session() as fake:
        monkeypatch.setattr("rekindle.session.opening.build", lambda *_, **__: fake._engine.facts)
        with rekindle.open_sync(model, progress=False) as session:
            assert repr(session).startswith(f"<rekindle.Session {model} (int on cpu:0): 0 running, 0 waiting, ")


def test_a_session_says_what_memory_it_has() -> None:
    with fake_session(num_pages=9, page_size=16, max_context=100, max_running=3, restore="off") as session:
        session.generate_sync(token_ids=[1], max_tokens=2)
        page_bytes = session.memory.pool // 9
        expected = Memory(0, 0, 9 * page_bytes, 1, page_bytes // 16, 128, 0, session.memory.host_limit, 0, 0)
        assert session.memory == expected
    assert re.search(r"^tokens +128$", repr(expected), re.MULTILINE)


def test_the_settings_of_a_session_have_what_was_chosen_and_open_the_same_again() -> None:
    with fake_session(num_pages=9, page_size=16, max_prefill_tokens=32) as session:
        settings = session.settings
    assert (settings.num_pages, settings.page_size, settings.max_context) == (9, 16, 128)
    assert settings.prefill_chunk == 32, "a chunk is no larger than a tick"
    assert settings.prefill_buckets == (16, 32)
    assert {"device", "num_pages", "decode_buckets"}.isdisjoint(
        field.name for field in fields(settings) if getattr(settings, field.name) is None
    )
    assert replace(settings) == settings, "they can be given to `open`"
    lines = dict(line.split(maxsplit=1) for line in pretty(settings).splitlines())
    assert (lines["num_pages"], lines["device"], lines["host_cache_bytes"]) == ("9", "cpu:0", "1,073,741,824")


def test_a_cell_shows_html_and_the_same_plain_text_as_before() -> None:
    with fake_session() as session:
        handle, stream = session.submit(token_ids=[1], max_tokens=2), session.stream(token_ids=[1], max_tokens=1)
        handle.result()
        assert len(list(stream)) == 1
        cache, prefix = session.cache, session.prefix_sync(token_ids=[1, 2])
    results = [
        handle,
        stream,
        prefix,
        session,
        session.settings,
        STATS,
        STATS.scheduler,
        cache,
        cache.draw(),
        session.restored,
    ]
    for result in [*results, generated("", (2,)), generated("\nOne", (5,))]:
        bundle, _ = DisplayFormatter().format(result)  # type: ignore[no-untyped-call]
        assert set(bundle) == {"text/plain", "text/html"}
        assert bundle["text/plain"] == pretty(result)


def test_what_was_forgotten_to_be_awaited_says_how() -> None:
    calls: dict[str, tuple[Any, ...]] = dict.fromkeys(("generate", "show", "enqueue"), ("Hello",))
    calls |= dict.fromkeys(("save", "precompiled", "pause", "step", "close"), ()) | {"update_weights": ({},)}
    with fake_session() as session:
        for method, arguments in calls.items():
            coroutine = getattr(session, method)(*arguments)
            assert asyncio.iscoroutine(coroutine)
            how = re.escape(f"Session.{method}, to be awaited: `await session.{method}(")
            assert re.match(rf"<coroutine object {how}(\.\.\.)?\)` at 0x", repr(coroutine))
            coroutine.close()


def test_every_coroutine_of_a_session_and_a_prefix_says_how_to_await_it() -> None:
    for kind in (rekindle.Session, rekindle.Prefix):
        plain = [name for name, method in vars(kind).items() if inspect.iscoroutinefunction(method)]
        assert set(plain) <= {"__aenter__", "__aexit__"}, "these say nothing"
