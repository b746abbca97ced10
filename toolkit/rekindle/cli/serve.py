"""`python -m rekindle serve`: serve models to clients of OpenAI's API, until SIGTERM or Ctrl-C."""

import logging
import os
import signal
import socket
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import rekindle
from rekindle.cli import requirements
from rekindle.core.checkpoints.embedded import NAME
from rekindle.core.concurrency.collector import leave_out
from rekindle.core.concurrency.feed import Feed
from rekindle.core.errors import ConfigError, not_installed
from rekindle.core.policy import POLICIES
from rekindle.core.route import ROUTES
from rekindle.core.server_settings import ServerOptions, ServerSettings
from rekindle.session.serving import KEEP_ALIVE_SECONDS, models_in

if TYPE_CHECKING:
    from rekindle.server.listening.running import Server

SIGNALS = (signal.SIGINT, signal.SIGTERM)
KEYS_VARIABLE = "REKINDLE_API_KEY"
TABLES: Final = ".toml"
"""The suffix of files with a table for each model."""
ADMIN_KEYS_VARIABLE = "REKINDLE_ADMIN_KEY"
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
    parser.set_defaults(run=serve)


def serve(arguments: Namespace) -> int:
    """Serve one model or several. The first signal shuts down gracefully, the second one immediately."""
    options: ServerOptions = {
        "host": arguments.host,
        "port": arguments.port,
        "api_keys": arguments.api_key or list(filter(None, [os.environ.get(KEYS_VARIABLE)])),
        "admin_keys": arguments.admin_key or list(filter(None, [os.environ.get(ADMIN_KEYS_VARIABLE)])),
        "origins": arguments.cors,
        "grace": arguments.grace,
        "strict": arguments.strict,
        "keep_responses": arguments.keep_responses,
        "ssl_certfile": arguments.ssl_certfile,
        "ssl_keyfile": arguments.ssl_keyfile,
    }
    _check(ServerSettings.of(options), arguments.otlp_traces_endpoint)
    names = arguments.models or [NAME]
    keep_alive = KEEP_ALIVE_SECONDS if arguments.keep_alive is None else arguments.keep_alive
    if len(names) > 1 or names[0].endswith(TABLES):
        _run(arguments, rekindle.serve_sync(_models(arguments, names), keep_alive=keep_alive, **options))
        return 0
    if arguments.keep_alive is not None:
        raise ConfigError("--keep-alive is for a server of several models: name another one, or leave it out")
    if arguments.chat_template is None and not arguments.quiet and requirements.lacks_template(names[0]):
        _say(
            f"{names[0]} has no chat template, so chats are refused: give the template of its family with "
            "--chat-template FILE, or send texts to /v1/completions"
        )
    opening = rekindle.open_sync(
        names[0],
        progress=not arguments.quiet,
        revision=arguments.revision,
        chat_template=arguments.chat_template,
        adapters=dict(arguments.adapter),
        **requirements.settings_of(arguments),
    )
    with opening as session:
        _run(arguments, session.serve_sync(name=arguments.name, **options))
        if session.error is not None:  # the server ended because the session failed
            raise session.error
    return 0


def _models(arguments: Namespace, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the keywords of `open` for each model of a server of several, by its name for clients.

    Raises:
        ConfigError: an argument is for one model alone, or two models have the same name.
    """
    for flag in ("name", "adapter", "revision", "chat_template"):
        if getattr(arguments, flag):
            raise ConfigError(
                f"--{flag.replace('_', '-')} is for one model: for several, write a .toml file with a table for each"
            )
    from rekindle.server.models.served import short_name

    settings = requirements.settings_of(arguments)
    models: dict[str, dict[str, Any]] = {}
    for name in names:
        tables = models_in(name) if name.endswith(TABLES) else {short_name(name): {"model": name}}
        for each, options in tables.items():
            if each in models:
                raise ConfigError(f"two models are named {each!r}: write a .toml file with a name for each")
            models[each] = settings | options
    return models


def _run(arguments: Namespace, server: "Server") -> None:
    """Print the address of a server, and wait for its end."""
    _log(arguments)
    if server.public:
        _say(f"any client with access to {arguments.host} can use the model; --api-key requires a key")

    def end(number: int, frame: object) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler)
        server.stop()
        if not arguments.quiet:
            _say(f"requests in flight have {arguments.grace:g} s to finish; Ctrl-C cancels them now")

    leave_out()
    previous = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        print(f"{server.url}/v1", flush=True)
        if not arguments.quiet:
            names = " or ".join(f"model={name!r}" for name in server.names)
            _say(f"this is the base_url for OpenAI's clients, with {names}; Ctrl-C ends the server")
        wait_for_signals(server.closed)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _check(settings: ServerSettings, traces_endpoint: str | None) -> None:
    """Check the address, the certificate and the installation early, since opening a model may take minutes.

    Also start the export of spans.

    Raises:
        ConfigError: a server could not start at this address or with this certificate, or spans cannot be exported.
    """
    try:
        from rekindle.server.listening.running import bind, check_certificate
    except ImportError as error:
        raise not_installed("the server", "server", error) from error
    check_certificate(settings)
    bind(settings).close()
    if traces_endpoint is not None:
        export_spans(traces_endpoint)


def _log(arguments: Namespace) -> None:
    """Write the server's log to stderr, as the arguments ask."""
    from rekindle.server.tracing.log import LOG, TraceFormatter
    from rekindle.server.tracing.spans import REQUESTS

    if arguments.quiet and not arguments.log_requests:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(TraceFormatter("rekindle: %(message)s"))
    LOG.addHandler(handler)
    LOG.propagate = False
    LOG.setLevel(logging.WARNING if arguments.quiet else logging.INFO)
    REQUESTS.setLevel(logging.INFO if arguments.log_requests else logging.WARNING)


def export_spans(url: str) -> None:
    """Export spans of OpenTelemetry to a collector, such as "http://localhost:4318/v1/traces".

    Raises:
        ConfigError: the extra `rekindle-llm[otel]` is not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise not_installed("the export of spans", "otel", error) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "rekindle"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    trace.set_tracer_provider(provider)


def wait_for_signals(closed: Feed[None]) -> None:
    """Block until a feed is closed, waking only to run signal handlers.

    Python runs the handlers in this thread, but the system may deliver a signal to another one. A wakeup socket
    interrupts the wait in either case.
    """
    receiver, sender = socket.socketpair()

    def end() -> None:
        with suppress(OSError):  # the wait has ended, or the socket is full and wakes the thread anyway
            sender.send(b"\0")

    with receiver, sender:
        sender.setblocking(False)
        previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        try:
            closed.when_closed(end)
            while not closed.closed:
                receiver.recv(1)
        finally:
            signal.set_wakeup_fd(previous)


def _say(text: str) -> None:
    print(f"rekindle: {text}", file=sys.stderr)
