"""The parts of the keys of what is stored, in words."""

from typing import Final

MEANT: Final = {
    "code": "the sources of Rekindle",
    "statics": "sizes that are compiled in",
    "arguments": "shapes of what programs take",
    "shardings": "places of what programs take",
    "model": "the model's config",
    "weights": "the weight files: names, sizes, times of change, samples of their content",
    "page": "dtype and shape of a page",
    "jax_config": "settings of JAX",
    "xla_flags": "XLA_FLAGS and LIBTPU_INIT_ARGS",
    "packages": "versions of what compiles",
    "host_cpu": "the CPU that is compiled for",
}
"""What parts are, where their names do not say it."""

NOTHING: Final = "(nothing)"
"""The value of a part that is empty."""


def part_words(part: str) -> str:
    """What a part is called, and what it is."""
    return f"{part} ({MEANT[part]})" if part in MEANT else part
