"""`rekindle models` and the guide have every family, with parameters counted from published configs."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rekindle.__main__ import main
from rekindle.assembly import fitting as machines
from rekindle.assembly.counts import active_parameters, parameters
from rekindle.assembly.fitting import Machine
from rekindle.cli.arguments.models import TOKENS
from rekindle.cli.models.table import PublishedSize, entries, rows
from rekindle.core.models.config import ExpertsConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.formats.checkpoints.gguf.architectures.table import ARCHITECTURES
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.families.registry import FAMILIES
from rekindle.formats.families.towers import TOWERS
from tests.families import MODELS
from tests.family_table import in_guide, table
from tests.gguf_models.files import NAMES, WRITTEN

ROWS = {row.family: row for row in rows()}
SIZES = {size.name: size for row in rows() for size in row.sizes}
BY_ANOTHER = {"camembert": "roberta", "jina_bert": "bert", "qwen3_vl_moe_text": "qwen3_moe"}
"""Families without a golden, each with the family of the same computation, or of the nearest."""
ACTIVE = {"LiquidAI/LFM2-8B-A1B": "1.5B"}
"""Active parameters by the publisher's own count, where the name rounds them down."""
MACHINE = Machine("2 H100", 160 * 10**9)


def test_every_family_has_a_row_and_every_row_is_of_a_family() -> None:
    without, unknown = FAMILIES.keys() - ROWS.keys(), ROWS.keys() - FAMILIES.keys() - TOWERS.keys()
    assert {row.tower for row in rows() if row.reads_images} == TOWERS.keys(), "each reader has a row"
    assert not without, f"add a row to cli/models/families.json for: {', '.join(sorted(without))}"
    assert not unknown, f"cli/models/families.json has rows of no family: {', '.join(sorted(unknown))}"


def test_the_guide_has_the_table() -> None:
    assert in_guide() == table(), "run python -m tests.family_table"


def test_rows_say_what_tests_cover(families: Path) -> None:
    """Check the goldens of each family, and the architectures of its GGUF files."""
    config = {model: json.loads((families / model / "config.json").read_text()) for model in MODELS}
    encoders = sorted(families.with_name("encoders").glob("*/config.json"))
    config |= {path.parent.name: json.loads(path.read_text()) for path in encoders}
    of_text = {family for family in ROWS if family not in TOWERS}
    kinds = {model: each.get("text_config", each)["model_type"] for model, each in config.items()}
    assert of_text - set(kinds.values()) == BY_ANOTHER.keys()
    for family in of_text:
        files = {NAMES.get(family, family) for model, kind in kinds.items() if kind == family and model in WRITTEN}
        assert files <= set(ROWS[family].gguf), family
        assert all(ARCHITECTURES[name].name for name in ROWS[family].gguf)
    assert {name for row in rows() for name in row.gguf} == ARCHITECTURES.keys()


@pytest.mark.parametrize("model", ["gemma4-e", "gemma4-moe", "llama-bias", "qwen2-moe", "deepseek-v2"])
def test_parameters_are_those_of_all_shapes(model: str, families: Path) -> None:
    config = open_checkpoint(families / model).config
    assert parameters(config) == sum(math.prod(shape) for shape in expected_shapes(config).values())


def test_a_token_uses_the_chosen_experts_alone(families: Path) -> None:
    config = open_checkpoint(families / "gpt-oss").config
    (experts,) = {layer.feed_forward for layer in config.layers}
    assert isinstance(experts, ExpertsConfig)
    fewer = replace(experts, count=experts.router.per_token)
    cut = replace(config, layers=tuple(replace(layer, feed_forward=fewer) for layer in config.layers))
    router = (experts.count - fewer.count) * (config.hidden_size + 1) * config.num_layers
    assert active_parameters(config, parameters(config)) == parameters(cut) + router


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("google/gemma-2-9b-it", 9_241_705_984),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46_702_792_704),
        ("openai/gpt-oss-20b", 20_914_757_184),
        ("deepseek-ai/DeepSeek-V3", 671_026_419_200),
        ("HuggingFaceTB/SmolVLM2-256M-Video-Instruct", 256_484_928),
        ("HuggingFaceTB/SmolVLM2-500M-Video-Instruct", 507_482_304),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", 24_011_361_280),
        ("google/gemma-3-4b-it", 4_300_079_472),
        ("Qwen/Qwen2-VL-2B-Instruct", 2_208_985_600),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 8_292_166_656),
        ("Qwen/Qwen3-VL-2B-Instruct", 2_127_532_032),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 31_070_754_032),
    ],
)
def test_counts_are_those_of_the_published_files(name: str, count: int) -> None:
    assert SIZES[name].parameters == count


