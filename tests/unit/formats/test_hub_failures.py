"""A download that fails says which file, how many bytes came and why, and goes on where it stopped."""

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session  # type: ignore[attr-defined]
from tqdm.std import tqdm

import rekindle
from rekindle.assembly.devices import places_of
from rekindle.assembly.loading.admission import weight_bytes
from rekindle.core.concurrency.progress import Progress
from rekindle.core.errors import ModelError, ModelNotFound, ModelTooLarge, SessionClosed, StorageError
from rekindle.formats.checkpoints.hub import download, tokens, watch
from rekindle.formats.checkpoints.hub.meter import Meter
from rekindle.formats.checkpoints.hub.names import HubModel
from rekindle.formats.checkpoints.hub.stored import StoredWeights
from rekindle.settings.engine import Settings
from tests.unit.formats.hub_server import COMMIT, Hub, Request, sha256

MODEL = HubModel("tiny/model", None, None)
WEIGHTS = random.Random(0).randbytes(3 << 20)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache of the hub's library, which sees each few bytes and does not pause."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("HF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the library waits a second before it tries again
    tokens.notebook_token.cache_clear()
    return tmp_path / "hub"


@pytest.fixture
def serve(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that serves a hub until the end of the test."""
    with ExitStack() as stack:

        def serve(hub: Hub) -> Hub:
            stack.enter_context(hub.serve())
            monkeypatch.setattr(constants, "ENDPOINT", hub.address)
            monkeypatch.setattr(
                constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
            )
            close_session()
            return hub

        yield serve
        close_session()


def fetch(reports: list[Progress] | None = None, model: HubModel = MODEL) -> Path:
    return download.download(model, (reports if reports is not None else []).append)


def failure(model: HubModel = MODEL) -> str:
    with pytest.raises(ModelNotFound) as caught:
        fetch(model=model)
    return str(caught.value)


def model_file(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


def test_a_transfer_by_xet_without_a_byte_is_tried_once_more_without_xet(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hf_xet")
    monkeypatch.setattr(watch, "STALL", 2.0)
    hub = serve(Hub(MODEL.name, FILES, by_xet=True))
    reports: list[Progress] = []
    assert model_file(fetch(reports)) == WEIGHTS
    assert any("/xet-read-token/" in request.path for request in hub.requests), "xet was tried"
    assert hub.gets_of("model.safetensors") == [None]
    stages = list(dict.fromkeys(report.stage for report in reports))
    assert stages[1:] == ["downloading tiny/model", "downloading tiny/model without xet (no byte came for 2 s)"]
    assert reports[-1].done == reports[-1].total == len(WEIGHTS) + 2
    fetch()
    assert sum(request.method == "GET" for request in hub.requests if "resolve" in request.path) == 2, "it is cached"


def test_a_transfer_that_is_cut_goes_on_where_it_stopped(serve: Any) -> None:
    cuts = [100_000, 1_000_000]
    hub = serve(Hub(MODEL.name, FILES, cut=lambda request: cuts.pop(0) if cuts and _is_weights(request) else None))
    reports: list[Progress] = []
    assert model_file(fetch(reports)) == WEIGHTS
    first, *others = hub.gets_of("model.safetensors")
    assert first is None
    assert len(others) == 2
    assert all(each and each.startswith("bytes=") for each in others)
    assert max(report.done for report in reports) == len(WEIGHTS) + 2


@pytest.mark.parametrize("stalls", [False, True])
def test_a_download_that_failed_goes_on_when_the_model_is_opened_again(
    serve: Any, stalls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2 if stalls else 10)
    rest = [1_000_000]  # the bytes of the first connection; later ones bring none

    def cut(request: Request) -> int | None:
        return (rest.pop() if rest else 0) if _is_weights(request) else None

    hub = serve(Hub(MODEL.name, FILES, cut=cut, stalls=stalls))
    message = failure()
    (partial,) = Path(constants.HF_HUB_CACHE).rglob("*.incomplete")
    here = partial.stat().st_size
    assert 900_000 < here <= 1_000_000
    assert f"model.safetensors stopped at {here / 1000:.0f} kB of 3.15 MB: " in message
    assert ("timed out" if stalls else "peer closed connection") in message
    assert "Open the model again: the download goes on from there" in message
    hub.cut = lambda request: None
    hub.requests.clear()
    reports: list[Progress] = []
    assert model_file(fetch(reports)) == WEIGHTS
    assert hub.gets_of("model.safetensors") == [f"bytes={here}-"]
    assert min(report.done for report in reports[1:]) == here


def test_parts_with_another_content_are_discarded(serve: Any, cache: Path) -> None:
    hub = serve(Hub(MODEL.name, FILES))
    blobs = cache / "models--tiny--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{sha256(WEIGHTS)}.incomplete").write_bytes(bytes(1 << 20))
    assert model_file(fetch()) == WEIGHTS
    assert hub.gets_of("model.safetensors") == [f"bytes={1 << 20}-", None]


def test_a_redirect_is_followed_without_the_token(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with Hub(MODEL.name, FILES).serve() as storage:
        elsewhere = storage.address.replace("127.0.0.1", "localhost")

        def answer(request: Request) -> tuple[int, dict[str, str]] | None:
            if not _is_weights(request):
                return None
            facts = {
                "X-Linked-Size": str(len(WEIGHTS)),
                "X-Linked-Etag": f'"{sha256(WEIGHTS)}"',
                "X-Repo-Commit": COMMIT,
            }
            return 302, {"Location": elsewhere + request.path, **facts}

        hub = serve(Hub(MODEL.name, FILES, answer=answer))
        assert model_file(fetch()) == WEIGHTS
        assert all(request.headers["authorization"] == "Bearer hf_secret" for request in hub.requests)
        assert storage.gets_of("model.safetensors") == [None]
        assert not any("authorization" in request.headers for request in storage.requests)


def gated(request: Request) -> tuple[int, dict[str, str]] | None:
    """Deny access to files without the one right token."""
    if "/resolve/" not in request.path or request.headers.get("authorization") == "Bearer hf_right":
        return None
    status = 403 if "authorization" in request.headers else 401
    return status, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model tiny/model is restricted."}


def test_a_gated_model_says_where_to_get_a_token_and_where_notebooks_keep_it(serve: Any) -> None:
    hub = serve(Hub(MODEL.name, FILES, answer=gated))
    message = failure()
    assert "The model is gated, and no token was found." in message
    assert f"Accept its conditions at {hub.address}/tiny/model" in message
    assert "https://huggingface.co/settings/tokens" in message
    assert "on Colab, add it under Secrets" in message
    assert "on Kaggle, add it under Add-ons, Secrets as HF_TOKEN" in message


def test_a_token_without_access_is_told_apart_and_never_printed(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    serve(Hub(MODEL.name, FILES, answer=gated))
    message = failure()
    assert "the account of the token has no access to it" in message
    assert "hf_wrong" not in message


@pytest.mark.parametrize("place", ["kaggle", "colab"])
def test_the_secret_of_a_notebook_is_read(
    place: str, serve: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hub = serve(Hub(MODEL.name, FILES, answer=gated))
    keep_secret(place, monkeypatch, {"HF_TOKEN": "hf_right"}.__getitem__)
    reports: list[Progress] = []
    assert model_file(fetch(reports)) == WEIGHTS
    assert hub.requests[-1].headers["authorization"] == "Bearer hf_right"
    assert "hf_right" not in "".join(capfd.readouterr()) + str(reports)


@pytest.mark.parametrize("place", ["kaggle", "colab"])
def test_a_secret_that_is_not_allowed_is_as_none(place: str, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(Hub(MODEL.name, FILES, answer=gated))
    keep_secret(place, monkeypatch, {}.__getitem__)
    assert "no token was found" in failure()


def keep_secret(place: str, monkeypatch: pytest.MonkeyPatch, get: Any) -> None:
    """Import modules as on Kaggle or Colab, whose secrets `get` returns."""
    modules: dict[str, Any]
    if place == "kaggle":
        modules = {"kaggle_secrets": SimpleNamespace(UserSecretsClient=lambda: SimpleNamespace(get_secret=get))}
    else:
        modules = dict.fromkeys(("google", "google.colab")) | {"google.colab.userdata": SimpleNamespace(get=get)}
    for name, contents in modules.items():
        module: Any = ModuleType(name)
        module.__spec__, module.__path__ = SimpleNamespace(), []
        module.__dict__.update(vars(contents) if contents else {})
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (404, {"X-Error-Code": "RepoNotFound"}, "There is no 'tiny/model', or it is private (404)."),
        (404, {"X-Error-Code": "RevisionNotFound"}, "It has no revision 'v9'."),
        (
            401,
            {"X-Error-Message": "Invalid credentials in Authorization header"},
            "The hub refused a request without a token (401",
        ),
        (403, {}, "The hub refused a request without a token (403"),
        (429, {"Retry-After": "300"}, "The hub limits requests from here (429).\n- Open the model again in 300 s"),
        (503, {}, "The hub is out of order (503"),
    ],
)
def test_an_answer_of_the_hub_is_told_in_words(status: int, headers: dict[str, str], expected: str, serve: Any) -> None:
    serve(Hub(MODEL.name, FILES, answer=lambda request: (status, headers)))
    assert expected in failure(HubModel(MODEL.name, None, "v9"))


@pytest.mark.parametrize(("status", "headers"), [(429, {"Retry-After": "7"}), (503, {})])
@pytest.mark.parametrize("about", ["/api/", "/resolve/"])
def test_a_busy_hub_is_asked_again_when_it_says(about: str, status: int, headers: dict[str, str], serve: Any) -> None:
    busy = [2]

    def answer(request: Request) -> tuple[int, dict[str, str]] | None:
        if about not in request.path or not request.path.endswith(("/main", "safetensors")) or not busy[0]:
            return None
        busy[0] -= 1
        return status, headers

    serve(Hub(MODEL.name, FILES, answer=answer))
    reports: list[Progress] = []
    assert model_file(fetch(reports)) == WEIGHTS
    waits = [report for report in reports if report.stage == "waiting, as the Hugging Face hub is busy"]
    assert len(waits) == 2 * int(headers.get("Retry-After", 1))


def test_a_hub_that_never_answers_leaves_the_cached_model(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = serve(Hub(MODEL.name, FILES))
    fetch()
    monkeypatch.setattr("rekindle.formats.checkpoints.hub.commit.PATIENCE", 0.1)
    hub.answer = lambda request: hub.over.wait() and None
    assert model_file(fetch()) == WEIGHTS


def test_a_disk_that_is_too_small_is_told_before_the_download(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = serve(Hub(MODEL.name, FILES))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=0, used=0, free=2 << 20))
    with pytest.raises(StorageError, match=r"It needs 3\.15 MB more, and 2\.1 MB are free at .*hub\n- Make room there"):
        fetch()
    assert hub.gets_of("model.safetensors") == []


@pytest.mark.parametrize(
    ("options", "size", "cure"),
    [
        ({}, "280 MB", 'Open it with quantize="int8"'),
        ({"dtype": "bfloat16"}, "140 MB", 'Open it with quantize="int8"'),
        ({"quantize": "int8", "weights": "dequantized", "dtype": "bfloat16"}, "70 MB", 'Open it with quantize="int4"'),
    ],
)
def test_weights_too_large_for_the_device_are_told_before_the_download(
    options: Any, size: str, cure: str, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = serve(Hub(MODEL.name, FILES, numbers={"BF16": 70_000_000}))
    memory = 50_000_000 if "quantize" in options else 100_000_000
    monkeypatch.setattr("rekindle.assembly.loading.admission.memory_of", lambda device: memory)
    message = rf"tiny/model does not fit on cpu:0: its weights take about {size} .* It was not downloaded\.\n- {cure}"
    with pytest.raises(ModelTooLarge, match=message):
        rekindle.open_sync(MODEL.name, progress=False, **options)
    assert hub.gets_of("model.safetensors") == []


@pytest.mark.parametrize("numbers", [{}, {"BF16": 30_000_000}], ids=["unknown", "near the limit"])
def test_weights_that_may_fit_are_downloaded(
    numbers: dict[str, int], serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = serve(Hub(MODEL.name, FILES, numbers=numbers))
    monkeypatch.setattr("rekindle.assembly.loading.admission.memory_of", lambda device: 100_000_000)
    with pytest.raises(ModelError):
        rekindle.open_sync(MODEL.name, progress=False)
    assert hub.gets_of("model.safetensors")


@pytest.mark.parametrize(
    ("name", "numbers", "settings", "expected"),
    [
        ("a/b", {"BF16": 100}, Settings(dtype="bfloat16"), 200),
        ("a/b", {"F32": 100}, Settings(dtype="bfloat16"), 200),
        ("a/b", {"F16": 100, "I32": 10, "F8_E4M3": 5}, Settings(dtype="bfloat16", quantize="int8"), 145),
        ("a/b", {"BF16": 100}, Settings(quantize="int4"), 50),
        ("a/b/m-Q4_K_M.gguf", {}, Settings(), 1000),
        ("a/b/m-F32.gguf", {}, Settings(dtype="bfloat16"), 500),
        ("a/b/m-BF16.gguf", {}, Settings(quantize="int8"), 500),
    ],
)
def test_weights_take_the_bytes_of_their_numbers_at_least(
    name: str, numbers: dict[str, int], settings: Settings, expected: int
) -> None:
    model = HubModel.of(name)
    assert model is not None
    assert weight_bytes(StoredWeights(model, 1000, numbers), settings, places_of(settings)[-1]) == expected


def test_a_disk_that_gets_full_is_told(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(Hub(MODEL.name, FILES))

    def http_get(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", http_get)
    with pytest.raises(StorageError, match=r"The disk is full at 0 B of 3\.15 MB at .*hub"):
        fetch()


def test_bars_of_a_download_leave_no_lines_above_visible_ones() -> None:
    hidden = [Meter("a", lambda _: None).bar_class()(total=3) for _ in range(3)]
    assert tqdm(file=StringIO(), total=1).pos == 0
    assert len(hidden) == 3


def test_weights_without_a_config_are_not_downloaded(serve: Any) -> None:
    hub = serve(Hub(MODEL.name, {"model_index.json": b"{}", "model.safetensors": WEIGHTS}))
    with pytest.raises(ModelNotFound, match="it is a pipeline of models for images"):
        fetch()
    assert hub.gets_of("model.safetensors") == []


def test_closing_ends_a_wait_for_bytes(serve: Any) -> None:
    hub = serve(Hub(MODEL.name, FILES, cut=lambda request: 1000 if _is_weights(request) else None, stalls=True))

    def report(progress: Progress) -> None:
        if hub.gets_of("model.safetensors"):
            raise SessionClosed("the session was closed while it was being opened")

    with pytest.raises(SessionClosed):
        download.download(MODEL, report)


def _is_weights(request: Request) -> bool:
    return request.path.endswith("/model.safetensors")
