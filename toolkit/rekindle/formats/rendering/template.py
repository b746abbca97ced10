"""Chat templates: a model's Jinja sources, compiled as in transformers, and their variables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from rekindle.core.errors import InvalidRequest

if TYPE_CHECKING:
    import jinja2


@lru_cache(maxsize=16)
def compile_template(source: str) -> jinja2.Template:
    """Compile a template in a sandbox.

    Raises:
        InvalidRequest: the source is not a valid template.
    """
    with _parse_errors():
        return _environment().from_string(source)


@lru_cache(maxsize=16)
def template_variables(source: str) -> frozenset[str]:
    """Return the names of the undeclared variables in a template.

    Raises:
        InvalidRequest: the source is not a valid template.
    """
    from jinja2.meta import find_undeclared_variables

    return frozenset(find_undeclared_variables(_parse(source)))


@lru_cache(maxsize=16)
def string_constants(source: str) -> frozenset[str]:
    """Return the string literals in the expressions of a template.

    Raises:
        InvalidRequest: the source is not a valid template.
    """
    from jinja2 import nodes

    return frozenset(node.value for node in _parse(source).find_all(nodes.Const) if isinstance(node.value, str))


@lru_cache(maxsize=16)
def loops_over_parts(source: str) -> bool:
    """Return True if a template iterates over the content parts of messages. Other templates expect a text.

    The loop may be over `message.content`, over a variable assigned from it, or over a macro argument named `content`.

    Raises:
        InvalidRequest: the source is not a valid template.
    """
    from jinja2 import nodes

    tree = _parse(source)
    names = {"content", *_content_names(tree)}

    def is_content(node: nodes.Node) -> bool:
        while isinstance(node, nodes.Filter) and node.node is not None:
            node = node.node
        return _reads_content(node) or (isinstance(node, nodes.Name) and node.name in names)

    return any(is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _content_names(tree: jinja2.nodes.Template) -> Iterator[str]:
    """Yield the names of variables assigned from the content of a message."""
    from jinja2 import nodes

    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _reads_content(assignment.node):
            yield assignment.target.name


def _reads_content(node: jinja2.nodes.Node) -> bool:
    """Return True if an expression is `message.content` or `message["content"]`, for any name of the message."""
    from jinja2 import nodes

    match node:
        case nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
    return False


def _parse(source: str) -> jinja2.nodes.Template:
    with _parse_errors():
        return _environment().parse(source)


@contextmanager
def _parse_errors() -> Iterator[None]:
    """Raise errors of a template's source as InvalidRequest: SyntaxError and RecursionError are of deep nesting."""
    from jinja2 import TemplateError

    try:
        yield
    except (TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise InvalidRequest(f"the model's chat template cannot be parsed: {error!s:.300}") from error


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    from jinja2.ext import loopcontrols

    from rekindle.formats.rendering.sandbox import environment_class  # beside jinja2, which it needs

    environment: jinja2.Environment = environment_class()(
        {"tojson": _to_json}, trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation_blocks()]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _generation_blocks() -> type[jinja2.ext.Extension]:
    """Return the extension for `{% generation %}` blocks, which mark text for training and render their body."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class GenerationBlocks(Extension):
        tags = {"generation"}  # noqa: RUF012  # the base class declares it like this

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Callable[[], str]) -> str:
            return caller()

    return GenerationBlocks


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialize JSON as transformers does. Jinja's filter escapes HTML, unlike the models' training data."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
