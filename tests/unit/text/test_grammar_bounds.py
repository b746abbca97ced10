"""No schema and no grammar overflows a stack: its size is bounded before, and the stack holds the largest one."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest

from rekindle.core.concurrency.threads import STACK_BYTES, on_deep_stack
from rekindle.core.errors import InvalidRequest
from rekindle.core.text.constraints import parser
from rekindle.core.text.constraints.bounds import (
    DEEPEST_SCHEMA,
    MOST_LEVELS,
    MOST_OPTIONAL,
    MOST_PARTS,
    MOST_PROPERTIES,
    MOST_RULES,
    check_schema,
    parts_of,
)
from rekindle.core.text.constraints.parser import parse_bytes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.server import app
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from tests.unit.asgi import ask

USER = {"role": "user", "content": "Hello"}
Schema = dict[str, Any]


def rules(count: int, line: str = 'r{0}: "x" r{1}', last: str = 'r{0}: "a"') -> str:
    """Return a grammar with a chain of rules."""
    chain = [line.format(each, each + 1) for each in range(count - 2)]
    return "\n".join([f"start: {line[:1]}0", *chain, last.format(count - 2)])


def terminals(count: int) -> str:
    return rules(count, 'T{0}: "x" T{1}', 'T{0}: "a"')


def aliases(count: int) -> str:
    return rules(count, "r{0}: r{1}")


def definitions(count: int, part: Callable[[str], Schema]) -> Schema:
    """Return a schema with a chain of definitions."""
    names = [f"#/$defs/d{each}" for each in range(count)]
    chain: Schema = {f"d{each}": part(name) for each, name in enumerate(names[1:])}
    return {"$defs": {**chain, f"d{count - 1}": {"type": "string"}}, "$ref": names[0]}


def nested(levels: int, part: Callable[[Any], Schema]) -> Schema:
    schema: Schema = {}
    for _ in range(levels):
        schema = part(schema)
    return schema


LINKS: dict[str, Callable[[str], Schema]] = {
    "properties": lambda name: {"type": "object", "properties": {"p": {"$ref": name}}, "required": ["p"]},
    "$ref": lambda name: {"$ref": name},
    "anyOf": lambda name: {"anyOf": [{"$ref": name}, {"type": "null"}]},
    "allOf": lambda name: {"allOf": [{"$ref": name}, {"minLength": 1}]},
    "items": lambda name: {"type": "array", "items": {"$ref": name}},
    "prefixItems": lambda name: {"type": "array", "prefixItems": [{"$ref": name}, {"$ref": name}], "items": False},
    "additionalProperties": lambda name: {"type": "object", "additionalProperties": {"$ref": name}},
}
NESTS: dict[str, Callable[[Any], Schema]] = {
    "items": lambda inner: {"type": "array", "items": inner},
    "anyOf": lambda inner: {"anyOf": [inner]},
    "allOf": lambda inner: {"allOf": [inner]},
    "properties": lambda inner: {"properties": {"a": inner}},
    "const": lambda inner: {"const": inner},
}
DEEP: Schema = nested(200, NESTS["items"])
"""A schema beyond the depth limit, although Python can write it."""
LONG = rules(MOST_RULES + 1)
"""A grammar with too many rules."""


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest fitting number."""
    low, high = 1, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def outcome(kind: Any, text: str) -> str:
    """Return the error about a constraint; empty for a valid constraint."""
    try:
        assert not parse_bytes(kind, text, kind).is_error()
    except InvalidRequest as error:
        return str(error)
    return ""


def is_within(schema: Schema) -> bool:
    try:
        check_schema("json_schema", schema)
    except InvalidRequest:
        return False
    return True


