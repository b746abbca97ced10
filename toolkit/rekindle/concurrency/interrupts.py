"""What an interrupt says of the call that it ends."""

from asyncio import CancelledError

from rekindle.errors import AnyError, told_briefly


def brief(left: AnyError) -> AnyError:
    """Return an error that ends a wait; a cell shows an interrupt as it shows the errors of this package."""
    return told_briefly(left) if isinstance(left, KeyboardInterrupt | CancelledError) else left


def tell(left: BaseException, words: str, name: str, value: object) -> None:
    """Have an error that ends a wait say these words, and give it what had come; other errors than interrupts stay.

    It stays the error that it is, because event loops and timeout scopes know their cancellations by it.

    Args:
        left: a KeyboardInterrupt or asyncio's CancelledError, or any other.
        words: its message if it has none, else a note.
        name, value: an attribute that it gets.
    """
    if isinstance(left, KeyboardInterrupt | CancelledError):
        vars(left)[name] = value
        say(left, words)


def say(left: BaseException, words: str) -> None:
    """Have an error that ends a wait say these words, as `tell` does where there is nothing to give."""
    if not isinstance(left, KeyboardInterrupt | CancelledError):
        return
    if left.args:
        left.add_note(words)
    else:
        left.args = (words,)
