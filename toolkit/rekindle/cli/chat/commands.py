"""Commands of a chat, lines that begin with a slash."""

import json
import re
import time
from collections.abc import Callable, Mapping
from itertools import starmap
from pathlib import Path
from typing import Any, Final, NamedTuple

from rekindle.chats.archive import ArchivedChat
from rekindle.chats.card import chat_text
from rekindle.chats.states import Continue, Retry
from rekindle.cli.chat.branches import undone_text
from rekindle.cli.chat.mcp.listing import tools_text
from rekindle.cli.chat.saved import read_messages
from rekindle.cli.chat.talk import Talk
from rekindle.core.errors import InvalidRequest, StorageError
from rekindle.core.keywords import likely
from rekindle.core.words import ago, quantity, seconds
from rekindle.formats.images.writing import as_json
from rekindle.formats.rendering.content_form import text_of
from rekindle.results.generation import Generation

KEYS: Final = (
    "Enter sends, Alt-Enter begins a line, and so do lines between triple quotes. Ctrl-C stops an answer, Ctrl-D "
    "leaves. Up and down go through earlier messages, Tab completes commands. // sends a message with a slash."
)
_COMMAND: Final = re.compile(r"/(\w*)(?:\s+(.*))?", re.DOTALL)


class Leave(Exception):
    """Ends the chat."""


def run(talk: Talk, line: str) -> bool:
    """Run the command of a line; return False if the line is a message.

    Raises:
        Leave: the command ends the chat.
        InvalidRequest: the command does not exist, or its argument is invalid.
        StorageError: a file cannot be read or written.
    """
    match = _COMMAND.fullmatch(line)
    if match is None:
        return False
    name, argument = match[1], (match[2] or "").strip()
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        hint = likely(name, COMMANDS) or "/help lists the commands"
        raise InvalidRequest(f"no command /{name}; {hint.replace('did you mean ', 'did you mean /')}")
    command.run(talk, argument)
    return True


def load(talk: Talk, argument: str, messages: list[Any] | None = None) -> None:
    """Replace the conversation by the messages of a file; None reads them."""
    path = _path(argument, "load")
    messages = read_messages(path) if messages is None else messages
    talk.branches.now.replace(talk.chat_of(messages))
    talk.screen.note(f"{quantity(len(messages), 'message')} from {path}")


def _load(talk: Talk, argument: str) -> None:
    load(talk, argument)


def set_system(talk: Talk, text: str) -> None:
    """Set the system message, and keep the other messages."""
    others = [message for message in talk.chat.messages if message["role"] != "system"]
    talk.branches.now.replace(talk.chat_of([{"role": "system", "content": text}, *others]))


