"""Generation on the terminal: its text as it arrives."""

import sys

from rekindle.cli.chat.wrapping import WordWrap, columns
from rekindle.client.handle import Stream
from rekindle.results.generation import Generation


def print_stream(stream: Stream) -> Generation:
    """Print the text of a stream as it arrives, on a terminal broken between words; return the whole generation."""
    words = WordWrap(columns) if sys.stdout.isatty() else None
    for piece in stream:
        print(words.push(piece.text) if words else piece.text, end="", flush=bool(piece.text))
    print(words.finish() if words else "", flush=True)
    return stream.handle.result()
