"""Fingerprint of a session: a short digest of everything with an effect on the bits of answers."""

from collections.abc import Mapping

from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.client.adapters import AdapterInfo
from rekindle.core.content import content_digest
from rekindle.core.store.validity import code_digest
from rekindle.mapping.shaping import shaping_of

DIGITS = 10


def base_of(loaded_engine: LoadedEngine) -> str:
    """Return the digest of the constant content of a session: see `Session.fingerprint`."""
    settings, deployment = loaded_engine.settings, loaded_engine.deployment
    return content_digest(
        [
            shaping_of(loaded_engine),
            loaded_engine.defaults,
            deployment.devices // deployment.copies,
            [settings.deterministic, settings.decode_steps, settings.prefill_chunk, settings.ticks],
            [settings.prefill_buckets or (), settings.decode_buckets or ()],
            code_digest(),
        ]
    )


def fingerprint_of(base: str, weights: str, adapters: Mapping[str, AdapterInfo]) -> str:
    """Return the fingerprint, given the digests from `base_of`, of the weights and of the adapters."""
    return content_digest([base, weights, {name: each.digest for name, each in sorted(adapters.items())}])[:DIGITS]
