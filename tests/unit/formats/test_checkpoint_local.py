"""Models of Ollama, LM Studio and the hub's cache open by the names of these programs, from the files they wrote."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from rekindle.core.errors import CheckpointError, ConfigError, ModelNotFound, UnsupportedModel
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.gguf_models.files import write_model
from tests.unit.local_files import add_blob, add_manifest, add_to_ollama, cache_snapshot, make_home


@pytest.fixture(scope="module")
def gguf(families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(families / "llama-tied", tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_home(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (
            "registry.ollama.ai/library/qwen3/latest",
            ["qwen3", "qwen3:latest", "Qwen3", "library/qwen3", "registry.ollama.ai/library/qwen3:latest"],
        ),
        ("registry.ollama.ai/library/qwen3/0.6b", ["qwen3:0.6b", "ollama.com/library/qwen3:0.6B"]),
        ("registry.ollama.ai/someone/tiny/q8", ["someone/tiny:q8"]),
        ("hf.co/owner/name-GGUF/Q8_0", ["hf.co/owner/name-GGUF:Q8_0"]),
        ("localhost:5000/library/m/latest", ["localhost:5000/library/m"]),
    ],
)
def test_a_model_of_ollama_opens_by_all_spellings_of_its_name(
    path: str, names: list[str], gguf: Path, home: Path
) -> None:
    add_to_ollama(home / ".ollama" / "models", path, gguf)
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    for name in names:
        checkpoint = open_checkpoint(f"ollama:{name}")
        assert Path(checkpoint.source).name == f"sha256-{digest}"
        assert checkpoint.tensors.keys() == open_checkpoint(gguf).tensors.keys()


def test_a_name_without_the_prefix_of_its_program_gets_it_as_a_hint(gguf: Path, home: Path) -> None:
    add_to_ollama(home / ".ollama" / "models", "registry.ollama.ai/library/smol/latest", gguf)
    with pytest.raises(ModelNotFound, match=r"no model 'smol'\. Did you mean 'ollama:smol'\?"):
        open_checkpoint("smol")
    with pytest.raises(ModelNotFound, match=r"no model 'smal'\. (?!Did you mean 'ollama)"):
        open_checkpoint("smal")


def test_ollamas_directory_is_that_of_its_variable(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_to_ollama(tmp_path / "elsewhere", "registry.ollama.ai/library/m/latest", gguf)
    monkeypatch.setenv("OLLAMA_MODELS", f'"{tmp_path / "elsewhere"}"')
    assert open_checkpoint("ollama:m").config.layers


def test_a_list_of_manifests_has_one_for_gguf_files(gguf: Path, home: Path) -> None:
    """Read `manifests-v2`, whose entries are links to blobs, and lists of a manifest for each runner."""
    directory = home / ".ollama" / "models"
    child = json.dumps({"layers": [add_blob(directory, gguf.read_bytes(), "model")]}).encode()
    reference = {"digest": add_blob(directory, child, "json")["digest"].removeprefix("sha256:"), "format": "gguf"}
    manifests = {"manifests": [{"digest": "0" * 64, "format": "safetensors"}, reference]}
    parent = add_blob(directory, json.dumps(manifests).encode(), "json")["digest"].replace(":", "-")
    link = directory / "manifests-v2" / "ollama.com" / "library" / "m" / "latest"
    link.parent.mkdir(parents=True)
    link.symlink_to(directory / "blobs" / parent)
    assert open_checkpoint("ollama:m").config.layers


def test_a_missing_model_of_ollama_is_told_with_those_that_are_there(gguf: Path, home: Path) -> None:
    with pytest.raises(
        ModelNotFound, match=r"no model 'ollama:qwen3:latest': Ollama has no models in .*\n- `ollama pu"
    ):
        open_checkpoint("ollama:qwen3")
    directory = home / ".ollama" / "models"
    add_to_ollama(directory, "registry.ollama.ai/library/qwen3/0.6b", gguf)
    add_to_ollama(directory, "registry.ollama.ai/library/llama3.2/latest", gguf)
    with pytest.raises(ModelNotFound) as raised:
        open_checkpoint("ollama:qwen3")
    assert str(raised.value) == (
        f"no model 'ollama:qwen3:latest'. Did you mean 'ollama:qwen3:0.6b'? In {directory}, Ollama has:\n"
        "- ollama:llama3.2:latest\n- ollama:qwen3:0.6b"
    )


def test_manifests_without_one_whole_model_are_refused(gguf: Path, home: Path) -> None:
    directory = home / ".ollama" / "models"
    model = add_blob(directory, gguf.read_bytes(), "model")
    place = "manifests/registry.ollama.ai/library"
    add_manifest(directory, f"{place}/cloud/latest", {"layers": []})
    add_manifest(directory, f"{place}/tuned/latest", {"layers": [model, add_blob(directory, b"lora", "adapter")]})
    add_manifest(directory, f"{place}/gone/latest", {"layers": [{**model, "digest": f"sha256:{'0' * 64}"}]})
    add_manifest(directory, f"{place}/odd/latest", {"layers": [{**model, "digest": "../../etc"}]})
    add_manifest(directory, f"{place}/torn/latest", {}).write_text("{")
    for name, error, message in [
        ("cloud", UnsupportedModel, "0 GGUF files instead of one; its layers: none, as of a model in the cloud"),
        ("tuned", UnsupportedModel, "has an adapter beside its model"),
        ("gone", CheckpointError, "is missing: `ollama pull` downloads the model again"),
        ("odd", CheckpointError, "a layer with the digest '../../etc'"),
        ("torn", CheckpointError, "the manifest of ollama:torn:latest, cannot be read"),
    ]:
        with pytest.raises(error, match=message):
            open_checkpoint(f"ollama:{name}")


def test_models_of_lm_studio_open_by_publisher_and_model(gguf: Path, families: Path, home: Path) -> None:
    models = home / ".lmstudio" / "models"
    for file in ("one/single/a.gguf", "one/single/mmproj-a.gguf", "one/several/a-Q4.gguf", "one/several/a-Q8.gguf"):
        (models / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(gguf, models / file)
    shutil.copytree(families / "qwen2", models / "two" / "mlx")
    sources = {
        name: open_checkpoint(f"lmstudio:{name}").source
        for name in ("one/single", "One/Single", "one/single/a.gguf", "one/several/a-Q8.gguf", "two/mlx")
    }
    assert sources == {
        "one/single": str(models / "one/single/a.gguf"),
        "One/Single": str(models / "one/single/a.gguf"),
        "one/single/a.gguf": str(models / "one/single/a.gguf"),
        "one/several/a-Q8.gguf": str(models / "one/several/a-Q8.gguf"),
        "two/mlx": str(models / "two/mlx"),
    }
    with pytest.raises(ModelNotFound, match=r"(?s)'lmstudio:one/several'\. Did you mean .*- lmstudio:one/several/a-Q4"):
        open_checkpoint("lmstudio:one/several")


def test_lm_studios_directory_is_that_of_its_settings(gguf: Path, home: Path) -> None:
    """Follow the pointer to LM Studio's home directory, and its setting of the folder of downloads."""
    (home / "studio").mkdir()
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'studio'}\n")
    (home / "studio" / "settings.json").write_text(json.dumps({"downloadsFolder": str(home / "big")}))
    (home / "big" / "one" / "m").mkdir(parents=True)
    shutil.copy(gguf, home / "big" / "one" / "m")
    assert open_checkpoint("lmstudio:one/m").source.endswith("tiny.gguf")


def test_snapshots_of_the_hubs_cache_open_without_a_question_to_the_hub(gguf: Path, families: Path, home: Path) -> None:
    main_snapshot = cache_snapshot(home, "one/model", "a" * 40, "main", families / "qwen2")
    cache_snapshot(home, "one/files", "b" * 40, "v2", gguf)
    assert open_checkpoint("huggingface:one/model").source == str(main_snapshot)
    assert open_checkpoint("huggingface:one/files/tiny.gguf@v2").source.endswith("tiny.gguf")
    with pytest.raises(ModelNotFound, match="Did you mean 'huggingface:one/model'"):
        open_checkpoint("huggingface:one/modle")
    with pytest.raises(ConfigError, match="is local: omit it"):
        open_checkpoint("huggingface:one/model", revision="v2")
