"""`python -m rekindle chat`: the arguments of a chat in the terminal."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from rekindle.cli import requirements, sampling
from rekindle.cli.chat.saved import read_messages
from rekindle.cli.starting import deferred
from rekindle.formats.checkpoints.embedded import NAME

EXAMPLES: Final = (
    "rekindle chat",
    'rekindle chat owner/name --system "Answer in one sentence." --temperature 0.7',
    "rekindle chat --load trip.json",
    "rekindle chat owner/name --mcp servers.json",
    r"printf 'What is the capital of France?\n/stats\n' | rekindle chat --quiet",
)
TOOL_SECONDS: Final = 60.0


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=f"{requirements.MODELS} ({NAME})")
    parser.add_argument("-m", "--model", dest="named", metavar="MODEL", help="MODEL, as in `rekindle generate`")
    parser.add_argument("-s", "--system", metavar="TEXT", help="a system message at the beginning")
    parser.add_argument("--load", metavar="FILE", help="continue a conversation from the command /save")
    text = "with a full context, go on without the oldest turns (trim), or end with an error (stop)"
    parser.add_argument("--when-full", choices=("trim", "stop"), default="trim", help=text)
    text = "start the MCP servers of a file with `mcpServers`, and let the model call their tools; may be repeated"
    parser.add_argument("--mcp", metavar="FILE", action="append", default=[], help=text)
    parser.add_argument("--yes", action="store_true", help="run the calls of tools without asking")
    text = f"the longest time of one call, and of the start of a server ({TOOL_SECONDS:g})"
    parser.add_argument("--tool-timeout", type=float, metavar="SECONDS", default=TOOL_SECONDS, help=text)
    text = "neither read nor keep the lines and the conversation of this chat for later ones"
    parser.add_argument("--no-history", action="store_true", help=text)
    parser.add_argument("--quiet", action="store_true", help="no progress and no notes on stderr")
    requirements.add_forms(parser)
    requirements.add_chat_template(parser)
    sampling.add_arguments(parser, "no limit but the context")
    parser.usage = "%(prog)s [OPTION ...] [MODEL]"
    parser.set_defaults(run=_chat, refuse=parser.error)


def _chat(arguments: Namespace) -> int:
    """Read the conversation of a file, which may be missing, before the libraries are imported, and chat."""
    if arguments.load is not None:
        arguments.load = arguments.load, read_messages(Path(arguments.load).expanduser())
    return deferred("rekindle.cli.chat.conversing", "chat")(arguments)
