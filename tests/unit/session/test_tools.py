"""A Python function is described to a model by its annotations and its docstring, and called by the same."""

import enum
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from rekindle.core.errors import InvalidRequest
from rekindle.tools.calling import FunctionCall
from rekindle.tools.kinds import kind_of
from rekindle.tools.tool import schemas_of, tools_of


class Unit(enum.Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


class Place(TypedDict, total=False):
    city: str
    country: str | None


@dataclass
class Span:
    first: int
    last: int = 7


class Inner(BaseModel):
    n: int


class Model(BaseModel):
    inner: Inner
    names: list[str] = []


def weather(city: str, unit: Unit = Unit.CELSIUS, days: int | None = None) -> str:
    """Return the weather of a city.

    It is that of
    tomorrow.

    Args:
        city (str): its name,
            as on a map
        unit: of temperatures

    Returns:
        words: in English
    """
    return f"{city} {unit} {days}"


def test_a_function_is_told_by_its_annotations_and_its_docstring() -> None:
    (schema,) = schemas_of([weather])
    assert schema == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Return the weather of a city.\n\nIt is that of tomorrow.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "its name, as on a map"},
                    "unit": {"type": "string", "enum": ["celsius", "kelvin"], "description": "of temperatures"},
                    "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                },
                "required": ["city"],
            },
        },
    }


def test_parameters_may_be_described_in_numpys_form() -> None:
    def moved(x: float, *, by: float = 1.0) -> float:
        """Move a point.

        Parameters
        ----------
        x : float
            where it is,
            in metres
        by : float, optional
            how far

        Returns
        -------
        float
            where it is then
        """  # noqa: D416
        return x + by

    (schema,) = schemas_of([moved])
    assert schema["function"]["description"] == "Move a point."
    assert {name: each["description"] for name, each in schema["function"]["parameters"]["properties"].items()} == {
        "x": "where it is, in metres",
        "by": "how far",
    }


def test_a_docstring_that_is_almost_of_a_form_is_text() -> None:
    def ask(a: int) -> None:
        """Ask.

        :param
        """

    (schema,) = schemas_of([ask])
    assert schema["function"]["description"] == "Ask.\n\n:param"


def test_parameters_may_be_described_by_fields_or_not_at_all() -> None:
    def one(a: int, b: int) -> None:
        """Add.

        :param a: the first,
            and best
        :param int b: the second
        :return: nothing
        """

    def two(a: int) -> None: ...

    first, second = (schema["function"] for schema in schemas_of([one, two]))
    assert {name: each["description"] for name, each in first["parameters"]["properties"].items()} == {
        "a": "the first, and best",
        "b": "the second",
    }
    assert (second["description"], second["parameters"]["properties"]) == ("", {"a": {"type": "integer"}})


KINDS: list[tuple[Any, list[tuple[Any, Any]], list[Any]]] = [
    (str, [("a", "a")], [1, None]),
    (int, [(3, 3), (3.0, 3)], ["3", True, 2.5]),
    (float, [(1, 1.0), (0.5, 0.5)], ["1", True]),
    (bool, [(True, True)], [1, "true"]),
    (None, [(None, None)], [0]),
    (Any, [({"a": 1}, {"a": 1})], []),
    (Literal["a", 1], [("a", "a"), (1, 1)], ["b", 2, True]),
    (Unit, [("kelvin", Unit.KELVIN)], ["KELVIN"]),
    (list[int], [([1], [1]), ([], [])], [["a"], 1]),
    (list, [(["a", 1], ["a", 1])], ["a"]),
    (tuple[int, str], [([1, "a"], (1, "a"))], [[1], ["a", 1]]),
    (tuple[int, ...], [([1, 2], (1, 2))], [["a"]]),
    (set[str], [(["a", "a"], {"a"})], [[1]]),
    (dict[str, int], [({"a": 1}, {"a": 1})], [{"a": "b"}, []]),
    (int | None, [(1, 1), (None, None)], ["a"]),
    (Place, [({"city": "Rome"}, {"city": "Rome"})], [{"city": 1}, {"town": "Rome"}]),
    (Span, [({"first": 1}, Span(1, 7))], [{}, {"first": "a"}]),
    (Model, [({"inner": {"n": 1}}, Model(inner=Inner(n=1)))], [{"inner": {}}, {}]),
    (Annotated[int, "how many"], [(1, 1)], ["a"]),
]


@pytest.mark.parametrize(("annotation", "good", "bad"), KINDS, ids=lambda each: str(each)[:24])
def test_what_the_schema_allows_is_read_and_what_it_does_not_is_refused(
    annotation: Any, good: list[tuple[Any, Any]], bad: list[Any]
) -> None:
    kind = kind_of(annotation)
    checker = jsonschema.Draft202012Validator(kind.schema)
    for value, meant in good:
        assert checker.is_valid(value)
        assert kind.parse(value) == meant
    for value in bad:
        with pytest.raises(ValueError, match=r"expected|valid"):
            kind.parse(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda each: st.lists(each, max_size=3)
    )
)
@settings(deadline=None)
def test_a_value_of_any_kind_is_read_or_refused_as_its_schema_says(value: Any) -> None:
    for annotation in (str, int, bool, list[int], int | None, list[list[str]], Literal["a", 1, None]):
        kind = kind_of(annotation)
        try:
            kind.parse(value)
            accepted = True
        except ValueError:
            accepted = False
        assert accepted == jsonschema.Draft202012Validator(kind.schema).is_valid(value)


def unannotated(city: str, days) -> None: ...  # type: ignore[no-untyped-def]
def many(*cities: str) -> None: ...
def odd(when: complex) -> None: ...
def unknown(when: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([unannotated], r"tools\[0\], unannotated\(\): parameter 'days' has no annotation"),
        ([many], "cannot be passed by name"),
        ([odd], "annotation of 'when' has no JSON schema"),
        ([unknown], "cannot be read"),
        ([lambda: None], "needs a name"),
        (weather, "put it in a list"),
        ([weather, weather], "2 are called 'weather'"),
        ([weather, 3], "must be a function or the JSON schema of one, got int"),
        ([Unit], r"tools\[0\] must be a function or the JSON schema of one, got the class Unit; write a function"),
        ([], "at least one tool"),
        ("weather", "must be a list"),
    ],
)
def test_what_cannot_be_told_to_a_model_is_refused_in_words(tools: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        tools_of(tools)


def test_arguments_are_what_the_annotations_say() -> None:
    (tool,) = tools_of([weather])
    assert tool.begin is not None
    assert tool.begin({"city": "Rome", "unit": "kelvin"}) == FunctionCall(
        weather, {"city": "Rome", "unit": Unit.KELVIN}
    )
    with pytest.raises(ValueError, match="no city and an unknown town"):
        tool.begin({"town": "Rome"})
    with pytest.raises(ValueError, match="city: expected string, got 3"):
        tool.begin({"city": 3})


def test_methods_and_schemas_are_tools_too() -> None:
    class Shop:
        def price(self, what: str) -> float:
            """Return a price."""
            return 1.0

    schema = {"type": "function", "function": {"name": "now", "parameters": {}}}
    method, tool = tools_of([Shop().price, schema])
    assert (method.name, tool.name, tool.begin) == ("price", "now", None)
    assert list(method.schema["function"]["parameters"]["properties"]) == ["what"]
