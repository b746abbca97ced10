"""Chat templates: Jinja sources that came with a model, compiled as in transformers, and what they read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from rekindle.core.errors import InvalidRequest

if TYPE_CHECKING:
    import jinja2


@lru_cache(maxsize=16)
def compiled(source: str) -> jinja2.Template:
    """Return a template that can be rendered, in a sandbox."""
    return _environment().from_string(source)


@lru_cache(maxsize=16)
def names_read(source: str) -> frozenset[str]:
    """Return the variables that a template reads.

    Raises:
        InvalidRequest: it is no template.
    """
    from jinja2.meta import find_undeclared_variables

    return frozenset(find_undeclared_variables(_parsed(source)))


@lru_cache(maxsize=16)
def loops_over_parts(source: str) -> bool:
    """Tell whether a template takes the content of a message apart in a loop; others write it as one text.

    A loop over the content is one over `message.content`, or over a variable that was set to it, or a macro's argument
    of that name.

    Raises:
        InvalidRequest: it is no template.
    """
    from jinja2 import nodes

    parsed = _parsed(source)
    names = {"content", *_names_of_content(parsed)}

    def is_content(node: nodes.Node) -> bool:
        while isinstance(node, nodes.Filter) and node.node is not None:
            node = node.node
        return _reads_content(node) or (isinstance(node, nodes.Name) and node.name in names)

    return any(is_content(loop.iter) for loop in parsed.find_all(nodes.For))


def _names_of_content(parsed: jinja2.nodes.Template) -> Iterator[str]:
    """Yield the variables that are set to the content of a message."""
    from jinja2 import nodes

    for each in parsed.find_all(nodes.Assign):
        if isinstance(each.target, nodes.Name) and _reads_content(each.node):
            yield each.target.name


def _reads_content(node: jinja2.nodes.Node) -> bool:
    """Tell whether an expression is `message.content` or `message["content"]`, whatever the message is called."""
    from jinja2 import nodes

    match node:
        case nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
    return False


def _parsed(source: str) -> jinja2.nodes.Template:
    from jinja2 import TemplateError

    try:
        return _environment().parse(source)
    except TemplateError as error:
        raise InvalidRequest(f"the model's chat template cannot be read: {error}") from error


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation_blocks()]
    )
    filters: dict[str, Callable[..., Any]] = environment.filters
    filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _generation_blocks() -> type[jinja2.ext.Extension]:
    """Return the extension for `{% generation %}`, which marks text for training and passes its body through."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class GenerationBlocks(Extension):
        tags = {"generation"}  # noqa: RUF012  # as the base class has it

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
    """Write JSON as transformers does: Jinja's own filter escapes HTML, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
