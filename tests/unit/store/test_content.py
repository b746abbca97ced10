"""Digests tell contents apart, whatever the names, and are the same in every process."""

import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from rekindle.core.content import Indigestible, content_digest, short_digest
from rekindle.core.request.activations.steering import Patch, Steering
from rekindle.formats.array_digests import _device_sums, _host_sums, arrays_digest
from tests.waiting import PATIENCE


@dataclass(slots=True)
class Pair:
    first: Any
    second: Any

    @property
    def both(self) -> list[Any]:
        return [self.first, self.second]


class Adder:
    def __init__(self, number: int):
        self.number = number

    def __call__(self, value: int) -> int:
        return value + self.number


class Slotted:
    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number


class Wrapper:
    """A wrapper as `functools.update_wrapper` makes them, with a number of its own."""

    def __init__(self, function: Callable[..., Any], number: int):
        functools.update_wrapper(self, function)
        self.number = number

    def __call__(self, value: int) -> int:
        return int(self.__wrapped__(value)) + self.number  # type: ignore[attr-defined]


@dataclass
class Scaler:
    factor: int

    def __call__(self, value: int) -> int:
        return value * self.factor


@dataclass
class Divider:
    factor: int

    def __call__(self, value: int) -> int:
        return value // self.factor


Divider.__qualname__ = "Scaler"


def attributed(number: int) -> Callable[[int], int]:
    def function(value: int) -> int:
        return value + int(function.number)  # type: ignore[attr-defined]

    function.number = number  # type: ignore[attr-defined]
    return function


CONTENTS: list[Any] = [
    *(None, 0, 1, 1.0, True, "1", b"1", 1j, range(1), slice(1)),
    *((), (1,), (1, 2), (2, 1), ((1,), 2), (1, (2,)), {1}, {1, 2}, {"a": 1}, {"a": 2}, {"b": 1}),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, np.float32, np.dtype("int8"), len, functools, Pair, Adder),
    *(np.zeros(3), np.zeros((3, 1)), np.zeros(3, np.float32), np.zeros(3, np.int32), np.array([0.0, 0, 1e-9])),
    *(Pair(1, 2), Pair(2, 1), Adder(1), Adder(2), Slotted(1), Slotted(2), functools.partial(Adder(1), 2)),
    *(Wrapper(len, 1), Wrapper(len, 2), Wrapper(repr, 1), attributed(1), attributed(2), Scaler(1), Divider(1)),
    *(jax.jit(lambda x: x), jax.jit(lambda x: x + 1), Adder(1).__call__, ml_dtypes.bfloat16),
]


def test_other_contents_have_other_digests() -> None:
    assert len({content_digest(each) for each in CONTENTS}) == len(CONTENTS)


def test_equal_contents_have_equal_digests() -> None:
    equal: list[tuple[Any, Any]] = [
        ([1, [2]], (1, (2,))),
        ({2, 1}, frozenset((1, 2))),
        (jnp.arange(3.0), np.arange(3, dtype=np.float32)),
        (np.arange(6).reshape(2, 3).T, np.ascontiguousarray(np.arange(6).reshape(2, 3).T)),
        (Pair([1], np.ones(2)), Pair((1,), np.ones(2))),
        (lambda a: a + 1, lambda a: a + 1),
    ]
    for one, other in equal:
        assert content_digest(one) == content_digest(other)


def of_source(source: str, **content: Any) -> Callable[..., Any]:
    """Return the function `f` of a source, as a cell defines it."""
    content["__name__"] = "__main__"
    exec(source, content)
    function: Callable[..., Any] = content["f"]
    return function


def helper_of(number: int) -> ModuleType:
    module = ModuleType("helper")
    module.K = number  # type: ignore[attr-defined]
    return module


PLAIN = "def f(x): return x * K"
NESTED = "def f(xs):\n def g(x):\n  return [h(x) for _ in xs]\n return g(1)\ndef h(x): return x * K"
CLOSED = "def made(k):\n def f(x): return x * k\n return f\nf = made(K)"


@pytest.mark.parametrize(
    "function",
    [
        lambda number: of_source(PLAIN, K=number),
        lambda number: of_source(NESTED, K=number),
        lambda number: of_source(CLOSED, K=number),
        lambda number: of_source("def f(x, k=K): return x * k", K=number),
        lambda number: of_source("def f(x, *, k=K): return x * k", K=number),
        lambda number: of_source(f"def f(x): return x * {number}"),
        lambda number: of_source(f"def f(x): return [x * {number} for _ in range(3)]"),
        lambda number: of_source("def f(x): return x * helper.K", helper=helper_of(number)),
        lambda number: of_source("def f(x): return h(x)", h=functools.partial(pow, number)),
        lambda number: of_source("def f(x): return x @ K", K=np.full(5000, number)),
        lambda number: of_source("import jax\n@jax.jit\ndef f(x): return x * K", K=number),
        lambda number: of_source("class A:\n k = K\n def f(self): return self.k\nf = A().f", K=number),
        lambda number: of_source("def f(x): return g(x)\ndef g(x): return x * K if x else f(x)", K=number),
    ],
)
def test_functions_count_with_all_that_they_read(function: Callable[[int], Any]) -> None:
    assert content_digest(function(1)) == content_digest(function(1))
    assert content_digest(function(1)) != content_digest(function(2))


