"""Compiled grammars are kept within a limit on the characters of their sources, those in latest use."""

import pytest

from rekindle.core.request.constraint import Constraint
from rekindle.core.text import grammar
from rekindle.core.text.constraints.recent import LEAST, Recent
from rekindle.core.text.grammar import Compiler
from rekindle.core.text.tokenizer import Tokenizer


def test_the_values_in_latest_use_are_kept_within_the_limit() -> None:
    recent: Recent[str, int] = Recent(10)
    for number, name in enumerate("abc"):
        recent.put(name, number, 4)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == (None, 1, 2)
    recent.get("b")
    recent.put("d", 3, 6)
    assert (recent.get("b"), recent.get("c"), recent.get("d")) == (1, None, 3)
    recent.put("b", 4, 1)
    recent.put("e", 5, 3)
    assert [recent.get(name) for name in "bde"] == [4, 3, 5], "a value that is put again has its latest size"


def test_a_value_beyond_the_limit_stays_alone_until_the_next() -> None:
    recent: Recent[str, int] = Recent(10)
    recent.put("a", 1, 2)
    recent.put("b", 2, 100)
    assert (recent.get("a"), recent.get("b"), len(recent)) == (None, 2, 1)
    recent.put("a", 1, 2)
    assert (recent.get("a"), recent.get("b")) == (1, None)


def test_compiled_constraints_are_kept_by_the_size_of_their_sources(
    byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "CACHE_CHARACTERS", 3 * LEAST)
    compiler = Compiler(byte_tokenizer, 256, {0})
    a, b, c = (Constraint("regex", letter, "regex") for letter in "abc")
    large = Constraint("regex", "x" * (2 * LEAST), "regex")
    first = compiler.compile(a)
    for each in (b, c):
        compiler.compile(each)
    assert compiler.compile(a) is first
    compiler.compile(large)
    assert compiler.compile(a) is first, "in latest use"
    latest = compiler.compile(b)
    assert compiler.compile(b) is latest
    assert compiler.compile(a) is first
    assert len(compiler._cache) == 2, "the large one counts for its size"
