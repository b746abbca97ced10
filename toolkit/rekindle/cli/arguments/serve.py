"""`python -m rekindle serve`: its arguments."""

from argparse import ArgumentParser
from typing import Final

from rekindle.cli import requirements
from rekindle.cli.starting import deferred
from rekindle.core.policy import POLICIES
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.settings.route import ROUTES

KEYS_VARIABLE: Final = "REKINDLE_API_KEY"
ADMIN_KEYS_VARIABLE: Final = "REKINDLE_ADMIN_KEY"
EXAMPLES: Final = (
    "rekindle serve smollm2-135m-instruct",
    "rekindle serve owner/name --host 0.0.0.0 --port 8080 --api-key KEY",
    "rekindle serve owner/name --adapter sql=adapters/sql",
    "rekindle serve smollm2-135m-instruct owner/name --keep-alive 600",
    "rekindle serve models.toml",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    text = f"{requirements.MODELS}, or a .toml file with a table for each model; several share one server ({NAME})"
    parser.add_argument("models", metavar="MODEL", nargs="*", help=text)
    requirements.add_forms(parser)
    text = "time until an idle model closes, for a server of several (300)"
    parser.add_argument("--keep-alive", type=float, metavar="SECONDS", help=text)
    text = "keep the responses of /v1/responses on disk beside the caches, for conversations after a restart"
    parser.add_argument("--keep-responses", action="store_true", help=text)
    text = "a line on stderr for each request, with the id of its trace"
    parser.add_argument("--log-requests", action="store_true", help=text)
    text = "export a span of OpenTelemetry for each request to this collector, by OTLP over HTTP"
    parser.add_argument("--otlp-traces-endpoint", metavar="URL", help=text)
    parser.add_argument("--ssl-certfile", metavar="FILE", help="the certificate for HTTPS, in PEM format")
    parser.add_argument("--ssl-keyfile", metavar="FILE", help="the private key of the certificate, if in another file")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at (127.0.0.1, this machine only)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="the port; 0 picks a free one (8000)")
    text = "a name of the model for clients; may be repeated, and answers have the first (MODEL, or the end of a path)"
    parser.add_argument("--name", action="append", help=text)
    text = f"an accepted API key; may be repeated (the key in {KEYS_VARIABLE}, else no key is required)"
    parser.add_argument("--api-key", metavar="KEY", action="append", help=text)
    text = (
        "a key of administrators, to pause the server and replace weights and adapters; may be repeated "
        f"(the key in {ADMIN_KEYS_VARIABLE}, else nobody may)"
    )
    parser.add_argument("--admin-key", metavar="KEY", action="append", help=text)
    text = "origin of a web page with access from a browser, or * for all; may be repeated"
    parser.add_argument("--cors", metavar="ORIGIN", action="append", default=[], help=text)
    text = "time for requests in flight to finish on shutdown (30)"
    parser.add_argument("--grace", type=float, default=30.0, metavar="SECONDS", help=text)
    text = "time that a connection without a request stays open; more than those of the clients' pools (120)"
    parser.add_argument("--timeout-keep-alive", type=float, default=120.0, metavar="SECONDS", help=text)
    text = "refuse hints without effect on the model, such as verbosity, instead of ignoring them"
    parser.add_argument("--strict", action="store_true", help=text)
    parser.add_argument("--policy", choices=tuple(POLICIES), help="the order of waiting requests (fcfs)")
    text = "the number of engines in this process, each on separate devices (1)"
    parser.add_argument("--replicas", type=int, metavar="N", help=text)
    text = "the choice of replica for a request (prefix: the one with the earliest first token)"
    parser.add_argument("--route", choices=tuple(ROUTES), help=text)
    text = "time for one tick on the device before its requests fail, or inf (1,800 on CPUs, else 120)"
    parser.add_argument("--watchdog-timeout", type=float, metavar="SECONDS", help=text)
    requirements.add_chat_template(parser)
    requirements.add_adapters(parser)
    requirements.add_mesh(parser)
    requirements.add_settings(parser)
    parser.usage = "%(prog)s [OPTION ...] [MODEL ...]"
    parser.set_defaults(run=deferred("rekindle.cli.serve", "serve"))
