"""Work on a thread with a stack of known size, for parsers whose recursion follows their input."""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from rekindle.core.concurrency.threads import soon

T = TypeVar("T")

STACK_BYTES: Final = 256 << 20
"""Size of the stack. Only the pages in use take memory."""
_size = threading.Lock()


def on_deep_stack(work: Callable[[], T]) -> T:
    """Run work on a thread with a stack of `STACK_BYTES`, wait for it, and return its result; it raises as `work`.

    Other stacks have 8 MiB or less, by the platform. The caller must not be an event loop's thread.
    """
    with _size:  # the size belongs to the process; a thread started by others meanwhile has a larger stack, unused
        size = threading.stack_size(STACK_BYTES)
        try:
            future = soon(work, "deep-stack")
        finally:
            threading.stack_size(size)
    return future.result()
