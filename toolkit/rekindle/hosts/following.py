"""A process that follows: it joins its leader, opens what that asks for, and runs its orders."""

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
from rekindle.core.device.orders import TickOrder, Use, let_go
from rekindle.core.errors import HostLost, HostRefused, RekindleError
from rekindle.core.markup import quantity
from rekindle.hosts import joining
from rekindle.hosts.address import Address
from rekindle.hosts.agreement import of_code
from rekindle.hosts.link import Frame, Link, LinkLost, greet
from rekindle.hosts.opening import Share, settings_of
from rekindle.hosts.secret import shared_secret
from rekindle.hosts.wire import order_of

Say = Callable[[str], None]
RETRY_SECONDS = 0.3
END_SECONDS = 2.0
"""How long the end of a program is waited for when the leader has ended; another process may never take part in it."""


def follow(
    address: Address,
    say: Say,
    gone: Callable[[str, int], None],
    *,
    secret: str | None = None,
    index: int | None = None,
    model: str | None = None,
) -> None:
    """Follow a leader until it ends. This process's devices must not have been used yet.

    Args:
        address: where the leader listens, or will.
        say: told what happens.
        gone: called on another thread with why the leader is gone, and with the status to end with: 0 if it has ended
            as it should, and this thread is not yet done with what it was told. It must end the process, since this
            thread may be within a program that waits for the leader.
        secret: see `Hosts`.
        index: the number of this process, from 1 on, which compiled programs are stored for; None is the next that is
            free.
        model: where the model is on this machine, if it is elsewhere than on the leader's.

    Raises:
        HostRefused: the secret or the version is another, or the number is taken.
        HostLost: the leader is gone, or another follower.
        ConfigError: jax has used this process's devices, or the processes cannot be joined.
    """
    joining.require_untouched()
    link = _connected(address, shared_secret(secret), say)
    try:
        link.send({"say": "join", "index": index, "facts": of_code()})
        said = link.receive().header
    except LinkLost as error:
        link.close()
        raise HostLost(f"the leader at {address} is gone: {error}") from error
    if said["say"] != "welcome":
        link.close()
        raise HostRefused(f"the leader at {address} has turned this process away: {said['why']}")
    joining.follow(address.host, said["port"], said["of"], said["index"])
    say(f"following {address} as process {said['index']} of {said['of']}")
    frames = _frames(link, address, gone)
    try:
        _serve(frames, link, model, say)
    except BaseException as error:
        _tell(link, {"say": "failed", "why": f"{type(error).__name__}: {error}"})
        raise


def _connected(address: Address, secret: bytes, say: Say) -> Link:
    waiting = False
    while True:
        try:
            return greet(socket.create_connection(address), secret, "follower")
        except (OSError, LinkLost) as error:
            if not waiting:
                waiting = True
                say(f"waiting for a leader at {address} ({error})")
            sleep(RETRY_SECONDS)


def _frames(link: Link, address: Address, gone: Callable[[str, int], None]) -> SimpleQueue[Frame]:
    """Return a queue of what the leader says, which a thread reads, so that its end is noticed at any time."""
    frames: SimpleQueue[Frame] = SimpleQueue()

    def read() -> None:
        try:
            while (frame := link.receive()).header["say"] not in ("end", "over"):
                frames.put(frame)
            frames.put(frame)
            sleep(END_SECONDS)  # where this process can end by itself, it does
            if frame.header["say"] == "end":
                gone(f"the leader at {address} has ended", 0)
            else:
                gone(f"the leader at {address} has ended this process: {frame.header['why']}", 1)
        except LinkLost as error:
            gone(f"the leader at {address} is gone: {error}", 1)

    threading.Thread(target=read, name="rekindle-leader", daemon=True).start()
    return frames


def _serve(frames: SimpleQueue[Frame], link: Link, model: str | None, say: Say) -> None:
    """Serve one session after the other, until the leader ends."""
    while True:
        said = frames.get().header
        match said["say"]:
            case "open":
                with settings_of(said).applied():
                    share = _opened(said, link, model, say)
                    if share is not None:
                        with share.resources:
                            _obey(frames, share, link, say)
            case "end":
                say("the leader has ended")
                return
            case "over":
                raise HostLost(f"the leader has ended this process: {said['why']}")


def _opened(said: dict[str, Any], link: Link, model: str | None, say: Say) -> Share | None:
    """Open what the leader asks for; None if this process cannot, of which both are told."""
    say(f"opening {model or said['model']} on {said['settings']['tensor']} devices of all processes")
    with _answered(link, {"session": said["session"], "load": 0}, say):
        share = Share.opened(said, model)
        say("ready for the leader's orders")
        return share
    return None


def _obey(frames: SimpleQueue[Frame], share: Share, link: Link, say: Say) -> None:
    """Follow orders until the session is closed; no more than two steps are under way at a time."""
    executables, state, count = share.executables, share.state, 0
    loading: dict[int, Future[list[jax.Array] | None]] = {}
    before: Any = None
    while (frame := frames.get()).header["say"] not in ("close", "end", "over"):
        if frame.header["say"] == "load":
            loading[frame.header["load"]] = soon(partial(_loaded, share, frame.header, link, say), "weights")
            continue
        count += 1
        order = order_of(frame)
        if isinstance(order, Use):
            weights = loading[order.number].result()
            assert weights is not None, "what could not be read is not used"
            state.weights = weights
            let_go()
            loading = {number: each for number, each in loading.items() if number > order.number}
            continue
        done = state.take(order, executables.run(order.key, *state.arguments(order)))
        if isinstance(order, TickOrder):
            jax.block_until_ready(before)
            before = done
    made = f"{executables.making.loads} programs were loaded and {executables.making.compilations} compiled"
    say(f"the session is closed after {quantity(count, 'order')}; {made}")
    if frame.header["say"] != "close":
        frames.put(frame)


def _loaded(share: Share, said: dict[str, Any], link: Link, say: Say) -> list[jax.Array] | None:
    """Read the weights that the leader asks for; None if this process cannot, of which both are told."""
    say(f"reading the weights of {said['model']}")
    with _answered(link, {"session": said["session"], "load": said["load"]}, say):
        return share.load(said)
    return None


@contextmanager
def _answered(link: Link, about: dict[str, Any], say: Say) -> Iterator[None]:
    """Tell the leader whether a block went well; if not, say why, and leave the block as if it had."""
    try:
        yield
    except (RekindleError, OSError) as error:
        say(f"it cannot be opened: {error}")
        _tell(link, {"say": "refused", "why": str(error), **about})
    else:
        _tell(link, {"say": "ready", **about})


def _tell(link: Link, header: dict[str, Any]) -> None:
    try:
        link.send(header)
    except LinkLost:  # the thread that reads hears of it too
        return
