"""A chat in the terminal, with answers on stdout and notes on stderr."""

from argparse import Namespace
from contextlib import ExitStack, suppress

from rekindle.chats.archive import TalkArchive
from rekindle.cli import requirements, sampling
from rekindle.cli.chat import commands
from rekindle.cli.chat.branches import messages_text
from rekindle.cli.chat.commands import Leave
from rekindle.cli.chat.keys import hidden_keys
from rekindle.cli.chat.lines import Lines, open_lines
from rekindle.cli.chat.mcp.config import read_servers
from rekindle.cli.chat.mcp.permission import Permission
from rekindle.cli.chat.mcp.servers import Servers
from rekindle.cli.chat.screen import Screen
from rekindle.cli.chat.talk import Talk
from rekindle.core.errors import InvalidRequest, RekindleError, SessionError
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.session.session import Session


def chat(arguments: Namespace) -> int:
    """Open the model and answer messages until their end. In a pipe, the first error ends the chat."""
    if arguments.model and arguments.named:
        arguments.refuse(f"there are two models, {arguments.model!r} and {arguments.named!r}: give one")
    model = arguments.named or arguments.model or NAME
    options = sampling.options_of(arguments)
    screen, keeps = Screen(quiet=arguments.quiet), not arguments.no_history
    lines = open_lines(commands.names(), coloured=screen.coloured, keeps=keeps)
    if arguments.chat_template is None and requirements.lacks_template(model, arguments.revision):
        raise _no_template(model)
    configs = read_servers(arguments.mcp)
    permission = Permission(lines, screen, asks=not arguments.yes)
    if configs and not (arguments.yes or lines.interactive):
        arguments.refuse("nobody can be asked before a tool of --mcp runs, as there is no terminal: add --yes")
    with ExitStack() as stack:
        sources = stack.enter_context(Servers(configs, arguments.tool_timeout, permission, screen.note)).sources
        with hidden_keys():
            session = stack.enter_context(sampling.open_session(arguments, model, "background"))
        if session.tokenizer is None or session.tokenizer.chat_template is None:
            raise _no_template(session.name)
        archive = TalkArchive(session.name) if keeps and lines.interactive else None
        talk = Talk(session, lines, screen, options, archive, sources, arguments.when_full)
        if lines.interactive:
            screen.show(_ready(session))
        if arguments.load is not None:
            commands.load(talk, *arguments.load)
        elif talk.earlier:
            more = f", /resume N one of {len(talk.earlier)}" if len(talk.earlier) > 1 else ""
            screen.show(
                f"the last conversation: {messages_text(talk.earlier[0].messages[-2:])}; /resume continues it{more}"
            )
        if arguments.system is not None:
            commands.set_system(talk, arguments.system)
        with suppress(Leave, EOFError):
            while True:
                _take(talk, lines)
        talk.keep()
        if lines.interactive:
            print()
            if talk.is_resumable:
                screen.note("/resume continues this conversation in the next chat")
    return 0


def _ready(session: Session) -> str:
    """Return the first line of a chat: the time of the start, and of the first one."""
    restored = session.restored
    cold = restored.cold_seconds
    first = f" ({_whole(cold)} the first time)" if cold and cold > restored.seconds else ""
    return f"{session.name} is ready in {_whole(restored.seconds)}{first}. /help lists the commands, Ctrl-D leaves."


def _whole(count: float) -> str:
    """Return a time in whole seconds."""
    return f"{count:.0f} s" if count >= 1 else "less than 1 s"


def _no_template(model: str) -> InvalidRequest:
    return InvalidRequest(
        f"{model} has no chat template, so it cannot chat: give the template of its family as --chat-template NAME "
        "(chatml, gemma, llama3, mistral, ...) or --chat-template FILE, or use rekindle generate"
    )


def _take(talk: Talk, lines: Lines) -> None:
    """Take the next message or command.

    Raises:
        Leave: the chat ends.
        EOFError: there are no more messages.
        KeyboardInterrupt: an interrupt came, and no person types the messages.
        RekindleError: the message failed, and no person types the messages, or the session has ended.
    """
    try:
        line = lines.read()
        if line and not commands.run(talk, line):
            talk.say(commands.unescaped(line))
    except KeyboardInterrupt:
        if not lines.interactive:
            raise
        talk.screen.note("Ctrl-D or /exit leaves the chat")
    except SessionError:
        raise
    except RekindleError as error:
        if not lines.interactive:
            raise
        talk.screen.end()
        talk.screen.show(f"{error}")
