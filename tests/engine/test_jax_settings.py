"""A session works under any of JAX's settings, and its answers stay the same."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import pytest

import rekindle
from rekindle.core.device.jax_settings import COMPILED_IN, OVERRIDES
from rekindle.core.device.programs.functions import SCATTER
from tests.compilations import programs_of
from tests.engine.settings_child import answered, child, opened

pytestmark = pytest.mark.wide

OTHERS: dict[str, Any] = {
    "jax_enable_x64": True,
    "jax_transfer_guard": "disallow_explicit",
    "jax_default_matmul_precision": "highest",
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_disable_jit": True,
    "jax_numpy_rank_promotion": "allow",
    "jax_numpy_dtype_promotion": "standard",
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_check_tracer_leaks": True,
    "jax_debug_key_reuse": True,
    "jax_enable_checks": True,
}
"""Settings of JAX, each with a value other than its default and the suite's."""


@contextmanager
def set_to(name: str, value: Any) -> Iterator[None]:
    before = jax.config.values[name]
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


@pytest.fixture(scope="module")
def model(families: Path) -> Path:
    return families / "qwen3"


@pytest.fixture(scope="module")
def expected(model: Path, module_cache: None) -> dict[str, Any]:
    """Return the answers under the suite's settings."""
    with opened(model) as session:
        report = answered(session, model)
    assert report["onloaded"] > 0
    return report


def those_of_a_key_are_deep(names: Iterable[str]) -> list[Any]:
    """Return a parameter for each name; a name in the key is deep, because its programs are compiled anew."""
    return [
        pytest.param(name, marks=pytest.mark.deep) if name in COMPILED_IN and name not in OVERRIDES else name
        for name in names
    ]


@pytest.mark.parametrize("name", those_of_a_key_are_deep(OTHERS))
def test_a_setting_of_jax_changes_no_answer(name: str, model: Path, expected: dict[str, Any]) -> None:
    with set_to(name, OTHERS[name]), opened(model) as session:
        assert answered(session, model) == expected


@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_of_jax_that_comes_after_a_session_was_opened_changes_no_answer(
    name: str, model: Path, expected: dict[str, Any]
) -> None:
    with opened(model) as session, set_to(name, OTHERS[name]):
        assert answered(session, model) == expected


def test_what_is_compiled_has_the_settings_of_the_moment_when_the_session_was_opened(model: Path) -> None:
    with set_to("jax_default_matmul_precision", "highest"):
        session = opened(model, restore="off")
    with session:
        programs = programs_of(session._engine.facts).executables[0].builder._programs
        lowered = programs.lower(SCATTER)
        assert programs.jax_settings.values["jax_default_matmul_precision"] == "highest"
        assert "rekindle_scatter_" in lowered.as_text()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.deep) for name in OTHERS])
def test_a_setting_of_jax_that_comes_before_the_import_changes_no_answer(
    name: str, model: Path, expected: dict[str, Any]
) -> None:
    value = str(OTHERS[name])
    assert child(model, "open", {}, {name.upper(): value})["tokens"] == expected["tokens"]


@pytest.mark.parametrize("when", ["open", pytest.param("after", marks=pytest.mark.deep)])
def test_many_settings_at_once_and_another_default_device_change_no_answer(
    when: str, model: Path, expected: dict[str, Any]
) -> None:
    values = {name: OTHERS[name] for name in ("jax_enable_x64", "jax_debug_nans", "jax_disable_jit")}
    guard = {"JAX_TRANSFER_GUARD": "disallow"}
    report = child(model, when, {**values, "jax_default_device": 1}, guard, devices=2)
    assert report["tokens"] == expected["tokens"]
    assert report["onloaded"] == expected["onloaded"]
    assert report["device"] == (1 if when == "open" else 0)


JAX_CACHE = """
import json, sys
import jax
jax.config.update("jax_compilation_cache_dir", sys.argv[2])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
import os
from pathlib import Path
from tests.engine.settings_child import opened
before = len(os.listdir(sys.argv[2]))
theirs = jax.jit(lambda x: x * 2 + 1).lower(1.0).compile()
own = len(hits)
session = opened(Path(sys.argv[1]), restore=sys.argv[3], precompile=sys.argv[4])
tokens = session.generate_sync(token_ids=[5, 6], max_tokens=1).token_ids
session.precompiled_sync(progress=False)
stats = session.stats
session.close_sync()
print(json.dumps([list(tokens), stats.loads, own, len(hits) - own]))
"""


def with_jax_cache(model: Path, directory: Path, restore: str, precompile: str = "all") -> list[Any]:
    command = [sys.executable, "-W", "error", "-c", JAX_CACHE, str(model), str(directory), restore, precompile]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_nothing_of_jaxs_persistent_cache_reaches_the_executable_store(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this because a program from JAX's cache is serialized without its code, and would fail later."""
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "rekindle"))
    (tmp_path / "jax").mkdir()
    first = with_jax_cache(model, tmp_path / "jax", "off", "lazy")
    files = sorted(os.listdir(tmp_path / "jax"))
    assert [name for name in files if "rekindle" in name] == []
    second = with_jax_cache(model, tmp_path / "jax", "auto")
    third = with_jax_cache(model, tmp_path / "jax", "require")
    assert first[0] == second[0] == third[0]
    assert third[1] > 0, "the third session loads what the second one stored"
    assert [run[2] for run in (first, second, third)] == [0, 1, 1], "the user's own programs are still found there"
    assert [run[3] for run in (first, second, third)] == [0, 0, 0]
    assert rekindle.__version__