@pytest.fixture
def unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if the parser is called."""
    monkeypatch.setattr(parser, "on_deep_stack", lambda work: pytest.fail("the parser was called"))


@pytest.mark.parametrize(
    "chain", [rules, pytest.param(terminals, marks=pytest.mark.wide), pytest.param(aliases, marks=pytest.mark.wide)]
)
def test_the_longest_chain_of_rules_is_parsed(chain: Callable[[int], str]) -> None:
    assert not parse_bytes("grammar", chain(MOST_RULES), "grammar").is_error()


@pytest.mark.parametrize("chain", [rules, terminals, aliases])
def test_one_rule_more_is_refused_before_it_is_parsed(chain: Callable[[int], str], unparsed: None) -> None:
    with pytest.raises(InvalidRequest, match=f"guided has {MOST_RULES + 1} rules; at most 16,000 can be served"):
        parse_bytes("grammar", chain(MOST_RULES + 1), "guided")


@pytest.mark.parametrize(
    "link", [name if name == "prefixItems" else pytest.param(name, marks=pytest.mark.wide) for name in LINKS]
)
def test_the_longest_chain_of_definitions_is_parsed(link: str) -> None:
    levels = max(depth for _, depth in parts_of(LINKS[link]("#")))
    schema = definitions((MOST_LEVELS - 9) // (1 + levels), LINKS[link])
    check_schema("json_schema", schema)
    message = outcome("json_schema", json.dumps(schema))
    assert not message or (link == "anyOf" and "Current row has" in message)  # too many alternatives in one place


@pytest.mark.parametrize("link", LINKS)
def test_longer_chains_of_definitions_are_refused(link: str, unparsed: None) -> None:
    text = json.dumps(definitions(MOST_LEVELS, LINKS[link]))
    for kind, source in (("json_schema", text), ("grammar", f"start: %json {text}")):
        with pytest.raises(InvalidRequest, match=r"json_schema has \d+ (levels with its references|objects and lists)"):
            parse_bytes(kind, source, "json_schema")  # type: ignore[arg-type]


@pytest.mark.parametrize("nest", NESTS)
def test_schemas_are_parsed_up_to_a_depth_and_refused_beyond(nest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = largest(lambda levels: is_within(nested(levels, NESTS[nest])) if levels < 500 else False)
    text = json.dumps(nested(most, NESTS[nest]))
    assert not parse_bytes("json_schema", text, "json_schema").is_error()
    assert not parse_bytes("grammar", f"start: %json {text}", "grammar").is_error()
    monkeypatch.setattr(parser, "on_deep_stack", lambda work: pytest.fail("the parser was called"))
    for levels in (most + 1, 3 * most):
        text = json.dumps(nested(levels, NESTS[nest]))
        with pytest.raises(InvalidRequest, match=rf"is nested \d+ levels deep; at most {DEEPEST_SCHEMA} can be served"):
            parse_bytes("json_schema", text, "json_schema")
    endless = '{"items":' * 100_000 + "{}" + "}" * 100_000
    for kind, source in (("json_schema", endless), ("grammar", f"start: %json {endless}")):
        with pytest.raises(InvalidRequest, match="is nested too deep"):
            parse_bytes(kind, source, "json_schema")  # type: ignore[arg-type]


def test_large_schemas_are_refused_before_they_are_parsed(unparsed: None) -> None:
    broad: Schema = {"properties": {f"p{each}": {} for each in range(MOST_PROPERTIES + 1)}}
    many: Schema = {"anyOf": [{"enum": [each]} for each in range(MOST_PARTS)]}
    names = [f"p{each}" for each in range(MOST_OPTIONAL + 2)]
    loose: Schema = {"items": {"properties": {name: {} for name in names}, "required": [names[0], 3]}}
    for schema, message in (
        (broad, "has 5001 properties; at most 5,000"),
        (many, "objects and lists; at most 20,000"),
        (loose, "has 501 optional properties in sequence; at most 500 can be served: require some between"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            parse_bytes("json_schema", json.dumps(schema), "json_schema")


@pytest.mark.parametrize(
    "pattern",
    [
        "(" * 5000 + "a" + ")" * 5000,
        "(" * 5000 + "a" + ")*" * 5000,
        "[" * 5000 + "a" + "]" * 5000,
        "(a|" * 5000 + ")" * 5000,
        "(" * 60 + "a" + "){9}" * 60,
        "a{99999}{99999}",
    ],
    ids=range(6),
)
def test_deep_and_large_expressions_are_errors_of_the_request(pattern: str) -> None:
    pattern_schema = json.dumps({"type": "string", "pattern": pattern})
    for kind, text in (("regex", pattern), ("json_schema", pattern_schema), ("grammar", f"start: /{pattern}/")):
        message = outcome(kind, text)
        assert not message or f"{kind} cannot be served" in message


@pytest.mark.parametrize(
    "grammar",
    [
        "start: " + "(" * 9000 + '"a"' + ")" * 9000,
        "start: " + "[" * 9000 + '"a"' + "]" * 9000,
        "start: " + '("b" | ' * 9000 + '"a"' + ")" * 9000,
        "start: " + "(" * 9000 + '"a"' + "){2}" * 9000,
        "start: " + "%lark {\nstart: " * 9000 + '"a"' + "\n}" * 9000,
        'start: "a"{1000000000}',
        'start: r{1000000000}\nr: "a" | "b"',
        rules(8000, "r{0}: r{1} r{1}"),
        rules(60, "T{0}: T{1} T{1}", 'T{0}: "a"'),
        rules(500, 'r{0}: r{1} | "x"', "r{0}: r0"),
        "start: " + '"a" ' * 70_000,
    ],
    ids=range(11),
)
def test_deep_and_large_grammars_are_errors_of_the_request(grammar: str) -> None:
    message = outcome("grammar", grammar)
    assert not message or message.startswith(("grammar cannot be served", "grammar has"))
    assert "<backtrace>" not in message


def test_deep_work_has_a_stack_of_its_own() -> None:
    def depth(levels: int) -> int:
        return levels and 1 + sum(map(depth, [levels - 1]))  # through C, so that each level takes native stack

    limit, size = sys.getrecursionlimit(), threading.stack_size()
    sys.setrecursionlimit(100_000)
    try:
        assert on_deep_stack(partial(depth, 20_000)) == 20_000
    finally:
        sys.setrecursionlimit(limit)
    assert threading.stack_size() == size
    assert on_deep_stack(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        on_deep_stack(lambda: 1 / 0)
    assert STACK_BYTES // MOST_RULES > 4 * 3_100  # measured: bytes for a rule
    assert STACK_BYTES // MOST_LEVELS > 4 * 3_300  # measured: bytes for a level


@pytest.fixture(scope="module")
def session(byte_tokenizer: Tokenizer) -> Iterator[Session]:
    limits = fake_limits(max_context=512, num_pages=128, page_size=16)
    with fake_session(fake_loaded_engine(limits, tokenizer=byte_tokenizer)) as session:
        yield session


CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "guided_grammar": (CHAT, {"guided_grammar": LONG}),
    "guided_json": (CHAT, {"guided_json": DEEP}),
    "guided_json as text": (CHAT, {"guided_json": json.dumps(DEEP)}),
    "structured_outputs.grammar": (CHAT, {"structured_outputs": {"grammar": LONG}}),
    "structured_outputs.json": (CHAT, {"structured_outputs": {"json": DEEP}}),
    "response_format": (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": DEEP}}},
    ),
    "response_format of llama.cpp": (CHAT, {"response_format": {"type": "json_object", "schema": DEEP}}),
    "completions": ("/v1/completions", {"prompt": "a", "guided_grammar": LONG}),
    "text.format": (
        RESPONSES,
        {"input": "a", "text": {"format": {"type": "json_schema", "name": "x", "schema": DEEP}}},
    ),
    "output_format": (MESSAGES, {"max_tokens": 9, "output_format": {"type": "json_schema", "schema": DEEP}}),
    "output_config": (
        MESSAGES,
        {"max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": DEEP}}},
    ),
    "format": (OLLAMA, {"format": DEEP, "stream": False}),
    "custom tool": (
        CHAT,
        {
            "tools": [
                {
                    "type": "custom",
                    "custom": {
                        "name": "f",
                        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": LONG}},
                    },
                }
            ]
        },
    ),
    "custom tool of responses": (
        RESPONSES,
        {
            "input": "a",
            "tools": [
                {"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": LONG}}
            ],
        },
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_server_refuses_what_is_beyond_a_bound_in_each_field(way: str, session: Session, unparsed: None) -> None:
    path, fields = WAYS[way]
    body = {"messages": [USER], **fields} if path in (CHAT, MESSAGES, OLLAMA) else fields
    reply = anyio.run(partial(ask, app(session), path, body))
    message = reply.error if path == OLLAMA else reply.error["message"]
    assert reply.status == 400, message
    assert "can be served" in message


def test_python_has_an_error_of_rekindle_for_what_is_beyond_a_bound(session: Session, unparsed: None) -> None:
    for options in ({"json_schema": DEEP}, {"json_schema": json.dumps(DEEP)}, {"grammar": LONG}):
        with pytest.raises(InvalidRequest, match="can be served") as raised:
            session.generate_sync("hi", **options)
        assert raised.value.parameter == next(iter(options))
    endless = '{"items":' * 100_000 + "{}" + "}" * 100_000
    with pytest.raises(InvalidRequest, match="json_schema must be a JSON schema"):
        session.generate_sync("hi", json_schema=endless)
