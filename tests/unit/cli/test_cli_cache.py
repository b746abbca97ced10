"""`rekindle cache` describes the contents of a cache directory in words, and removes only the entries asked for."""

import json
import os
import pickle
import re
import shutil
import sys
from argparse import ArgumentParser, ArgumentTypeError
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rekindle
from rekindle.__main__ import main
from rekindle.assembly.loading import identity
from rekindle.chats import archive
from rekindle.chats.archive import Recording, TalkArchive
from rekindle.cli import requirements
from rekindle.cli.arguments import cache as its_arguments
from rekindle.cli.cache import stores
from rekindle.cli.models.planning import Requirements
from rekindle.cli.units import parse_size
from rekindle.core.concurrency.progress import silent
from rekindle.core.device.programs.key import CODE, ProgramKey
from rekindle.core.device.programs.store import ProgramCatalog
from rekindle.core.store.snapshot_key import SnapshotKey
from rekindle.core.store.sources import SOURCES as SOURCE_FILES
from rekindle.core.store.weight_store import WeightStore
from rekindle.core.words import ago, size_text
from tests.two_steps import OPTIONS, SETTINGS
from tests.unit.stored_programs import MODEL, save_as, serialized, some_key
from tests.unit.stored_snapshots import PATH_PAGES, open_store, path, write

STEPS = ("step of 64+0", "step of 512+0", "step of 0+4")
SOURCES = ("tiny.gguf", "/hub/models--owner--tiny/snapshots/0123", "")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Choose a cache directory that does not exist yet."""
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a cache with a model, three programs, and a snapshot of two segments."""
    root = tmp_path_factory.mktemp("caches") / "example"
    for name in ("models", "tests"):
        (root / name).mkdir(mode=0o700, parents=True)
    (root / "models" / "tiny.gguf").write_bytes(bytes(2_500_000))
    (root / "tests" / "notes").write_bytes(bytes(999))
    for place, name in enumerate(STEPS):
        save_as(root / "programs", step_key(name), serialized(), SOURCES[place])
        used(root / "programs" / step_key(name).digest, 1000 + place)
    for number in (1, 2):
        write(open_store(root / "snapshots"), path(number))
    for segment in segments(root):
        used(segment, 500)
    root.chmod(0o700)
    return root


@pytest.fixture
def filled(example: Path, cache: Path) -> Path:
    shutil.copytree(example, cache)
    return cache


def step_key(name: str) -> ProgramKey:
    key = some_key(0)
    build = replace(key.build, model=repr(MODEL), code=SOURCE_FILES.digest(CODE))
    return replace(key, program=name, statics=json.dumps({"dtype": "float32"}), build=build)


def used(entry: Path, second: int) -> None:
    os.utime(entry / "seal.json", (second, second))


def programs(cache: Path) -> set[str]:
    return {entry.parts["program"] for entry in ProgramCatalog(cache / "programs").entries()}


def segments(cache: Path) -> list[Path]:
    return list((cache / "snapshots").glob("*/*"))


