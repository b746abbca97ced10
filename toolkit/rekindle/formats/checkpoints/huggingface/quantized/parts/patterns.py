"""Patterns in a config for the names of modules."""

import re

from rekindle.core.errors import CheckpointError


def is_match(pattern: str, module: str, source: str) -> bool:
    """Return True if a module's name begins with a match of the pattern.

    Raises:
        CheckpointError: the pattern is not a regular expression.
    """
    try:
        return re.match(pattern, module) is not None
    except re.error as error:
        raise CheckpointError(
            f"{source}: the pattern {pattern!r:.80} in its quantization is not a regular expression ({error}). Fetch "
            "the model again; if it was edited, correct its config"
        ) from error
