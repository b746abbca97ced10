"""Runs an installed distribution, without a compiler in reach: `python tests/installed.py [KERNELS]`.

A tiny model answers twice with the same tokens, by kernels of the given kind. Nothing of the checkout is imported.
"""

import asyncio
import os
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

MODEL = Path(__file__).resolve().parent / "goldens" / "families" / "qwen3"
TOKENS = [5, 17, 29, 41]


async def answers() -> list[list[int]]:
    """Return the tokens of two answers of the model to one prompt."""
    import rekindle

    async with rekindle.open(MODEL, progress=False) as session:
        return [list((await session.generate(token_ids=TOKENS, max_tokens=8)).token_ids) for _ in range(2)]


def main() -> None:
    """Answer, and exit with a message if the kernels are of another kind or the answers differ."""
    expected = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    os.environ["PATH"] = str(Path(sys.executable).parent)  # no compiler
    os.environ.pop("CXX", None)
    from rekindle_kernels.cpu import build, library

    # A compilation that outlives the session stores its program in the folder.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["REKINDLE_CACHE"] = folder
        first, second = asyncio.run(answers())
    reason = library.unavailable_reason()
    kernels = "xla" if reason else "cpu"
    wheel = distribution("rekindle-llm")
    sys.stdout.write(
        f"{wheel.name} {wheel.version} in {build.PACKAGE}: {reason or library.instruction_set()}, {first}\n"
    )
    if kernels != expected:
        sys.exit(f"expected {expected} kernels, got {kernels}: {reason}")
    if first != second or len(first) != 8:
        sys.exit(f"expected 8 tokens twice, got {first} and {second}")


if __name__ == "__main__":
    main()