def flip_a_byte(entry: Path) -> None:
    file = max((file for file in entry.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def run_cache(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Run a command; return its text on stdout, or on stderr for an error."""
    capsys.readouterr()
    assert main(["cache", *arguments]) == status
    output = capsys.readouterr()
    return output.err or output.out


def test_ls_names_what_is_there_in_words(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = run_cache(capsys, "ls")
    lines = output.splitlines()
    assert lines[0] == str(filled)
    assert "models, 2.5 MB" in lines
    assert "  tiny.gguf  2.5 MB" in lines
    assert "  owner/tiny, tiny.gguf: llama of 3 layers, hidden 8, float32, for cpu" in lines
    assert re.search(r"\n    3 programs, .* kB, used [\d,]+ days ago\n    step of 0\+4, 64\+0, 512\+0\n", output)
    assert "  a model, float32, of another version of Rekindle" in lines
    assert re.search(rf"\n    {2 * PATH_PAGES} pages, {8 * PATH_PAGES} tokens, .* used [\d,]+ days ago\n", output)
    assert "  tests  999 B" in lines
    assert not re.search("[0-9a-f]{64}", output)


def test_ls_long_has_every_digest(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {entry.name for entry in [*(filled / "programs").iterdir(), *(filled / "snapshots").iterdir()]}
    assert set(re.findall("[0-9a-f]{64}", run_cache(capsys, "ls", "--long"))) == names


def test_ls_tells_what_no_entry_accounts_for(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "damaged" not in run_cache(capsys, "ls")
    (filled / "programs" / ".writing-x").mkdir()
    (filled / "programs" / ".writing-x" / "half").write_bytes(bytes(1234))
    assert "  and 1.23 kB in damaged entries, in leftovers of killed processes, or being written\n" in run_cache(
        capsys, "ls"
    )


def test_size_adds_up(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = dict(re.split("  +", line.strip(), maxsplit=1) for line in run_cache(capsys, "size").splitlines()[1:])
    assert list(rows) == ["models", "programs", "snapshots", "tests", "all of it"]
    total = sum(file.stat().st_size for file in filled.rglob("*") if file.is_file())
    assert rows["all of it"] == size_text(total)
    assert (rows["models"], rows["tests"]) == ("2.5 MB", "999 B")


@pytest.mark.parametrize("command", ["ls", "size"])
def test_a_cache_that_is_missing_is_empty(command: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert run_cache(capsys, command).splitlines()[0] == str(cache)
        assert "The cache is empty" in run_cache(capsys, command)


@pytest.mark.parametrize("command", [["prune"], ["prune", "--max-bytes", "0"], ["clear"], ["verify"]])
def test_a_cache_that_is_missing_is_no_error(
    command: list[str], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cache(capsys, *command)
    assert list(cache.iterdir()) == []


def test_pruning_removes_what_was_used_least_recently_of_both_stores(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used(segments(filled)[0], 2000)
    newest = {segments(filled)[0], filled / "programs" / step_key(STEPS[2]).digest}
    keep = sum(file.stat().st_size for entry in newest for file in entry.rglob("*") if file.is_file())
    output = run_cache(capsys, "prune", "--max-bytes", str(keep))
    assert re.search(r"programs: 2 entries removed, .* kB freed; 1 left, ", output)
    assert re.search(r"snapshots: 1 entry removed, .* kB freed; 1 left, ", output)
    assert {*segments(filled), *(filled / "programs").iterdir()} == newest
    run_cache(capsys, "prune", "--max-bytes", str(keep - 1))
    assert {*segments(filled), *(filled / "programs").iterdir()} == newest - {
        filled / "programs" / step_key(STEPS[2]).digest
    }


def test_pruning_one_store_leaves_the_other(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "0 left" in run_cache(capsys, "prune", "--programs-bytes", "0")
    assert (programs(filled), len(segments(filled))) == (set(), 2)
    run_cache(capsys, "prune", "--snapshots-bytes", "0")
    assert (segments(filled), (filled / "models" / "tiny.gguf").is_file()) == ([], True)


def test_pruning_without_a_bound_removes_leftovers_alone(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (snapshot,) = (filled / "snapshots").iterdir()
    old, young = filled / "programs" / ".writing-old", snapshot / ".making-young"
    for leftover in (old, snapshot / ".removing-old", young):
        leftover.mkdir()
        (leftover / "half").write_bytes(bytes(100))
    output = run_cache(capsys, "prune")
    assert "programs: 0 entries removed, 100 B freed; 3 left" in output
    assert "snapshots: 0 entries removed, 100 B freed; 2 left" in output
    assert "Without a bound" in output
    assert (old.exists(), young.exists(), len(programs(filled)), len(segments(filled))) == (False, True, 3, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-bytes", "2X"], "expected a size such as 500M, 2G or 1.5GiB, got '2X'"),
        (["--max-bytes", "2G", "--programs-bytes", "1G"], "not both"),
    ],
)
def test_a_bound_that_cannot_be_read_removes_nothing(
    arguments: list[str], message: str, filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["cache", "prune", *arguments])
    assert exited.value.code == 2
    assert message in capsys.readouterr().err
    assert len(programs(filled)) == 3


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ([], (0, 0, True)),
        (["all"], (0, 0, True)),
        (["programs"], (0, 2, True)),
        (["snapshots"], (3, 0, True)),
        (["models"], (3, 2, False)),
    ],
)
def test_clearing_removes_what_is_named_alone(
    what: list[str], expected: tuple[int, int, bool], filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cache(capsys, "clear", *what, "--yes")
    assert (len(programs(filled)), len(segments(filled)), (filled / "models" / "tiny.gguf").exists()) == expected
    assert (filled / "tests" / "notes").exists()
    if what:
        assert "There is nothing to remove" in run_cache(capsys, "clear", *what)


class Terminal:
    """A terminal where a person types an answer."""

    def __init__(self, answer: str):
        self._answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self._answer


@pytest.mark.parametrize(
    ("answer", "removed"), [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("", False)]
)
def test_clearing_asks_a_person(
    answer: str, removed: bool, filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    output = run_cache(capsys, "clear", "programs", status=0 if removed else 1)
    assert re.match(rf"Remove .* kB of programs for good, in {filled / 'programs'}\? \[y/N\] ", output)
    assert (programs(filled) == set()) == removed
    assert ("Nothing was removed." in output) != removed


def test_clearing_is_refused_where_nobody_can_be_asked(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give --yes" in run_cache(capsys, "clear", status=1)
    assert len(programs(filled)) == 3


def test_verifying_names_what_is_damaged_and_drops_it_where_asked(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"programs": "3 entries", "snapshots": "2 entries", "images": "0 entries", "weights": "0 entries"}
    right = "".join(f"{name}: {count} read, nothing is wrong\n" for name, count in counts.items())
    assert run_cache(capsys, "verify") == right
    bad = [filled / "programs" / step_key(STEPS[1]).digest, segments(filled)[0]]
    for entry in bad:
        flip_a_byte(entry)
    for drop in ([], ["--drop"]):
        output = run_cache(capsys, "verify", *drop, status=1)
        assert re.findall("^  (/.*)$", output, re.MULTILINE) == [str(entry) for entry in bad]
        assert "programs: 3 entries read, 1 cannot be used\nsnapshots: 2 entries read, 1 cannot be used\n" in output
    assert (programs(filled), len(segments(filled))) == ({STEPS[0], STEPS[2]}, 1)
    assert "1 entry read, nothing is wrong" in run_cache(capsys, "verify")


@pytest.mark.skipif(os.name == "nt", reason="mode bits of POSIX")
@pytest.mark.parametrize("name", ["", "programs", "snapshots"])
@pytest.mark.parametrize("command", ["ls", "size", "prune", "clear --yes", "verify"])
def test_a_directory_that_others_can_write_to_is_refused(
    command: str, name: str, filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (filled / name).chmod(0o770)
    error = run_cache(capsys, *command.split(), status=1)
    assert error.startswith(f"rekindle: {filled / name} is writable by others")
    assert (len(list((filled / "programs").iterdir())), len(segments(filled))) == (3, 2)


def test_no_command_deserializes_anything(
    filled: Path, families: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was deserialized")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr("rekindle.core.device.programs.store.deserialize_and_load", refuse)
    monkeypatch.setattr("rekindle.formats.checkpoints.checkpoint.LazyTensors.__getitem__", refuse)
    for command in ("ls", "size", "verify", "prune --max-bytes 1G", "clear --yes"):
        run_cache(capsys, *command.split())
    run_cache(capsys, "explain", str(families / "llama-tied"), *OPTIONS.split())


@pytest.fixture
def needs(cache: Path, families: Path) -> Requirements:
    """Return the programs and pages for `explain`."""
    parser = ArgumentParser()
    requirements.add_arguments(parser)
    return Requirements.of(parser.parse_args([str(families / "llama-tied"), *OPTIONS.split()]), silent)


def explained(capsys: pytest.CaptureFixture[str], requirements: Requirements, *arguments: str) -> str:
    return run_cache(capsys, "explain", requirements.blueprint.checkpoint.source, *OPTIONS.split(), *arguments)


def test_explain_tells_programs_that_are_stored_from_those_that_are_not(
    needs: Requirements, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "  not stored: empty, step of 16+0, step of 0+2, scatter, gather, enter, allow\n    no program" in explained(
        capsys, needs
    )
    first, second, *rest = needs.blueprint.all_programs()
    other = needs.blueprint.program_keys()(second)
    changed = replace(other, build=replace(other.build, xla_flags="XLA_FLAGS: --xla_a", code="0" * 64))
    assert needs.store.save(first, serialized())
    save_as(cache / "programs", changed, serialized())
    output = explained(capsys, needs)
    assert f"programs: 1 of 7 are stored in {cache / 'programs'}\n  stored: empty\n" in output
    assert (
        "  not stored: step of 16+0\n    the most similar stored program differs in\n"
        "      code (the sources of Rekindle)" in output
    )
    assert f"        here    {SOURCE_FILES.digest(CODE)[:12]}...\n        stored  000000000000...\n" in output
    assert "        stored  XLA_FLAGS: --xla_a\n" in output
    assert "jax_config" not in output
    assert f"        stored  {'0' * 64}\n" in explained(capsys, needs, "--long")


def test_explain_shows_of_a_long_value_only_what_differs(
    needs: Requirements, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = needs.blueprint.program_keys()(needs.blueprint.all_programs()[0])
    other = replace(key.build, jax_config=key.build.jax_config.replace("jax_enable_x64=None", "jax_enable_x64=True"))
    statics = key.statics.replace('"dtype": "float32"', '"dtype": "bfloat16"')
    save_as(cache / "programs", replace(key, statics=statics, build=other), serialized())
    output = explained(capsys, needs)
    assert "        here    jax_enable_x64=None\n        stored  jax_enable_x64=True\n" in output
    assert '        here    "dtype": "float32"\n        stored  "dtype": "bfloat16"\n' in output


@pytest.mark.wide
def test_explain_finds_what_a_session_left(cache: Path, families: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = families / "llama-tied"
    with rekindle.open_sync(model, progress=False, **SETTINGS) as session:
        session.generate_sync(token_ids=range(3, 43), max_tokens=2)
        session.precompiled_sync(progress=False)
        session.save_sync()
        assert session.stats.scheduler.disk_pages == 2
    output = run_cache(capsys, "explain", str(model), *OPTIONS.split())
    assert "programs: 7 of 7 are stored in" in output
    assert "snapshot: 2 pages, 32 tokens, " in output
    other = run_cache(capsys, "explain", str(model), *OPTIONS.split(), "--page-size", "32", "--max-context", "128")
    assert f"snapshot: the stored one of {model} is not used; it differs in\n  page_size\n    here    32\n" in other
    assert f"\n  {model}, float32\n    2 pages, 32 tokens" in run_cache(capsys, "ls")
    shutil.copytree(model, cache / "copy")
    assert f"snapshot: none of {cache / 'copy'} is stored" in run_cache(capsys, "explain", str(cache / "copy"))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("123", 123),
        ("500M", 500_000_000),
        ("2G", 2 * 10**9),
        ("2gb", 2 * 10**9),
        ("1.5GiB", 3 << 29),
        ("1.5 KiB", 1536),
        ("0.1k", 100),
        ("3 MB", 3_000_000),
        ("1TiB", 1 << 40),
        ("7B", 7),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "G", "-1", "1e9", "nan", "1,5G", "1.G", "2X", "1 Gi G", "1G2", "٣G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"expected a size such as 500M, 2G or 1\.5GiB, got"):
        parse_size(text)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "less than a minute ago"),
        (59, "less than a minute ago"),
        (60, "1 minute ago"),
        (7300, "2 hours ago"),
        (2e5, "2 days ago"),
    ],
)
def test_times_are_told_in_their_largest_unit(seconds: float, words: str) -> None:
    assert ago(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (999_499, "999 kB"), (999_600, "1 MB"), (2 * 10**12, "2000 GB")],
)
def test_sizes_are_told_in_three_digits(count: int, words: str) -> None:
    assert size_text(count) == words


def test_the_arguments_name_the_stores() -> None:
    assert tuple(stores.STORES) == its_arguments.STORES
    assert stores.MODELS == its_arguments.MODELS
    assert archive.HISTORY == its_arguments.HISTORY


def test_conversations_are_listed_pruned_and_cleared_by_name(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = Recording(TalkArchive("owner/name"))
    for number in range(3):
        assert (
            recording.write([{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": "Yes"}]) == ""
        )
    (cache / "history" / "chat").write_bytes(bytes(1000))
    (cache / "history" / "chat-0-damaged.json").write_text("{")
    output = run_cache(capsys, "ls")
    assert re.search(r"\n  owner/name: 3 conversations, .* B, the last turn less than a minute ago\n", output)
    assert "  and 1 kB of typed lines and damaged files" in output
    assert "others" not in output
    assert re.search("\n  history +1.* kB", run_cache(capsys, "size"))
    old = max(cache.glob("history/chat-*-*.json"))
    os.utime(old, (0, 0))
    assert re.search("\nhistory: 1 entry removed, .* freed; 4 left", run_cache(capsys, "prune"))
    run_cache(capsys, "clear", "--yes")
    assert len(list((cache / "history").iterdir())) == 4, "all means what is computed again"
    run_cache(capsys, "clear", "history", "--yes")
    assert list((cache / "history").iterdir()) == []


def test_converted_weights_are_listed_measured_and_removed(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = SnapshotKey((("numbers", "bfloat16"), ("code", SOURCE_FILES.digest(identity.CODE))))
    numbers = np.arange(250_000, dtype=np.uint8)
    for shard in ("decoder 0 of 2", "decoder 1 of 2"):
        store = WeightStore(filled / "weights", key, "/hub/models--owner--tiny/snapshots/0123", 1 << 30)
        assert store.write(shard, [("uint8", (250_000,))], lambda _: numbers, 0, lambda _: False)
    assert "\n  owner/tiny, bfloat16: 2 files, 50" in run_cache(capsys, "ls")
    assert re.search(r"weights +50\d kB\n", run_cache(capsys, "size"))
    assert "weights: 2 entries read, nothing is wrong\n" in run_cache(capsys, "verify")
    assert "weights: 1 entry removed, 25" in run_cache(capsys, "prune", "--weights-bytes", "300k")
    assert "weights: 1 entry removed, 25" in run_cache(capsys, "clear", "weights", "--yes")
    assert not list((filled / "weights").iterdir())
