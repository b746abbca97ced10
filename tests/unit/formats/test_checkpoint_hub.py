"""A hub id is served from the hub, or from the hub library's cache when the hub cannot be reached.

The hub here is a small server on this machine. The library reads its environment when it is imported, so each test
opens the model in a process of its own.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils._paths import filter_repo_objects

import rekindle
from rekindle.core.errors import ConfigError
from rekindle.formats.checkpoints.hub.names import HubModel
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.unit.formats.hub_server import COMMIT, Hub
from tests.unit.formats.test_checkpoint_gguf import write_gguf
from tests.waiting import PATIENCE

MODEL = "tiny/qwen2"
UNREACHABLE = "http://127.0.0.1:9"  # the port of the discard service: nothing answers there
PROGRAM = """
import json, sys
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.core.errors import ModelNotFound
reports = []
try:
    revision = sys.argv[2] if len(sys.argv) > 2 else None
    report = lambda progress: reports.append((progress.stage, progress.done))
    checkpoint = open_checkpoint(sys.argv[1], report, revision=revision)
    print(json.dumps({"tensors": len(checkpoint.tensors), "source": checkpoint.source, "reports": reports}))
except ModelNotFound as error:
    print(json.dumps({"error": str(error)}))
"""


def open_elsewhere(
    model: str, cache: Path, endpoint: str = UNREACHABLE, offline: bool = False, revision: str | None = None
) -> dict[str, Any]:
    """Open a model in a process of its own, with this hub cache and this hub."""
    variables = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment = variables | {
        "HF_HUB_CACHE": str(cache),
        "HF_HOME": str(cache.parent),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "1" if offline else "0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", PROGRAM, model, *([revision] if revision else [])]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert process.returncode == 0, process.stderr
    complaint = "No files matched allow_patterns="  # of the library, which says so of a file that is not there
    assert [line for line in process.stderr.splitlines() if not line.startswith(complaint)] == [], "it drew a bar"
    result: dict[str, Any] = json.loads(process.stdout)
    return result


@pytest.fixture
def cache(families: Path, tmp_path: Path) -> Path:
    """Make a cache as the hub's library lays it out: blobs, a snapshot of links to them, and a ref to the snapshot."""
    repository = tmp_path / "hub" / ("models--" + MODEL.replace("/", "--"))
    snapshot, blobs, refs = repository / "snapshots" / COMMIT, repository / "blobs", repository / "refs"
    for directory in (snapshot, blobs, refs):
        directory.mkdir(parents=True)
    (refs / "main").write_text(COMMIT)
    for file in (families / "qwen2").iterdir():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, blobs / digest)
        (snapshot / file.name).symlink_to(Path("../../blobs") / digest)
    return tmp_path / "hub"


@pytest.mark.wide
@pytest.mark.parametrize("offline", [True, False])
def test_a_cached_model_opens_without_the_hub(offline: bool, cache: Path) -> None:
    result = open_elsewhere(MODEL, cache, offline=offline)
    assert result["tensors"] == 39
    assert result["source"].endswith(f"snapshots/{COMMIT}")


@pytest.mark.wide
def test_a_revision_is_a_model_of_its_own(cache: Path, families: Path) -> None:
    repository = cache / ("models--" + MODEL.replace("/", "--"))
    other = repository / "snapshots" / COMMIT[::-1]
    shutil.copytree(families / "llama-tied", other)
    (repository / "refs" / "v1.0").write_text(other.name)
    assert open_elsewhere(f"{MODEL}@v1.0", cache, offline=True)["tensors"] == 29
    assert open_elsewhere(f"{MODEL}@{COMMIT}", cache, offline=True)["tensors"] == 39
    assert open_elsewhere(MODEL, cache, offline=True, revision="v1.0")["tensors"] == 29
    assert f"'{MODEL}@v2.0'" in open_elsewhere(MODEL, cache, offline=True, revision="v2.0")["error"]


@pytest.mark.wide
@pytest.mark.parametrize("offline", [True, False])
def test_without_hub_and_cache_the_message_says_what_to_do(offline: bool, tmp_path: Path) -> None:
    error = open_elsewhere("nobody/nothing", tmp_path / "hub", offline=offline)["error"]
    assert "'nobody/nothing'" in error
    assert "is not cached" in error
    assert "Check the name, the revision and the network" in error
    assert "smollm2" not in error
    if offline:
        embedded = open_elsewhere("HuggingFaceTB/SmolLM2-135M-Instruct", tmp_path / "hub", offline=offline)["error"]
        assert embedded.endswith("or open 'smollm2-135m-instruct', this model quantized, which needs no hub")


