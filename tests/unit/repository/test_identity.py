"""What survives a process is found again by parts of the identity: each part changes each key that takes it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rekindle.assembly.building import defaults_of
from rekindle.assembly.loading import identity as identities
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.identity import LEFT_OUT, PARTS, Identity, Part, Survivor
from rekindle.core.device.place import Place
from rekindle.core.device.programs import key as program_key
from rekindle.core.models.config import ModelConfig
from rekindle.core.store.sources import SOURCES
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.checkpoints.weights import weights_digest
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import Family, read_llama
from rekindle.mapping.shaping import Shaping
from rekindle.replicas.recipe import Recipe, content_of
from rekindle.settings.engine import Settings
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from rekindle_kernels.cpu import library

SETTINGS = Settings(page_size=16, num_pages=40, max_running=4, max_prefill_tokens=64)


@dataclass(frozen=True)
class Start:
    """The arguments of one start: what a user gives, for the model in a directory."""

    settings: Settings = SETTINGS
    family: Family | None = None
    tensor: int = 1


Change = Callable[[Path, pytest.MonkeyPatch], Start]
"""Function that changes a content under its name, and returns the arguments of the next start."""


def edited(file: str, *path: str, to: Any) -> Change:
    """Return a change of one value in a JSON file of the model."""

    def change(directory: Path, _: pytest.MonkeyPatch) -> Start:
        content = json.loads((directory / file).read_text()) if (directory / file).is_file() else {}
        place = content
        for name in path[:-1]:
            place = place[name]
        assert place.get(path[-1]) != to
        place[path[-1]] = to
        (directory / file).write_text(json.dumps(content))
        return Start()

    return change


def started(**settings: Any) -> Change:
    return lambda *_: Start(replace(SETTINGS, **settings))


def patched(owner: Any, name: str, value: Any) -> Change:
    def change(_: Path, patch: pytest.MonkeyPatch) -> Start:
        patch.setattr(owner, name, value)
        return Start()

    return change


def trained(directory: Path, _: pytest.MonkeyPatch) -> Start:
    """Change one number of one norm."""
    tensors = load_file(directory / "model.safetensors")
    name = next(name for name in tensors if "norm" in name)
    tensors[name] = tensors[name].copy()
    tensors[name][0] += np.ones(1, tensors[name].dtype)[0]
    save_file(tensors, directory / "model.safetensors")
    return Start()


def with_token(directory: Path, _: pytest.MonkeyPatch) -> Start:
    content = json.loads((directory / "tokenizer.json").read_text())
    content["added_tokens"][0]["lstrip"] = not content["added_tokens"][0]["lstrip"]
    (directory / "tokenizer.json").write_text(json.dumps(content))
    return Start()


def with_template(directory: Path, _: pytest.MonkeyPatch) -> Start:
    (directory / "chat_template.jinja").write_text("other")
    return Start()


def with_flags(_: Path, patch: pytest.MonkeyPatch) -> Start:
    patch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    return Start()


SHIFT = 0
"""A number read by `processor` and `read`."""


def processor(logits: Any, row: Any) -> Any:
    return logits + SHIFT


def read(keys: Keys) -> ModelConfig:
    return replace(read_llama(keys), family="llama" if SHIFT < 9 else "other")


def shifted(start: Start) -> Change:
    def change(_: Path, patch: pytest.MonkeyPatch) -> Start:
        patch.setattr("tests.unit.repository.test_identity.SHIFT", SHIFT + 1)
        return start

    return change


def with_code(_: Path, patch: pytest.MonkeyPatch) -> Start:
    """Change the source of the step, as in the next release."""
    read_source = SOURCES._read
    patch.setattr(SOURCES, "_digests", {})
    patch.setattr(
        SOURCES, "_read", lambda name: read_source(name) + (b"\n" if name.endswith("device/step.py") else b"")
    )
    return Start()


PROCESSED = Start(replace(SETTINGS, logits_processor=processor))
READ = Start(family=Family("LlamaForCausalLM", read))
ONE_SHAPE = replace(SETTINGS, implementation="xla", deterministic=True)

CHANGES: dict[Part, tuple[str, Start, Change]] = {
    "weights": ("llava", Start(), trained),
    "configs": ("llava", Start(), edited("preprocessor_config.json", "image_mean", to=[0.9, 0.1, 0.3])),
    "model": ("llava", Start(), edited("config.json", "text_config", "rms_norm_eps", to=0.01)),
    "tower": ("llava", Start(), edited("config.json", "vision_config", "layer_norm_eps", to=0.5)),
    "family": ("llama-tied", READ, shifted(READ)),
    "tokenizer": ("llava", Start(), with_token),
    "template": ("llava", Start(), with_template),
    "defaults": ("llava", Start(), edited("generation_config.json", "top_p", to=0.321)),
    "processor": ("llama-tied", PROCESSED, shifted(PROCESSED)),
    "context": ("llava", Start(), started(max_context=96)),
    "numbers": ("llava", Start(), started(dtype="bfloat16")),
    "page_size": ("llava", Start(), started(page_size=32)),
    "page": ("llava", Start(), started(kv_dtype="bfloat16")),
    "kernels": ("llava", Start(), started(implementation="xla")),
    "library": ("llava", Start(), patched(library, "digest", lambda: "0" * 64)),
    "machine": ("llava", Start(), lambda _, patch: _other_machine(patch)),
    "compiler": ("llava", Start(), with_flags),
    "devices": ("llama-tied", Start(), lambda *_: Start(tensor=2)),
    "rows": ("llama-tied", Start(ONE_SHAPE), lambda *_: Start(replace(ONE_SHAPE, max_prefill_tokens=32))),
    "shapes": ("llava", Start(), started(prefill_chunk=32)),
    "code": ("llava", Start(), with_code),
}
"""The model, the first start and the change of each part."""


TEST = "test_a_change_of_each_part_is_another_key_of_each_survivor_that_takes_it"
TWO_DEVICES = "--xla_force_host_platform_device_count=2"
IN_CHILDREN: dict[Part, Any] = {"devices": pytest.mark.wide}
"""Parts that need another process, whose tests are in a tier."""


def _other_machine(patch: pytest.MonkeyPatch) -> Start:
    for module in (identities, program_key):
        patch.setattr(module, "cpu_model", lambda: "another CPU")
    return Start()


def keys_of(directory: Path, start: Start) -> tuple[dict[Part, str], dict[Survivor, str]]:
    """Return the identity of a start, and the keys by which it finds what survived."""
    checkpoint = open_checkpoint(directory, family=start.family)
    place = Place(tuple(jax.devices()[: start.tensor]))
    blueprint = Blueprint.of(checkpoint, start.settings, place)
    identity = Identity.of(blueprint, start.family, defaults_of(checkpoint, start.settings, blueprint.limits)[0])
    key_of = blueprint.program_keys()
    recipe = Recipe.of(directory, start.settings, start.family, None, None, content_of(checkpoint))
    loaded = replace(fake_loaded_engine(fake_limits()), identity=identity, weights_digest=weights_digest(checkpoint))
    with fake_session(loaded) as session:
        keys: dict[Survivor, str] = {
            "pages": identity.pages_key().digest,
            "images": identity.images_key().digest,
            "converted": identity.weights_key().digest,
            "programs": " ".join(key_of(each).digest for each in blueprint.all_programs()),
            "map": str(Shaping(session._engine).content(None)),
            "fingerprint": session.fingerprint,
            "replicas": recipe.digest,
        }
    return identity.texts(), keys


@pytest.mark.parametrize("part", [pytest.param(part, marks=IN_CHILDREN.get(part, ())) for part in PARTS])
def test_a_change_of_each_part_is_another_key_of_each_survivor_that_takes_it(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, families: Path
) -> None:
    name, start, change = CHANGES[part]
    model = tmp_path / name
    copytree((families.parent / "vision" if name == "llava" else families) / name, model)
    if part in IN_CHILDREN and os.environ.get("XLA_FLAGS") != TWO_DEVICES:
        child = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "",
            f"{__file__}::{TEST}[{part}]",
            "-p",
            "no:cacheprovider",
        ]
        done = subprocess.run(child, env=os.environ | {"XLA_FLAGS": TWO_DEVICES}, capture_output=True, text=True)
        assert "1 passed" in done.stdout, done.stdout
        return
    before, keys = keys_of(model, start)
    again = keys_of(model, start)
    assert again == (before, keys)
    after, others = keys_of(model, change(model, monkeypatch))
    assert after[part] != before[part]
    same = {survivor for survivor in keys if keys[survivor] == others[survivor]}
    assert same <= {survivor for survivor, left_out in LEFT_OUT.items() if part in left_out}


def test_parts_are_left_out_for_a_reason() -> None:
    assert set(CHANGES) == set(PARTS)
    for left_out in LEFT_OUT.values():
        assert set(left_out) <= set(PARTS)
        assert all(reason.strip() for reason in left_out.values())
    assert not LEFT_OUT["fingerprint"]


def test_the_guide_has_each_part_and_the_survivors_that_leave_it_out() -> None:
    guide = (Path(__file__).parents[3] / "tutorials" / "guides" / "caches_and_restarts.md").read_text(encoding="utf-8")
    for part, content in PARTS.items():
        without = ", ".join(survivor for survivor, left_out in LEFT_OUT.items() if part in left_out)
        assert f"| `{part}` | {content} | {without} |\n" in guide
