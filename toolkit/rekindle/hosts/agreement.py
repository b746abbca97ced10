"""Facts on which all processes of a session must agree: versions, model, and computation."""

from collections.abc import Mapping
from importlib import metadata
from typing import Final

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.programs.restore_report import difference_text
from rekindle.core.device.programs.key import CODE, PACKAGES
from rekindle.core.store.sources import SOURCES
from rekindle.core.store.validity import shorten
from rekindle.formats.checkpoints.weights import weights_digest

LOCAL_PARTS: Final = ("topology", "host_cpu", "python")
"""Parts of a program's key allowed to differ between processes."""


def code_facts() -> dict[str, str]:
    """Return the versions of Rekindle's code and of the packages in a program's key."""
    packages = " ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    return {"code": SOURCES.digest(CODE), "packages": packages}


def model_facts(blueprint: Blueprint) -> dict[str, str]:
    """Return the identity of a model's weights, from their files, and of its computation.

    Raises:
        OSError: a weight file cannot be read.
    """
    step = blueprint.program_keys()(blueprint.largest_step).parts()
    parts = {name: value for name, value in step.items() if name not in LOCAL_PARTS}
    return {"weights": weights_digest(blueprint.checkpoint), **parts}


def differences(here: Mapping[str, str], peer: Mapping[str, str]) -> str:
    """Return a description of the differing parts; empty if all are equal."""
    names = [name for name in {**here, **peer} if here.get(name) != peer.get(name)]
    pairs = {name: shorten((here.get(name, ""), peer.get(name, ""))) for name in names}
    return "; ".join(difference_text(name, *pair) for name, pair in pairs.items())
