"""Keys while a model is opened or answers, kept for the next line of input."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_keys() -> Iterator[None]:
    """Hide typed keys and `^C` during a block; no-op without a terminal."""
    try:
        import termios
    except ImportError:  # Windows shows no keys that a program has not read
        yield
        return
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    flags = list(before)
    flags[3] &= ~(termios.ECHO | termios.ECHONL)
    termios.tcsetattr(terminal, termios.TCSADRAIN, flags)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
