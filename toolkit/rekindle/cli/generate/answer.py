"""Generation on the terminal: its text as it arrives."""

from rekindle.client.handle import Stream
from rekindle.results.generation import Generation


def print_stream(stream: Stream) -> Generation:
    """Print the text of a stream as it arrives; return the whole generation."""
    for piece in stream:
        print(piece.text, end="", flush=bool(piece.text))
    print(flush=True)
    return stream.handle.result()
