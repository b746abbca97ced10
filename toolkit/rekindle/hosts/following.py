"""Follower process: joins its leader, opens models on request, and runs the leader's orders."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from time import sleep
from typing import Any

import jax

from rekindle.core.concurrency.threads import soon
from rekindle.core.device.orders import TickOrder, Use, release_host_memory
from rekindle.core.errors import HostLost, HostRefused, RekindleError
from rekindle.core.words import quantity
from rekindle.hosts import joining
from rekindle.hosts.address import Address
from rekindle.hosts.agreement import code_facts
from rekindle.hosts.link import Frame, Link, LinkLost, greet
from rekindle.hosts.opening import ModelShard, settings_of
from rekindle.hosts.secret import shared_secret
from rekindle.hosts.wire import order_of

Say = Callable[[str], None]
RETRY_SECONDS = 0.3
END_SECONDS = 2.0
"""Seconds for a running program to complete after the leader's end; a collective in it may never complete."""


def follow(
    address: Address,
    say: Say,
    on_end: Callable[[str, int], None],
    *,
    secret: str | None = None,
    index: int | None = None,
    model: str | None = None,
) -> None:
    """Follow a leader until it ends. This process must not have used its devices yet.

    Args:
        address: the address of the leader, which need not listen yet.
        say: called with lines about the progress.
        on_end: called on another thread with the reason for the leader's end, and with an exit status. The status is 0
            if the leader ended regularly, but this thread was still busy `END_SECONDS` later. It must end the process,
            since this thread may be running a program with a collective that waits for the leader.
        secret: see `Hosts`.
        index: the number of this process, from 1 on, a key of stored programs; None for the next free number.
        model: the model's name or path on this machine, if it differs from the leader's.

    Raises:
        HostRefused: the secret or the version differs, or the number is taken.
        HostLost: the leader or another follower is gone.
        ConfigError: jax has used this process's devices, or the processes cannot be joined.
    """
    joining.require_untouched()
    link = _connect(address, shared_secret(secret), say)
    try:
        link.send({"say": "join", "index": index, "facts": code_facts()})
        header = link.receive().header
    except LinkLost as error:
        link.close()
        raise HostLost(f"the leader at {address} is gone: {error}") from error
    if header["say"] != "welcome":
        link.close()
        raise HostRefused(f"the leader at {address} has rejected this process: {header['why']}")
    joining.follow(address.host, header["port"], header["of"], header["index"])
    say(f"following {address} as process {header['index']} of {header['of']}")
    frames = _frames(link, address, on_end)
    try:
        _serve(frames, link, model, say)
    except BaseException as error:
        _send(link, {"say": "failed", "why": f"{type(error).__name__}: {error}"})
        raise


def _connect(address: Address, secret: bytes, say: Say) -> Link:
    waiting = False
    while True:
        try:
            return greet(socket.create_connection(address), secret, "follower")
        except (OSError, LinkLost) as error:
            if not waiting:
                waiting = True
                say(f"waiting for a leader at {address} ({error})")
            sleep(RETRY_SECONDS)


def _frames(link: Link, address: Address, on_end: Callable[[str, int], None]) -> SimpleQueue[Frame]:
    """Return a queue of the leader's messages. A thread reads them, so the leader's end is noticed at any time."""
    frames: SimpleQueue[Frame] = SimpleQueue()

    def read() -> None:
        try:
            while (frame := link.receive()).header["say"] not in ("end", "over"):
                frames.put(frame)
            frames.put(frame)
            sleep(END_SECONDS)  # the process may end by itself meanwhile
            if frame.header["say"] == "end":
                on_end(f"the leader at {address} has ended", 0)
            else:
                on_end(f"the leader at {address} has ended this process: {frame.header['why']}", 1)
        except LinkLost as error:
            on_end(f"the leader at {address} is gone: {error}", 1)

    threading.Thread(target=read, name="rekindle-leader", daemon=True).start()
    return frames


def _serve(frames: SimpleQueue[Frame], link: Link, model: str | None, say: Say) -> None:
    """Serve one session after another, until the leader ends."""
    while True:
        header = frames.get().header
        match header["say"]:
            case "open":
                with settings_of(header).apply():
                    shard = _open(header, link, model, say)
                    if shard is not None:
                        with shard.resources:
                            _run_orders(frames, shard, link, say)
            case "end":
                say("the leader has ended")
                return
            case "over":
                raise HostLost(f"the leader has ended this process: {header['why']}")


def _open(header: dict[str, Any], link: Link, model: str | None, say: Say) -> ModelShard | None:
    """Open the requested model and report the outcome; return None if this process cannot."""
    say(f"opening {model or header['model']} on {header['settings']['tensor']} devices of all processes")
    with _report_outcome(link, {"session": header["session"], "load": 0}, say):
        shard = ModelShard.open(header, model)
        say("ready for the leader's orders")
        return shard
    return None


def _run_orders(frames: SimpleQueue[Frame], shard: ModelShard, link: Link, say: Say) -> None:
    """Run orders until the session is closed, with at most two steps in flight."""
    executables, state, count = shard.executables, shard.state, 0
    loading: dict[int, Future[list[jax.Array] | None]] = {}
    previous: Any = None
    while (frame := frames.get()).header["say"] not in ("close", "end", "over"):
        if frame.header["say"] == "load":
            loading[frame.header["load"]] = soon(partial(_load, shard, frame.header, link, say), "weights")
            continue
        count += 1
        order = order_of(frame)
        if isinstance(order, Use):
            weights = loading[order.number].result()
            assert weights is not None, "the leader uses only weights read by all"
            state.use(weights)
            release_host_memory()
            loading = {number: each for number, each in loading.items() if number > order.number}
            continue
        done = state.take(order, executables.run(order.key, *state.arguments(order)))
        if isinstance(order, TickOrder):
            jax.block_until_ready(previous)
            previous = done
    programs = f"{executables.builder.loads} programs were loaded and {executables.builder.compilations} compiled"
    say(f"the session is closed after {quantity(count, 'order')}; {programs}")
    if frame.header["say"] != "close":
        frames.put(frame)


def _load(shard: ModelShard, header: dict[str, Any], link: Link, say: Say) -> list[jax.Array] | None:
    """Read the requested weights and report the outcome; return None if this process cannot."""
    say(f"reading the weights of {header['model']}")
    with _report_outcome(link, {"session": header["session"], "load": header["load"]}, say):
        return shard.load(header)
    return None


@contextmanager
def _report_outcome(link: Link, about: dict[str, Any], say: Say) -> Iterator[None]:
    """Report the outcome of a block to the leader; suppress errors of opening a model or reading weights."""
    try:
        yield
    except (RekindleError, OSError) as error:
        say(f"this failed: {error}")
        _send(link, {"say": "refused", "why": str(error), **about})
    else:
        _send(link, {"say": "ready", **about})


def _send(link: Link, header: dict[str, Any]) -> None:
    try:
        link.send(header)
    except LinkLost:  # the reading thread notices it too
        return
