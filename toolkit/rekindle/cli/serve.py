"""`python -m rekindle serve`: a model for clients of OpenAI's API, until SIGTERM or Ctrl-C."""

import os
import signal
import socket
import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress

import rekindle
from rekindle.cli import needed
from rekindle.core.concurrency.feed import Feed
from rekindle.core.errors import not_installed
from rekindle.core.policy import POLICIES
from rekindle.core.route import ROUTES

SIGNALS = (signal.SIGINT, signal.SIGTERM)
KEYS_VARIABLE = "REKINDLE_API_KEY"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the command's arguments."""
    needed.add_model(parser)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at (127.0.0.1, this machine alone)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="0 takes one that is free (8000)")
    parser.add_argument("--name", help="what clients call the model (MODEL, of a path its last part)")
    what = f"a key that clients have to give; may be repeated (without any, that in {KEYS_VARIABLE}, or none)"
    parser.add_argument("--api-key", metavar="KEY", action="append", help=what)
    what = "a web page's origin that may ask from a browser, or * for all; may be repeated"
    parser.add_argument("--cors", metavar="ORIGIN", action="append", default=[], help=what)
    what = "how long requests under way may take to end when the server does (30)"
    parser.add_argument("--grace", type=float, default=30.0, metavar="SECONDS", help=what)
    parser.add_argument("--policy", choices=tuple(POLICIES), help="who of those that wait goes next (fcfs)")
    what = "engines of this process, each on devices of its own (1)"
    parser.add_argument("--replicas", type=int, metavar="N", help=what)
    what = "which of them gets a request (prefix: the one that comes to its first token soonest)"
    parser.add_argument("--route", choices=tuple(ROUTES), help=what)
    what = "how long the device may take for one tick before its requests fail, or inf (1,800 on CPUs, else 120)"
    parser.add_argument("--watchdog-timeout", type=float, metavar="SECONDS", help=what)
    needed.add_mesh(parser)
    needed.add_settings(parser)


def serve(arguments: Namespace) -> int:
    """Open the model and serve it. The first signal ends that in order, and a second one at once."""
    keys = arguments.api_key or list(filter(None, [os.environ.get(KEYS_VARIABLE)]))
    _check(arguments.host, arguments.port)
    settings = needed.settings_of(arguments)
    opened = rekindle.open_sync(arguments.model, progress=not arguments.quiet, revision=arguments.revision, **settings)
    with opened as session:
        server = session.serve_sync(
            host=arguments.host,
            port=arguments.port,
            name=arguments.name,
            api_keys=keys,
            origins=arguments.cors,
            grace=arguments.grace,
        )
        if server.public:
            _say(f"whoever reaches {arguments.host} can use the model; --api-key asks for a key")

        def end(number: int, frame: object) -> None:
            for each in SIGNALS:
                signal.signal(each, signal.default_int_handler)
            server.stop()
            if not arguments.quiet:
                _say(f"requests under way have {arguments.grace:g} s to end; Ctrl-C ends them now")

        before = {number: signal.signal(number, end) for number in SIGNALS}
        try:
            print(f"{server.url}/v1", flush=True)
            if not arguments.quiet:
                _say(f"this is the base_url for OpenAI's clients, with model={server.name!r}; Ctrl-C ends the server")
            wait_for_signals(server.closed)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if session.error is not None:  # which ended the server
            raise session.error
    return 0


def _check(host: str, port: int) -> None:
    """Check that a server could start there, before a model is opened, which may take minutes.

    Raises:
        ConfigError: it could not.
    """
    try:
        from rekindle.server.running import bound
    except ImportError as error:
        raise not_installed("the server", "server", error) from error
    bound(host, port).close()


def wait_for_signals(closed: Feed[None]) -> None:
    """Block until a feed is closed, and run the handlers of signals meanwhile, without waking for anything else.

    Python runs them in this thread, but the system may give a signal to another, which does not wake this one.
    """
    woken, wake = socket.socketpair()

    def end() -> None:
        with suppress(OSError):  # an interrupt has ended the wait, or so many signals wait that it is woken anyway
            wake.send(b"\0")

    with woken, wake:
        wake.setblocking(False)
        before = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        try:
            closed.when_closed(end)
            while not closed.closed:
                woken.recv(1)
        finally:
            signal.set_wakeup_fd(before)


def _say(text: str) -> None:
    print(f"rekindle: {text}", file=sys.stderr)
