"""The command `serve`: serve models to clients of OpenAI's API, until SIGTERM or Ctrl-C."""

import logging
import os
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import rekindle
from rekindle.cli import requirements
from rekindle.cli.arguments.serve import ADMIN_KEYS_VARIABLE, KEYS_VARIABLE
from rekindle.core.concurrency.feed import Feed
from rekindle.core.errors import ConfigError, not_installed
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.session.serving import KEEP_ALIVE_SECONDS, models_in
from rekindle.settings.server import ServerOptions, ServerSettings

if TYPE_CHECKING:
    from rekindle.server.listening.running import Server

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TABLES: Final = ".toml"
"""The suffix of files with a table for each model."""


def serve(arguments: Namespace) -> int:
    """Serve one model or several. The first signal shuts down gracefully, the second one immediately."""
    options: ServerOptions = {
        "host": arguments.host,
        "port": arguments.port,
        "api_keys": arguments.api_key or list(filter(None, [os.environ.get(KEYS_VARIABLE)])),
        "admin_keys": arguments.admin_key or list(filter(None, [os.environ.get(ADMIN_KEYS_VARIABLE)])),
        "origins": arguments.cors,
        "grace": arguments.grace,
        "timeout_keep_alive": arguments.timeout_keep_alive,
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
    option = "--chat-template FILE or NAME"
    has_files = arguments.chat_template or _warn_of_template(arguments, names[0], option, arguments.revision)
    opening = rekindle.open_sync(
        names[0],
        progress=not arguments.quiet,
        revision=arguments.revision,
        chat_template=arguments.chat_template,
        adapters=dict(arguments.adapter),
        **requirements.settings_of(arguments),
    )
    with opening as session:
        if not has_files:
            _warn_of_template(arguments, names[0], option, arguments.revision)
        _run(arguments, session.serve_sync(name=arguments.name, **options))
        if session.error is not None:  # the server ended because the session failed
            raise session.error
    return 0


def _warn_of_template(arguments: Namespace, model: str, option: str, revision: str | None = None) -> bool:
    """Warn of a model that cannot chat, with the option for a template; return True if its files are here."""
    if arguments.quiet:
        return True
    lacks_one = requirements.lacks_template(model, revision)
    if lacks_one:
        _say(
            f"{model} has no chat template, so chats are refused: give the template of its family with {option}, or "
            "send texts to /v1/completions"
        )
    return lacks_one is not None


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
            if "chat_template" not in options:
                option = "chat_template in its table of a .toml file"
                _warn_of_template(arguments, options["model"], option, options.get("revision"))
    return models


def _run(arguments: Namespace, server: "Server") -> None:
    """Print the address of a server, and wait for its end."""
    log_to_stderr(quiet=arguments.quiet, requests=arguments.log_requests)
    if server.public:
        _say(f"any client with access to {arguments.host} can use the model; --api-key requires a key")

    def end(number: int, frame: object) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.default_int_handler)
        server.stop()
        if not arguments.quiet:
            _say(f"requests in flight have {arguments.grace:g} s to finish; Ctrl-C cancels them now")

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


def log_to_stderr(*, quiet: bool, requests: bool = False) -> None:
    """Write the server's log to stderr: without its notes if quiet, and with a line for each request on demand."""
    from rekindle.server.tracing.log import LOG, TraceFormatter
    from rekindle.server.tracing.spans import REQUESTS

    if quiet and not requests:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(TraceFormatter("rekindle: %(message)s"))
    LOG.addHandler(handler)
    LOG.propagate = False
    LOG.setLevel(logging.WARNING if quiet else logging.INFO)
    REQUESTS.setLevel(logging.INFO if requests else logging.WARNING)


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
