"""Turning messages into a prompt, by the model's own chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from rekindle.errors import InvalidRequest

if TYPE_CHECKING:
    import jinja2


def render(
    messages: Sequence[Mapping[str, Any]],
    template: str | None,
    bos_token: str | None = None,
    eos_token: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Write a conversation as the model was trained to read it, exactly as transformers would.

    Args:
        messages: mappings with a "role" and a "content", both str, oldest first; other keys reach the template too.
            A message of the role "assistant" that has "tool_calls" may have no content.
        template: Jinja source; it runs in a sandbox, because it came with the model.
        bos_token, eos_token: the texts of these tokens, which the template may read; None leaves them undefined.
        tools: JSON schemas of the functions that the model may call; the template reads them as `tools`.
        variables: other variables of the template, by name. They overrule `add_generation_prompt` (default True: end
            with the start of the assistant's answer), `documents` (default None), and the two tokens.

    Raises:
        InvalidRequest: there is no template, an argument is malformed, or the template rejects them.
    """
    if template is None:
        raise InvalidRequest(
            "the model has no chat template, so messages cannot be turned into a prompt: pass the prompt as str"
        )
    check_messages(messages)
    if tools is not None:
        check_tools(tools)
    if variables is not None:
        check_variables(variables)
    _check_read(template, tools, variables or {})
    from jinja2 import TemplateError

    # A token that the model lacks stays undefined, because templates test for that.
    tokens = {name: text for name, text in (("bos_token", bos_token), ("eos_token", eos_token)) if text is not None}
    defaults = {"add_generation_prompt": True, "documents": None, **tokens}
    try:
        return _compile(template).render({**defaults, **(variables or {}), "messages": messages, "tools": tools})
    except TemplateError as error:
        raise InvalidRequest(f"the model's chat template rejects the messages: {error}") from error
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise InvalidRequest(
            f"the model's chat template cannot take the messages ({type(error).__name__}: {error}): "
            "check that it supports their roles and keys, the tools and the variables"
        ) from error


def check_messages(messages: object) -> None:
    """Check that `messages` is a list of mappings with a role and a content.

    Raises:
        InvalidRequest: it is something else; the error says where.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequest(f"messages must be a list of {{role, content}} mappings, got {type(messages).__name__}")
    if not messages:
        raise InvalidRequest("messages must have at least one message, got an empty list")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequest(
                f"messages[{place}] must be a mapping with role and content, got {type(message).__name__}"
            )
        calls_tools = message.get("role") == "assistant" and message.get("tool_calls")
        for key in ("role", "content"):
            if key == "content" and message.get(key) is None and calls_tools:
                continue
            if key not in message:
                raise InvalidRequest(f"messages[{place}] has no {key!r}; it has {sorted(map(str, message))}")
            if not isinstance(message[key], str):
                raise InvalidRequest(f"messages[{place}][{key!r}] must be str, got {type(message[key]).__name__}")


def check_tools(tools: object) -> None:
    """Check that `tools` is a list of JSON schemas.

    Raises:
        InvalidRequest: it is something else; the error says where.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequest(f"tools must be a list of JSON schemas, got {_described(tools)}")
    if not tools:
        raise InvalidRequest("tools must have at least one tool, got an empty list; leave tools out for none")
    for place, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InvalidRequest(f"tools[{place}] must be the JSON schema of a function, got {_described(tool)}")
        try:
            json.dumps(tool, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"tools[{place}] cannot be written as JSON: {error}") from error


def check_variables(variables: object) -> None:
    """Check that `variables` is a mapping of names to values for a chat template.

    Raises:
        InvalidRequest: it is something else, or it names the messages or the tools.
    """
    if not isinstance(variables, Mapping):
        raise InvalidRequest(
            f"chat_template_kwargs must be a mapping of variables for the chat template, got {type(variables).__name__}"
        )
    for name in variables:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidRequest(f"chat_template_kwargs must map variables to values, got the key {name!r:.80}")
        if name in _ARGUMENTS:
            raise InvalidRequest(f"chat_template_kwargs cannot set {name!r}: {_ARGUMENTS[name]}")


_ARGUMENTS = {"messages": "the messages are the prompt", "tools": "give them as the argument tools="}


def _described(value: object) -> str:
    if isinstance(value, Mapping):
        return f"one {type(value).__name__}; put it in a list"
    if callable(value):
        return f"the Python object {getattr(value, '__name__', value)!r:.80}; give the JSON schema that describes it"
    return type(value).__name__


def _check_read(template: str, tools: object, variables: Mapping[str, Any]) -> None:
    """Check that the template reads the tools and variables: otherwise a misspelt name would have no effect.

    Raises:
        InvalidRequest: it does not read one of them.
    """
    read = _names_read(template)
    if tools is not None and "tools" not in read:
        raise InvalidRequest("the model's chat template has no place for tools: write them into a message instead")
    unread = sorted(set(variables) - read - {"add_generation_prompt"})
    if unread:
        raise InvalidRequest(
            f"the model's chat template does not read {unread[0]!r}; besides the messages it reads "
            f"{', '.join(sorted(read - _GIVEN)) or 'nothing'}"
        )


_GIVEN = frozenset({"messages", "raise_exception", "strftime_now"})


@lru_cache(maxsize=16)
def _names_read(source: str) -> frozenset[str]:
    from jinja2 import TemplateError
    from jinja2.meta import find_undeclared_variables

    try:
        return frozenset(find_undeclared_variables(_environment().parse(source)))
    except TemplateError as error:
        raise InvalidRequest(f"the model's chat template cannot be read: {error}") from error


@lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
    return _environment().from_string(source)


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