def test_content_that_cannot_be_read_is_told() -> None:
    with open(__file__) as file:
        unreadable: list[Any] = [file, iter(()), object(), [file], Pair(1, file), lambda: file]
        for each in unreadable:
            with pytest.raises(Indigestible):
                content_digest(each)
        assert short_digest(file) == "?"
    nested: Any = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(Indigestible, match="too deeply"):
        content_digest(nested)


def test_a_value_within_itself_has_a_digest() -> None:
    values: list[Any] = [1]
    values.append(values)
    assert content_digest(values) != content_digest([1])


@pytest.mark.wide
def test_digests_are_the_same_in_every_process() -> None:
    """Sets and names are in another order in each process, and addresses are others."""
    code = (
        "from rekindle.core.content import content_digest\nimport numpy as np\nK, z = {'a', 'b', 'c'}, np.arange(3)\n"
        "def f(x, y=1): return g(x) if x in K else y\ndef g(x): return [z, len(K), np.sin(x)]\n"
        "print(content_digest([f, {'k': K}, z, 1.5, None]))"
    )
    digests = set[bytes]()
    for seed in ("1", "2"):
        child = [sys.executable, "-c", code]
        done = subprocess.run(child, env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, timeout=PATIENCE)
        digests.add(done.stdout)
    assert len(digests) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "uint32", "bool", "float64"])
def test_each_number_counts_on_the_host_and_on_a_device(dtype: str) -> None:
    normal: Any = np.random.default_rng(1).normal(size=(70, 9))
    normal = abs(normal) if dtype == "uint32" else normal
    array = normal > 0 if dtype == "bool" else (normal * 9).astype(jnp.dtype(dtype))
    sums = _host_sums(array)
    if dtype != "float64":
        assert [int(each) for each in _device_sums(jnp.asarray(array))] == sums
    digests = {arrays_digest({"a": array, "b": array[0]})}
    for place in ((0, 0), (69, 8), (33, 3)):
        changed = array.copy()
        changed[place] = not changed[place] if dtype == "bool" else changed[place] + 1
        digests.add(arrays_digest({"a": changed, "b": array[0]}))
    digests.add(arrays_digest({"a": array[::-1], "b": array[0]}))
    digests.add(arrays_digest({"b": array, "a": array[0]}))
    assert len(digests) == 6
    assert arrays_digest({"b": array[0], "a": array}) in digests


def test_reprs_of_changes_tell_vectors_apart() -> None:
    vector, other = np.zeros(4), np.array([0, 0, 0, 1e-6])
    assert repr(Steering(1, vector)) == repr(Steering(1, [0.0] * 4)) == repr(Steering(1, jnp.zeros(4)))
    assert repr(Steering(1, vector)).startswith("Steering(layer=1, vector=<4 numbers #")
    reprs = {repr(kind(1, each, tokens=3)) for kind in (Steering, Patch) for each in (vector, other)}
    assert len(reprs) == 4
    assert "#" in repr(Steering(1, "no numbers"))


def test_a_module_imported_in_a_function_counts_with_what_is_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    helper = ModuleType("helper_of_a_function")
    helper.TOKEN, helper.OTHER = 7, 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, helper.__name__, helper)

    def function(value: int) -> int:
        import helper_of_a_function  # type: ignore[import-not-found]

        return value + int(helper_of_a_function.TOKEN)

    before = content_digest(function)
    helper.OTHER = 2  # type: ignore[attr-defined]
    assert content_digest(function) == before
    helper.TOKEN = 8  # type: ignore[attr-defined]
    assert content_digest(function) != before


def test_modules_that_a_function_may_do_without_need_not_be_there() -> None:
    def function(value: int) -> int:
        try:
            import package_that_is_not_installed  # type: ignore[import-not-found]
        except ImportError:
            return value
        return int(package_that_is_not_installed.next(value))

    assert content_digest(function) == content_digest(function)


def test_an_import_of_an_installed_package_counts_with_its_version_and_imports_nothing() -> None:
    def function(value: int) -> Any:
        import wave

        return wave.open(str(value))

    known = "wave" in sys.modules
    assert content_digest(function)
    assert ("wave" in sys.modules) == known
