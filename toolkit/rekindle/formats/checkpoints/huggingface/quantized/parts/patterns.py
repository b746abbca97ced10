"""Patterns in a config for the names of modules."""

from rekindle.formats.patterns import match_start


def is_match(pattern: str, module: str, source: str) -> bool:
    """Return True if a module's name begins with a match of the pattern.

    Raises:
        CheckpointError: the pattern is not a regular expression, or takes too long.
    """
    return match_start(pattern, module, f"{source}: its quantization") is not None
