"""Fingerprint of a session: a short digest of everything with an effect on the bits of its answers."""

import hashlib
import json

from rekindle.core.engine.loaded_engine import LoadedEngine
from rekindle.core.store.snapshot_key import content_fingerprint
from rekindle.core.store.validity import code_digest

DIGITS = 10


def fingerprint_of(loaded_engine: LoadedEngine) -> str:
    """Return a digest of weights, their numbers, shapes of programs, devices and code.

    The weight files are read in samples. Without readable files, as for a model of arrays, the name of the model stands
    for them.
    """
    settings, deployment = loaded_engine.settings, loaded_engine.deployment
    try:
        weights = content_fingerprint(loaded_engine.checkpoint.files)
    except OSError:
        weights = loaded_engine.source
    parts = [
        repr(loaded_engine.model),
        weights if loaded_engine.checkpoint.files else loaded_engine.source,
        deployment.numbers,
        deployment.form.digest,
        deployment.implementation,
        deployment.platform,
        deployment.devices // deployment.copies,
        [settings.deterministic, settings.decode_steps, settings.prefill_chunk, settings.ticks],
        [list(settings.prefill_buckets or ()), list(settings.decode_buckets or ())],
        code_digest(),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:DIGITS]
