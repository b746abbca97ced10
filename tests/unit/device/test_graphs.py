"""Programs for GPUs are compiled with conditions in CUDA graphs; those for other devices with no option."""

from types import SimpleNamespace
from typing import Any

import pytest

from rekindle.core.device.jax_settings import JaxSettings
from rekindle.core.device.programs.lowering import COMMANDS, GRAPHS, Programs


@pytest.mark.parametrize(
    ("platform", "flags", "expected"),
    [
        ("gpu", "", {GRAPHS: COMMANDS}),
        ("gpu", f"--{GRAPHS}=", None),  # the user's choice
        ("cpu", "", None),
        ("tpu", "", None),
    ],
)
def test_programs_for_gpus_have_their_conditions_in_graphs(
    platform: str, flags: str, expected: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: list[Any] = []
    lowered = SimpleNamespace(compile=lambda compiler_options: options.append(compiler_options))
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(Programs, "lower", lambda *_: lowered)
    programs: Any = object.__new__(Programs)  # a platform alone: there is no GPU here
    programs.shapes = SimpleNamespace(place=SimpleNamespace(first=SimpleNamespace(platform=platform)))
    programs.jax_settings = JaxSettings.here()
    programs.compile("step")
    assert options == [expected]