def _help(talk: Talk, argument: str) -> None:
    width = max(len(f"/{name} {command.usage}") for name, command in COMMANDS.items())
    lines = [f"{f'/{name} {command.usage}':<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    talk.screen.show("\n".join([*lines, KEYS]))


def _system(talk: Talk, argument: str) -> None:
    messages = talk.chat.messages
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
    if not argument:
        talk.screen.show("there is no system message; /system TEXT sets one" if system is None else str(system))
        return
    set_system(talk, argument)
    talk.screen.note("the system message holds from now on; /clear begins a new conversation with it")


def _clear(talk: Talk, argument: str) -> None:
    first = talk.chat.messages[:1]
    talk.branches.now.replace(talk.chat_of([message for message in first if message["role"] == "system"]))
    talk.screen.note("a new conversation; /undo returns to the earlier one")


def _undo(talk: Talk, argument: str) -> None:
    before = talk.chat.messages
    talk.branches.now.undo()
    after = talk.chat.messages
    talk.screen.note(undone_text(before, after) + ("" if after else "; the conversation is empty"))


def _edit(talk: Talk, argument: str) -> None:
    messages = talk.chat.messages
    places = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not places:
        raise InvalidRequest("there is no message to edit")
    if not argument and not talk.lines.interactive:
        raise InvalidRequest("/edit needs the new text of the last message: /edit TEXT")
    text = argument or talk.lines.read(text_of(messages[places[-1]]))
    talk.chat.edit(places[-1], text)
    changed, is_answered = talk.chat, False
    try:
        is_answered = talk.say(None)
    finally:
        if not is_answered:
            changed.undo()


def _retry(talk: Talk, argument: str) -> None:
    former = talk.branches.number
    talk.branches.add()
    is_answered = False
    try:
        is_answered = talk.say(Retry())
    finally:
        if not is_answered:
            talk.branches.drop(former)
    if is_answered:
        talk.screen.note(f"/branch {former} has the former answer")


def _continue(talk: Talk, argument: str) -> None:
    talk.say(Continue())


def _branch(talk: Talk, argument: str) -> None:
    if argument:
        talk.branches.go(argument)
    else:
        talk.branches.add()
    _branches(talk, "")


def _branches(talk: Talk, argument: str) -> None:
    talk.screen.show(str(talk.branches))


def _show(talk: Talk, argument: str) -> None:
    talk.screen.show(chat_text(talk.chat.messages) or "the conversation is empty")


def _save(talk: Talk, argument: str) -> None:
    path = _path(argument, "save")
    content = {"model": talk.session.name, "messages": as_json(talk.chat.messages)}
    try:
        path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    talk.screen.note(f"{quantity(len(talk.chat), 'message')} in {path}; /load brings them back")


def _resume(talk: Talk, argument: str) -> None:
    if not talk.earlier:
        raise InvalidRequest("there is no conversation of an earlier start")
    number = int(argument) if argument.isdecimal() else 0 if argument else 1
    if not 1 <= number <= len(talk.earlier):
        chats = enumerate(talk.earlier, 1)
        raise InvalidRequest(
            "\n".join([f"no conversation {argument!r}; the latest are:", *starmap(_earlier_text, chats)])
        )
    talk.resume(talk.earlier[number - 1])
    talk.screen.note(f"{quantity(len(talk.chat), 'message')}; /show prints the conversation")


def _earlier_text(number: int, chat: ArchivedChat) -> str:
    """Return a line about a conversation for /resume."""
    size = quantity(len(chat.messages), "message")
    return f"  {number}  {chat.title:.60}  {size}, {ago(time.time() - chat.time)}"


def _stats(talk: Talk, argument: str) -> None:
    answer, restored = talk.answer, talk.session.restored
    lines = [
        f"model     {talk.session.name}, {talk.session.settings.max_context:,} tokens of context",
        f"programs  {restored.programs} loaded from disk, {restored.compiled} compiled; open after "
        f"{seconds(restored.seconds)}",
    ]
    if answer is not None:
        pace = answer.timings.per_token(len(answer.token_ids))
        rate = f", then {1 / pace:.1f} tokens/s" if pace else ""
        end = "stopped by you" if answer.finish_reason == "cancelled" else f"ended by {answer.finish_reason}"
        lines += [
            f"prompt    {_cached_text(answer)}",
            f"answer    {quantity(len(answer.token_ids), 'token')}, the first after "
            f"{seconds(answer.timings.first_token)}{rate}; {end}",
        ]
    talk.screen.show("\n".join(lines))


def _cached_text(answer: Generation) -> str:
    """Return the share of the prefix cache in an answer's prompt."""
    where = f" ({answer.cached})" if answer.cached.total else ""
    return f"{answer.cached.total:,} of {quantity(answer.usage.prompt_tokens, 'prompt token')} cached{where}"


def _tools(talk: Talk, argument: str) -> None:
    talk.screen.show(tools_text(talk.sources))


def _exit(talk: Talk, argument: str) -> None:
    raise Leave


def _path(argument: str, name: str) -> Path:
    if not argument:
        raise InvalidRequest(f"/{name} needs a file: /{name} FILE")
    return Path(argument).expanduser()


def _image(talk: Talk, argument: str) -> None:
    path = _path(argument, "image")
    talk.add_image(argument if "://" in argument else str(path))  # a Path has one slash of an address
    talk.screen.note(f"{path.name} comes with the next message")


class ChatCommand(NamedTuple):
    """A command.

    Attributes:
        run: the function of the chat and the command's argument.
        usage: the name of the argument.
        summary: the purpose.
    """

    run: Callable[[Talk, str], None]
    usage: str
    summary: str


COMMANDS: Final[Mapping[str, ChatCommand]] = {
    "help": ChatCommand(_help, "", "list the commands and keys"),
    "system": ChatCommand(_system, "[TEXT]", "show or set the system message"),
    "undo": ChatCommand(_undo, "", "drop the last turn, or undo /edit, /clear, /load, /resume and /system"),
    "image": ChatCommand(_image, "FILE", "send an image with the next message"),
    "edit": ChatCommand(_edit, "[TEXT]", "change the last message, and answer it anew"),
    "retry": ChatCommand(_retry, "", "answer the last message anew; a branch keeps the former answer"),
    "continue": ChatCommand(_continue, "", "go on with an answer that was cut or stopped"),
    "branch": ChatCommand(_branch, "[N]", "continue in a copy of the conversation, or in branch N"),
    "branches": ChatCommand(_branches, "", "list the branches"),
    "show": ChatCommand(_show, "", "print the conversation"),
    "clear": ChatCommand(_clear, "", "begin a new conversation"),
    "save": ChatCommand(_save, "FILE", "write the conversation to a JSON file"),
    "load": ChatCommand(_load, "FILE", "continue the conversation of a file"),
    "resume": ChatCommand(_resume, "[N]", "continue the last conversation of an earlier start, or the last but N - 1"),
    "stats": ChatCommand(_stats, "", "print the figures of the last answer"),
    "tools": ChatCommand(_tools, "", "list the tools of the MCP servers"),
    "exit": ChatCommand(_exit, "", "leave"),
}
ALIASES: Final = {"": "help", "bye": "exit", "quit": "exit", "q": "exit", "h": "help"}


def names() -> list[str]:
    """Return the commands with their slash."""
    return [f"/{name}" for name in COMMANDS]


def unescaped(line: str) -> str:
    """Return a message without the first of two slashes at its beginning."""
    return line[1:] if line.startswith("//") else line
