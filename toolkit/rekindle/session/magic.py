"""Cell magic `%%rekindle`: a cell with a prompt. The answer streams into the output of the cell."""

import shlex
from ast import literal_eval
from collections.abc import Mapping
from typing import Any

from rekindle.chats.chat import Chat
from rekindle.core.errors import InvalidRequest
from rekindle.results.generation import Generation
from rekindle.session.session import Session

USAGE = '%%rekindle [SESSION or CHAT] [--max-tokens 64] [--system "..."] [--raw] [--into NAME] [any option of generate]'
DEFAULT_NAME = "session"
OWN = ("system", "raw", "into")
"""Options of the magic itself; all others are those of `generate`."""


def register(shell: Any) -> None:
    """Register the magic in an IPython shell."""

    def rekindle(line: str, cell: str) -> Generation:
        """Answer the text of the cell: %%rekindle [SESSION or CHAT] [--option value]..."""
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        return run(line, cell, shell.user_ns)

    shell.register_magic_function(rekindle, magic_kind="cell")


def unregister(shell: Any) -> None:
    """Remove the magic from an IPython shell."""
    shell.magics_manager.magics["cell"].pop("rekindle", None)


def run(line: str, cell: str, variables: dict[str, Any]) -> Generation:
    """Answer the text of a cell, and show the answer as it arrives.

    The text is a user message, formatted by the model's chat template. `--raw` continues the text itself. For a chat,
    the text is its next turn.

    Args:
        line: the first line after the magic: the variable of the session or the chat, and the options.
        cell: the prompt.
        variables: the variables of the notebook; `--into` adds one.

    Returns:
        The generation.

    Raises:
        InvalidRequest: the line cannot be read, there is no such variable, or as in `generate`.
        Others: as in `generate`.
    """
    __tracebackhide__ = True
    name, options = parse(line)
    own = {key: options.pop(key) for key in OWN if key in options}
    target, text = _target(name, variables), cell.strip("\n")
    if isinstance(target, Chat):
        if wrong := own.keys() - {"into"}:
            raise InvalidRequest(f"--{min(wrong)} is for a session: the chat {name!r} has its messages already")
        answer: Generation = target.show_sync(text, **options)
    elif own.get("raw"):
        if "system" in own:
            raise InvalidRequest("--system needs the chat template, and --raw leaves it out: give one of them")
        answer = target.show_sync(text, **options)
    else:
        system = [{"role": "system", "content": str(own["system"])}] if "system" in own else []
        answer = target.show_sync([*system, {"role": "user", "content": text}], **options)
    if "into" in own:
        variables[str(own["into"])] = answer
    return answer


def parse(line: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a line of the magic.

    A value is a Python literal, such as 0.8 or ["a", "b"], or otherwise text. An option without a value is True.

    Raises:
        InvalidRequest: the line has a wrong quote, or more than one name.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InvalidRequest(f"the line of the magic cannot be read ({error}); its form is {USAGE}") from error
    names: list[str] = []
    options: dict[str, Any] = {}
    option = ""
    for word in words:
        if word.startswith("--"):
            option, equals, value = word[2:].partition("=")
            option = option.replace("-", "_")
            options[option] = _value(value) if equals else True
            option = "" if equals else option
        elif option:
            options[option], option = _value(word), ""
        else:
            names.append(word)
    if len(names) > 1:
        raise InvalidRequest(f"one session or chat was expected, got {' '.join(names)}; the form is {USAGE}")
    return (names or [DEFAULT_NAME])[0], options


def _value(word: str) -> Any:
    try:
        return literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def _target(name: str, variables: Mapping[str, Any]) -> Session | Chat:
    target = variables.get(name)
    if isinstance(target, Session | Chat):
        return target
    names = [key for key, value in variables.items() if isinstance(value, Session | Chat) and not key.startswith("_")]
    hint = f"variables with one: {', '.join(names)}" if names else "first run session = await rekindle.open(...)"
    raise InvalidRequest(f"%%rekindle needs a session or a chat, and the variable {name!r} has none; {hint}")