def test_counts_are_near_the_sizes_in_the_names() -> None:
    """Catch a wrong number in a config, for all parameters and for the active ones ("A3B")."""
    for size in SIZES.values():
        label, active, other = *size.label.partition("-A")[::2], re.search(r"MoE-A([\d.]+B)", size.name)
        active = other[1] if other else ACTIVE.get(size.name, active)
        if match := re.fullmatch(r"([\d.]+)([BM])", label):
            size_in_name = float(match[1]) * {"B": 1e9, "M": 1e6}[match[2]]
            assert 0.8 < size.parameters / size_in_name < 1.5, size
        assert bool(active) <= (size.active < size.parameters), size
        if active:
            size_in_name = float(active[:-1]) * {"B": 1e9, "M": 1e6}[active[-1]]
            assert 0.9 < size.active / size_in_name < 1.35, size


def test_sizes_are_in_order_by_their_ids_on_the_hub() -> None:
    for family, entry in entries().items():
        assert list(entry["sizes"]) == [size.name for size in ROWS[family].sizes]
        assert all(name.count("/") == 1 for name in entry["sizes"])


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Qwen/Qwen3-30B-A3B", "30B-A3B"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "8x7B"),
        ("stabilityai/stablelm-2-zephyr-1_6b", "1.6B"),
        ("google/gemma-4-E4B-it", "E4B"),
        ("CohereLabs/c4ai-command-r7b-12-2024", "7B"),
        ("microsoft/phi-4", "14.7B"),
    ],
)
def test_a_label_is_the_size_in_the_name_or_the_count(name: str, label: str) -> None:
    assert SIZES[name].label == label


def test_a_size_fits_with_its_context_and_a_sixteenth_of_the_memory_free() -> None:
    size = PublishedSize("a/b-1B", 10**9, 10**9, 1000)
    assert size.bytes_with(500_000, "bfloat16") == 3 * 10**9
    assert size.bytes_with(500_000, "float32") == 6 * 10**9
    machine = Machine("a device", 32 * 10**8)
    assert machine.fits(size, 500_000)
    assert not machine.fits(size, 500_001)
    assert Machine("a device", None).fits(size, 1) is None


def test_the_largest_that_fits_has_the_most_parameters() -> None:
    row = ROWS["qwen3"]
    assert MACHINE.largest(row.sizes, 8192) is row.sizes[-1]
    small = Machine("a device", 24 * 10**9)
    largest = small.largest(row.sizes, 8192)
    assert largest is not None
    assert largest.label == "8B"
    assert Machine("a device", 10**9).largest(row.sizes, 8192) is None


def _printed(machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(machines, "this_machine", lambda dtype: machine)
    assert main(["models", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "machine", [Machine("2 H100", 160 * 10**9), Machine("this CPU", 10**9, "float32"), Machine("a chip", None)]
)
def test_the_lines_fit_a_terminal_and_mark_what_fits(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    summary = _printed(machine, capsys, monkeypatch)
    details = _printed(machine, capsys, monkeypatch, "a")  # in each architecture
    assert max(map(len, [*summary.splitlines(), *details.splitlines()])) <= 80
    fitting = [size for size in SIZES.values() if machine.fits(size, TOKENS)]
    assert (
        summary.count("[")
        == details.count("\n  *")
        == sum(machine.largest(row.sizes, 8192) is not None for row in rows())
    )
    assert details.count("\n  *") + details.count("\n  +") == len(fitting)
    assert ('bfloat16"' in summary) == ('bfloat16"' in details) == (machine.dtype == "float32")
    assert ("is not known" in summary) == (machine.memory is None)


def test_a_name_selects_families_by_any_of_their_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, family in (("Qwen3MoE", "qwen3_moe"), ("SMOLLM3", "smollm3"), ("moonlight-16b", "deepseek_v3")):
        report = json.loads(_printed(MACHINE, capsys, monkeypatch, name, "--json", "--context", "100"))
        assert family in [each["family"] for each in report["families"]]
        assert len(report["families"]) <= 2
        first = report["families"][0]["sizes"][0]
        assert first["bytes_with_context"] == SIZES[first["model"]].bytes_with(100, "bfloat16")
        assert first["fits"] is True


def test_an_unknown_name_is_answered_with_close_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "qwne3"]) == 1
    assert "has 'qwne3' in its name; close names: Qwen3" in capsys.readouterr().err
    assert main(["models", "auto"]) == 1
    assert "`rekindle info auto` names the model" in capsys.readouterr().err
    assert main(["models", "zzzz"]) == 1
    assert "has 'zzzz' in its name.\n- `rekindle models` without" in capsys.readouterr().err
    assert main(["models", "--context", "-1"]) == 1
    assert "--context must be at least 0, got -1" in capsys.readouterr().err


def test_a_cpu_is_one_device_with_the_memory_of_the_host() -> None:
    machine = machines.this_machine()
    assert machine.dtype == "float32"
    assert machine.memory
