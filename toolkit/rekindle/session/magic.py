"""Cell magic `%%rekindle`: a cell with a prompt. The answer streams into the output of the cell."""

import re
import shlex
from ast import literal_eval
from collections.abc import Mapping
from typing import Any

from rekindle.chats.chat import Chat
from rekindle.client.calls.options import GenerateOptions
from rekindle.core.errors import InvalidRequest
from rekindle.results.generation import Generation
from rekindle.session.session import Session

NAME = "rekindle"
USAGE = '%%rekindle [SESSION or CHAT] [--max-tokens 64] [--system "..."] [--raw] [--into NAME] [any option of generate]'
DEFAULT_NAME = "session"
OWN = ("system", "raw", "into")
"""Options of the magic itself; all others are those of `generate`."""
_FIRST_LINE = re.compile(rf"%%{NAME}(\s|$)")
HELP = f"""Answer the text of the cell, and show the answer as it arrives.

{USAGE}

The text is a user message; for a chat, its next turn. The first word is the variable of the session (default
`{DEFAULT_NAME}`) or of the chat. Tab completes variables and options; a value is a Python literal or a text.

  --system TEXT    the system message
  --raw            continue the text itself, without the chat template
  --into NAME      the variable for the answer
"""


def register(shell: Any) -> None:
    """Register the magic in an IPython shell, with completion of its first line.

    The cell awaits its answer, so the kernel handles clicks and background tasks meanwhile. After `%autoawait off`, it
    blocks.
    """

    def rekindle(line: str, cell: str) -> Any:
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        return run(line, cell, shell.user_ns, blocks=not shell.autoawait)

    def awaited(lines: list[str]) -> list[str]:
        if not lines or not _FIRST_LINE.match(lines[0]) or not shell.autoawait:
            return lines
        line = lines[0].rstrip().partition(" ")[2]
        return [f"await get_ipython().run_cell_magic({NAME!r}, {line!r}, {''.join(lines[1:])!r})\n"]

    def completions(_: object, event: Any) -> list[str]:
        return _completions(event.symbol, shell.user_ns)

    rekindle.__doc__ = HELP
    shell.register_magic_function(rekindle, magic_kind="cell")
    shell.input_transformers_cleanup.append(awaited)
    shell.set_hook("complete_command", completions, str_key=f"%%{NAME}")


def unregister(shell: Any) -> None:
    """Remove the magic from an IPython shell."""
    shell.magics_manager.magics["cell"].pop(NAME, None)
    transforms = shell.input_transformers_cleanup
    transforms[:] = [each for each in transforms if each.__module__ != __name__]


def run(line: str, cell: str, variables: dict[str, Any], *, blocks: bool = False) -> Any:
    """Answer the text of a cell, and show the answer as it arrives.

    The text is a user message, formatted by the model's chat template. `--raw` continues the text itself. For a chat,
    the text is its next turn.

    Args:
        line: the first line after the magic: the variable of the session or the chat, and the options.
        cell: the prompt.
        variables: the variables of the notebook; `--into` adds one.
        blocks: True to block until the end of the answer.

    Returns:
        The generation, or with `blocks=False` its awaitable.

    Raises:
        InvalidRequest: the line cannot be read, there is no such variable, or as in `generate`.
        Others: as in `generate`.
    """
    __tracebackhide__ = True
    name, options = parse(line)
    own = {key: options.pop(key) for key in OWN if key in options}
    target, prompt = _target(name, variables), _prompt(name, variables, own, cell.strip("\n"))
    into = own.get("into")
    if blocks:
        answer: Generation = target.show_sync(prompt, **options)
        return _put(answer, into, variables)

    async def awaited() -> Generation:
        __tracebackhide__ = True
        return _put(await target.show(prompt, **options), into, variables)

    return awaited()


def _prompt(name: str, variables: Mapping[str, Any], own: Mapping[str, Any], text: str) -> Any:
    """Return the text of a cell as a prompt, by the magic's own options."""
    if isinstance(variables[name], Chat):
        if wrong := own.keys() - {"into"}:
            raise InvalidRequest(f"--{min(wrong)} is for a session: the chat {name!r} has its messages already")
        return text
    if own.get("raw"):
        if "system" in own:
            raise InvalidRequest("--system needs the chat template, and --raw leaves it out: give one of them")
        return text
    system = [{"role": "system", "content": str(own["system"])}] if "system" in own else []
    return [*system, {"role": "user", "content": text}]


def _put(answer: Generation, into: object, variables: dict[str, Any]) -> Generation:
    if into is not None:
        variables[str(into)] = answer
    return answer


def _completions(word: str, variables: Mapping[str, Any]) -> list[str]:
    """Return the variables and options for the beginning of a word of the first line."""
    options = [f"--{name.replace('_', '-')}" for name in (*OWN, *GenerateOptions.__annotations__)]
    return [each for each in (*_names(variables), *options) if each.startswith(word)]


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


def _names(variables: Mapping[str, Any]) -> list[str]:
    """Return the names of the variables with a session or a chat."""
    return [key for key, value in variables.items() if isinstance(value, Session | Chat) and not key.startswith("_")]


def _target(name: str, variables: Mapping[str, Any]) -> Session | Chat:
    target = variables.get(name)
    if isinstance(target, Session | Chat):
        return target
    names = _names(variables)
    hint = f"variables with one: {', '.join(names)}" if names else "first run session = await rekindle.open(...)"
    raise InvalidRequest(f"%%rekindle needs a session or a chat, and the variable {name!r} has none; {hint}")
