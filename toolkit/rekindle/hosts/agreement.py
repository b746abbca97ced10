"""What has to be the same in all processes that serve one session."""

from collections.abc import Mapping
from importlib import metadata
from typing import Final

from rekindle.core.device.programs.key import PACKAGES
from rekindle.core.engine.loading.blueprint import Blueprint
from rekindle.core.store.restore_report import difference_text
from rekindle.core.store.snapshot_key import content_fingerprint
from rekindle.core.store.validity import code_digest, shorten

OWN: Final = ("topology", "host_cpu", "python")
"""Parts of a program's key in which processes may differ."""


def of_code() -> dict[str, str]:
    """Return the versions of what computes."""
    packages = " ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    return {"code": code_digest(), "packages": packages}


def of_model(blueprint: Blueprint) -> dict[str, str]:
    """Return what says which model this is, and how it is computed; the weight files are looked at.

    Raises:
        OSError: one of them cannot be read.
    """
    step = blueprint.program_keys()(blueprint.largest_step).parts()
    parts = {name: value for name, value in step.items() if name not in OWN}
    return {"weights": content_fingerprint(blueprint.checkpoint.files), **parts}


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return in words how the parts differ; empty if they do not."""
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    pairs = {name: shorten((here.get(name, ""), there.get(name, ""))) for name in names}
    return "; ".join(difference_text(name, *pair) for name, pair in pairs.items())
