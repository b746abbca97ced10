"""The provider's name for inspect-ai: `inspect eval task.py --model rekindle/MODEL`.

inspect-ai imports this module in each of its processes, by an entry point. The provider comes at its first use, so
evaluations of other models do not wait for JAX. This package needs the extra `rekindle-llm[inspect]`.
"""

from typing import TYPE_CHECKING

from inspect_ai.model import modelapi

if TYPE_CHECKING:
    from rekindle.session.inspect_ai.provider import RekindleAPI


@modelapi(name="rekindle")  # type: ignore[untyped-decorator, unused-ignore]  # inspect-ai may not be installed
def rekindle() -> "type[RekindleAPI]":
    """Return the provider of models named `rekindle/MODEL`."""
    from rekindle.session.inspect_ai.provider import RekindleAPI

    return RekindleAPI
