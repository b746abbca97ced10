"""Mutated GGUF files and tokenizers end in errors of Rekindle's, and never end or hold the process, or its memory."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.unit.formats.file_mutations import mutations, write_gguf
from tests.unit.formats.test_checkpoint_huggingface import Copy, copy  # noqa: F401
from tests.waiting import PATIENCE

SAMPLE, ALL = 16, 2000
KINDS = ("gguf", "tokenizer")
VISION = Path(__file__).parents[2] / "goldens" / "vision" / "smolvlm"


@pytest.fixture
def source(request: pytest.FixtureRequest, families: Path, tmp_path: Path, copy: Copy) -> Path:  # noqa: F811
    """Return the file or the directory to mutate."""
    if request.param == "gguf":
        return write_gguf(families, tmp_path / "model.gguf")
    directory = copy("llama-tied")
    (directory / "tokenizer.json").write_bytes((VISION / "tokenizer.json").read_bytes())
    return directory


@pytest.mark.parametrize(("kind", "source"), [(kind, kind) for kind in KINDS], indirect=["source"])
def test_some_mutations_end_in_errors_of_rekindle(kind: str, source: Path) -> None:
    outcomes = Counter(words for _, words in mutations(kind, source, 0, SAMPLE))
    assert outcomes["CheckpointError"] > SAMPLE // 8, outcomes


@pytest.mark.deep
@pytest.mark.parametrize(("kind", "source"), [(kind, kind) for kind in KINDS], indirect=["source"])
def test_two_thousand_mutations_end_soon_in_errors_of_rekindle(kind: str, source: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.formats.file_mutations", kind, str(source), "0", str(ALL)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert (len(lines), done.returncode) == (ALL, 0), (lines[-1:], done.returncode, done.stderr[-3000:])
    assert not [line for line in lines if line[1] == "RAW"]