@pytest.fixture
def hub(families: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the one model MODEL by the part of the hub's protocol that a download needs; yield the address."""
    files = {file.name: file.read_bytes() for file in (families / "qwen2").iterdir()}
    gguf_path = write_gguf(open_checkpoint(families / "llama-tied"), tmp_path_factory.mktemp("gguf") / "Tiny.F32.gguf")
    files["quantized/Tiny.F32.gguf"] = gguf_path.read_bytes()

    with Hub(MODEL, files).serve() as hub:
        yield hub.address


@pytest.mark.wide
def test_a_model_is_downloaded_with_progress_and_then_cached(hub: str, tmp_path: Path) -> None:
    result = open_elsewhere(MODEL, tmp_path / "hub", endpoint=hub)
    assert result["tensors"] == 39
    (asking, _), *reports = result["reports"]
    assert asking == f"asking the Hugging Face hub for {MODEL}"
    assert {stage for stage, _ in reports} == {f"downloading {MODEL}"}
    done = [amount for _, amount in reports]
    assert done == sorted(done)
    assert done[-1] > 700_000
    assert open_elsewhere(MODEL, tmp_path / "hub")["tensors"] == 39


@pytest.mark.wide
def test_a_gguf_file_of_a_repository_is_opened_by_its_name(hub: str, tmp_path: Path) -> None:
    name = f"{MODEL}/quantized/Tiny.F32.gguf"
    result = open_elsewhere(name, tmp_path / "hub", endpoint=hub)
    assert result["tensors"] == 29
    assert result["source"].endswith("quantized/Tiny.F32.gguf")
    assert {stage for stage, _ in result["reports"][1:]} == {f"downloading {name}"}
    assert open_elsewhere(f"{name}@main", tmp_path / "hub", offline=True)["tensors"] == 29, "it is cached"
    error = open_elsewhere(f"{MODEL}/Q4_K_M.gguf", tmp_path / "hub", endpoint=hub)["error"]
    assert error.startswith(f"{MODEL}/Q4_K_M.gguf has no Q4_K_M.gguf.")
    assert error.endswith("the repository has: quantized/Tiny.F32.gguf")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("owner/name", HubModel("owner/name", None, None)),
        ("owner/name@refs/pr/1", HubModel("owner/name", None, "refs/pr/1")),
        ("owner/name/A-Q4_K_M.gguf", HubModel("owner/name", "A-Q4_K_M.gguf", None)),
        ("owner/name/in/A.GGUF@v1.0", HubModel("owner/name", "in/A.GGUF", "v1.0")),
        ("owner/file.gguf", None),
        ("owner/name/more", None),
        ("name", None),
        ("../a/b.gguf", None),
    ],
)
def test_a_name_means_a_repository_or_a_gguf_file_in_one(text: str, meant: HubModel | None) -> None:
    assert HubModel.of(text) == meant
    assert meant is None or str(meant) == text


def test_all_files_of_a_model_that_was_split_are_downloaded() -> None:
    model = HubModel.of("owner/name/Big-Q8_0-00002-of-00003.gguf")
    assert model is not None
    assert model.patterns == {"allow_patterns": ["Big-Q8_0-*-of-00003.gguf"]}


def test_a_revision_is_given_once_and_only_for_the_hub(families: Path) -> None:
    assert HubModel.of("owner/name", "v1.0") == HubModel.of("owner/name@v1.0", "v1.0")
    with pytest.raises(ConfigError, match=r"'owner/name@v1.0' names a revision, and revision='v2.0' another one"):
        HubModel.of("owner/name@v1.0", "v2.0")
    for model in (families / "qwen2", "smollm2-135m-instruct"):
        with pytest.raises(ConfigError, match="revision is for a model on the Hugging Face hub"):
            open_checkpoint(model, revision="v1.0")
    with pytest.raises(ConfigError, match=r"revision must name a branch, a tag or a commit .* got 3"):
        rekindle.open("owner/name", revision=3)  # type: ignore[arg-type]


@pytest.mark.wide
def test_a_model_that_the_hub_does_not_have_is_named(hub: str, tmp_path: Path) -> None:
    assert "'nobody/nothing'" in open_elsewhere("nobody/nothing", tmp_path / "hub", endpoint=hub)["error"]


def test_of_folders_only_small_files_are_fetched() -> None:
    expected = ["config.json", "model-00001-of-00002.safetensors", "modules.json", "1_Pooling/config.json"]
    expected += ["tekken.json", "chat_template.json", "additional_chat_templates/tool_use.jinja", "vocab.txt"]
    expected += ["2_Dense/config.json", "2_Dense/model.safetensors"]
    others = ["onnx/model.safetensors", "original/params.json", "onnx/tokenizer.json", "a/b/config.json", "README.md"]
    others += ["consolidated.safetensors", "original/consolidated.00.safetensors"]
    model = HubModel.of("owner/name")
    assert model is not None
    assert list(filter_repo_objects(expected + others, **model.patterns)) == expected
