"""`rekindle.models` lists the models of this machine by the first bytes of their files, and how each is opened."""

import ast
import json
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf as library
import pytest

import rekindle
from rekindle import LocalModel, LocalModels
from rekindle.__main__ import main
from rekindle.assembly.fitting import Machine, bits_of
from rekindle.core.errors import InvalidRequest, StorageError
from rekindle.formats.checkpoints.embedded import NAME
from rekindle.formats.checkpoints.local import ollama
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.weight_file import WeightFile
from rekindle.session import models as source
from tests.gguf_models.files import write_model
from tests.unit.cards import ALLOWED, assert_card, read, readable
from tests.unit.local_files import add_blob, add_manifest, add_to_ollama, cache_snapshot, make_home

NASTY = [
    'a "b" c',
    "it's",
    'it\'s "both"',
    "back\\slash",
    "double  blank",
    "new\nline",
    "e\u202ev",
    "日本",
    "&lt;",
    "\xa0",
]


@pytest.fixture(scope="module")
def gguf(families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(families / "llama-tied", tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home without models, and an empty current folder in it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(source, "stored_path", lambda: None)
    return make_home(tmp_path, monkeypatch)


def names(models: Sequence[LocalModel]) -> list[str]:
    return [model.name for model in models]


def put(path: Path, file: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(file, path))


def test_all_places_are_listed_and_each_model_opens_by_its_name(gguf: Path, families: Path, home: Path) -> None:
    add_to_ollama(home / ".ollama" / "models", "registry.ollama.ai/library/tiny/latest", gguf)
    put(home / ".lmstudio" / "models" / "one" / "m" / "m-Q4_K_M.gguf", gguf)
    cache_snapshot(home, "one/model", "a" * 40, "main", families / "qwen2")
    put(cache_snapshot(home, "one/files", "b" * 40, "v2", gguf) / "deep" / "x.gguf", gguf)
    put(home / "here" / "models" / "f16.gguf", gguf)
    shutil.copytree(families / "gpt2", home / "here" / "own")
    models = rekindle.models()
    assert names(models) == [
        "ollama:tiny:latest",
        "lmstudio:one/m",
        "huggingface:one/files/tiny.gguf@v2",
        "huggingface:one/files/deep/x.gguf@v2",
        "huggingface:one/model",
        "./models/f16.gguf",
        "./own",
    ]
    for model in models:
        checkpoint = open_checkpoint(model.name)
        assert model.code == f'await rekindle.open("{model.name}")'
        assert model.path == Path(checkpoint.source).absolute()
        assert model.size == sum(path.stat().st_size for path in checkpoint.files)
        assert model.architecture == checkpoint.family
        assert (model.fits, model.refusal) == (True, "")
    assert [model.format.split()[0] for model in models] == ["GGUF"] * 4 + ["safetensors", "GGUF", "safetensors"]
    assert models[1].format == "GGUF Q4_K_M", "of the name, as the file has no kind"
    assert isinstance(models[2:4], LocalModels)
    assert names(rekindle.models(home / "here" / "models", families))[5:6] == [
        str(home / "here" / "models" / "f16.gguf")
    ]


def test_the_embedded_model_is_the_first(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "stored_path", lambda: gguf)
    assert rekindle.models()[0].name == NAME

    def unusable() -> None:
        raise StorageError("the cache directory /x cannot be created")

    monkeypatch.setattr(source, "stored_path", unusable)
    assert rekindle.models().skipped == ("the cache directory /x cannot be created",)


def test_a_file_in_two_places_is_listed_once_unless_two_programs_name_it(gguf: Path, home: Path) -> None:
    file = put(home / ".lmstudio" / "models" / "one" / "m" / "m.gguf", gguf)
    (home / "here" / "link.gguf").symlink_to(file)
    (home / "here" / "loop").symlink_to(home / "here")
    assert names(rekindle.models()) == ["lmstudio:one/m"]
    for tag in ("latest", "8b"):
        add_to_ollama(home / ".ollama" / "models", f"registry.ollama.ai/library/m/{tag}", gguf)
    assert names(rekindle.models()) == ["ollama:m:8b", "ollama:m:latest", "lmstudio:one/m"]


def test_what_does_not_open_has_its_reason_in_place_of_a_line(gguf: Path, families: Path, home: Path) -> None:
    here, directory = home / "here", home / ".ollama" / "models"
    add_manifest(directory, "manifests/registry.ollama.ai/library/cloud/latest", {"layers": []})
    add_manifest(directory, "manifests/registry.ollama.ai/library/torn/latest", {}).write_text("[]")
    add_manifest(directory, "manifests/registry.ollama.ai/library/odd/latest", {"layers": [3]})
    writer = library.GGUFWriter(here / "alien.gguf", "alien")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    (here / "empty.gguf").touch()
    (here / "gone.gguf").symlink_to(here / "nowhere")
    (here / "pointer.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    put(here / "split-00001-of-00002.gguf", gguf)
    for name, settings in (("albert", {"model_type": "albert"}), ("list", [1]), ("half", None)):
        shutil.copytree(families / "qwen2", here / name)
        if settings is not None:
            (here / name / "config.json").write_text(json.dumps(settings))
    (here / "half" / "model.safetensors").rename(here / "half" / "model-00001-of-00002.safetensors")
    refusals = {model.name: model.refusal for model in rekindle.models()}
    parts = {
        "ollama:cloud:latest": "its layers: none, as of a model in the cloud",
        "ollama:odd:latest": "a value of a wrong type",
        "ollama:torn:latest": "is no JSON object",
        "./alien.gguf": "the architecture 'alien' is not supported in GGUF files",
        "./albert": "is not supported",
        "./empty.gguf": "the file cannot be read",
        "./gone.gguf": "which is gone",
        "./half": "the shard model-00002-of-00002.safetensors is missing",
        "./list": "expected a JSON object",
        "./pointer.gguf": "a pointer of git-lfs",
        "./split-00001-of-00002.gguf": "Missing is split-00002-of-00002.gguf",
    }
    assert refusals.keys() == parts.keys()
    for name, part in parts.items():
        assert part in refusals[name]
        assert "\n" not in refusals[name]
    card = read(rekindle.models()._repr_mimebundle_()["text/html"], ALLOWED)
    assert "rekindle.open(" not in card.text
    assert card.text.count("does not open: ") == len(parts)


def test_other_files_are_no_models(gguf: Path, families: Path, home: Path) -> None:
    here = home / "here"
    for name in (
        ".hidden/a.gguf",
        "node_modules/a.gguf",
        "a/b/c/d/deep.gguf",
        "mmproj-a.gguf",
        "a-00002-of-00002.gguf",
    ):
        put(here / name, gguf)
    (here / "adapter").mkdir()
    for name in ("config.json", "adapter_model.safetensors"):
        (here / "adapter" / name).write_text("{}")
    (here / "unet").mkdir()
    put(here / "unet" / "config.json", families / "qwen2" / "config.json")
    models = rekindle.models()
    assert not models
    assert not models.skipped
    assert 'await rekindle.open("auto")' in repr(models)


def test_no_tensor_and_no_tokenizer_is_read(
    gguf: Path, families: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read at most 64 kB of each of two thousand GGUF files, and no safetensors."""
    big = home / "here" / "big"
    big.mkdir()
    for number in range(2000):
        os.link(gguf, big / f"{number}.gguf")
    shutil.copytree(families / "qwen2", home / "here" / "own")
    sizes, read_bytes = list[int](), WeightFile.read

    def counted(self: WeightFile, begin: int, size: int) -> Any:
        sizes.append(size)
        return read_bytes(self, begin, size)

    monkeypatch.setattr(WeightFile, "read", counted)
    monkeypatch.setattr("safetensors.safe_open", None)
    assert len(rekindle.models()) == len(sizes) + 1 == 2001
    assert max(sizes) <= 1 << 16


def test_a_search_ends_after_so_many_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.formats.checkpoints.local.folders.MOST", 3)
    for number in range(5):
        (home / "here" / f"{number}.txt").touch()
    assert rekindle.models().skipped == ("the search of . ended after 5 files: pass the folders with models",)


def test_folders_without_permission_are_skipped_with_a_line(
    gguf: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = home / "service" / "models"
    for name in ("one", "two"):
        put(home / "here" / name / "a.gguf", gguf)
    scandir, is_dir = os.scandir, Path.is_dir

    def forbidden(path: Any) -> Any:
        if str(path).startswith((str(home / "service"), "one")):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    def unseen(path: Path) -> bool:
        if path == service:
            raise PermissionError(13, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(ollama, "_SERVICE", service)
    monkeypatch.setattr(os, "scandir", forbidden)
    monkeypatch.setattr(Path, "is_dir", unseen)
    models = rekindle.models()
    assert names(models) == ["./two/a.gguf"]
    assert models.skipped == (
        f"{service / 'manifests-v2'} was skipped: Permission denied",
        f"{service / 'manifests'} was skipped: Permission denied",
        "one was skipped: Permission denied",
    )
    assert "one was skipped: Permission denied" in read(models._repr_mimebundle_()["text/html"], ALLOWED).text
    with pytest.raises(rekindle.ModelNotFound, match="manifests was skipped: Permission denied"):
        open_checkpoint("ollama:tiny")


def test_a_folder_must_be_one(home: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no folder 'nowhere'"):
        rekindle.models("nowhere")
    with pytest.raises(InvalidRequest, match="models takes the paths of folders, got 3"):
        rekindle.models(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NASTY)
def test_a_copied_line_is_code_with_the_name(name: str) -> None:
    model = LocalModel(name, Path(name), "Ollama", 5, "GGUF", "llama", 10, True)
    (call,) = (node for node in ast.walk(ast.parse(f"async def f(): {model.code}")) if isinstance(node, ast.Call))
    assert ast.literal_eval(call.args[0]) == name
    html = LocalModels([model], "this CPU: 1 GB of memory", 8192)._repr_mimebundle_()["text/html"]
    assert f">{model.code}<" in html.replace("&quot;", '"').replace("&#x27;", "'").replace("&amp;", "&")
    assert "user-select:all" in html
    assert model.code in read(html, ALLOWED).text


def test_the_memory_is_that_of_the_config_or_of_the_blocks(gguf: Path, families: Path, home: Path) -> None:
    directory, file = families / "gemma3", put(home / "here" / "a-Q4_0.gguf", gguf)
    shutil.copytree(directory, home / "here" / "gemma3")
    (of_file, of_directory) = rekindle.models()
    per_token = open_checkpoint(file).config.numbers_per_token
    assert of_file.needs == file.stat().st_size + 4 * 8192 * per_token
    checkpoint = open_checkpoint(directory)
    held = sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values())
    assert of_directory.needs is not None
    assert of_directory.needs >= 4 * (held + 8192 * checkpoint.config.numbers_per_token)


def test_a_machine_without_room_and_one_of_unknown_memory_say_so(
    gguf: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home / "here" / "a-Q4_K_M.gguf", gguf)
    put(home / "here" / "b.gguf", gguf)
    for memory, fits, text in (
        (10**5, False, "too large, about "),
        (10**12, True, "fits, about "),
        (None, None, "about "),
    ):
        monkeypatch.setattr(source, "this_machine", lambda dtype, memory=memory: Machine("1 H100", memory))
        known, unknown = rekindle.models()
        assert known.fits is fits
        assert known._facts()[2].startswith(text)
        assert known.needs is not None
        assert known.needs >= int(16 / 4.5 * known.size), "its blocks become numbers of 16 bits"
        assert (unknown.needs, unknown.fits) == (None, None)


@pytest.mark.parametrize(
    ("numbers", "bits"),
    [
        ("Q4_K_M", 4.5),
        ("Q8_0", 8.5),
        ("IQ2_XXS", 2.0625),
        ("UD-Q6_K_XL", 6.5625),
        ("BF16", 16),
        ("FP32", 32),
        ("", None),
    ],
)
def test_a_kind_of_numbers_has_its_bits(numbers: str, bits: float | None) -> None:
    assert bits_of(numbers) == bits


def test_the_card_is_that_of_its_file() -> None:
    models = [
        LocalModel("ollama:qwen3:4b", Path("/x"), "Ollama", 2_497_280_480, "GGUF Q4_K_M", "qwen3", 4_900_000_000, True),
        LocalModel("ollama:big:70b", Path("/x"), "Ollama", 42 * 10**9, "GGUF Q4_K_M", "llama", 48 * 10**9, False),
        LocalModel("ollama:cloud", Path("/x"), "Ollama", 0, "", "", None, None, "it has no GGUF file"),
        LocalModel("./a.gguf", Path("/x"), "/home/me", 10**9, "GGUF", "llama", None, None),
    ]
    full = LocalModels(models, "this CPU: 16.8 GB of memory", 8192, ["/root was skipped: Permission denied"])
    states = {"models": readable(full), "none": readable(LocalModels([], "this CPU: 16.8 GB of memory", 8192))}
    assert_card("models", states)


def test_a_long_list_is_folded() -> None:
    model = LocalModel("a", Path("/x"), "Ollama", 10**9, "GGUF", "llama", None, None)
    page = read(LocalModels([model] * 1000, "this CPU", 8192)._repr_mimebundle_()["text/html"], ALLOWED)
    assert "1,000 models" in page.text
    assert "960 more models" in page.text
    assert page.text.count(model.code) == 1000


def test_the_command_prints_the_same_list(gguf: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--local"]) == 0
    assert (
        capsys.readouterr().out == f"no models of Ollama, LM Studio, the hub's cache or {Path.cwd()} on this machine\n"
    )
    directory = home / ".ollama" / "models"
    config = add_blob(directory, b'{"model_format": "gguf", "file_type": "Q5_K_M"}', "config")
    layers = [add_blob(directory, gguf.read_bytes(), "model")]
    add_manifest(directory, "manifests/registry.ollama.ai/library/tiny/latest", {"config": config, "layers": layers})
    put(home / "here" / "tiny.gguf", gguf)
    models = rekindle.models()
    assert main(["models", "--local"]) == 0
    assert capsys.readouterr().out == "\n".join(models.lines(names=True)) + "\n"
    assert "  ollama:tiny:latest  " in "\n".join(models.lines(names=True))
    assert main(["models", "OLLAMA", "--local", "--json", "--context", "0"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["models"]
    assert report == {
        "model": "ollama:tiny:latest",
        "path": str(models[0].path),
        "place": "Ollama",
        "bytes": gguf.stat().st_size,
        "format": "GGUF Q5_K_M",
        "architecture": "llama",
        "memory_bytes": gguf.stat().st_size,
        "fits": True,
        "refusal": None,
    }
    assert main(["models", "nothing", "--local"]) == 0
    assert capsys.readouterr().out.startswith("no models with 'nothing' in the name of Ollama")
