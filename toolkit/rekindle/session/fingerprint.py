"""Fingerprint of a session: a short digest of everything with an effect on the bits of answers."""

from collections.abc import Mapping

from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.client.adapters import AdapterInfo
from rekindle.core.content import content_digest

DIGITS = 10


def base_of(loaded_engine: LoadedEngine) -> str:
    """Return the digest of the constant content of a session: see `Session.fingerprint`."""
    parts = loaded_engine.identity.taken_by("fingerprint")
    return content_digest({name: each for name, each in parts.items() if name != "weights"})


def fingerprint_of(base: str, weights: str, adapters: Mapping[str, AdapterInfo]) -> str:
    """Return the fingerprint, given the digests from `base_of`, of the weights and of the adapters."""
    return content_digest([base, weights, {name: each.digest for name, each in sorted(adapters.items())}])[:DIGITS]
