"""The cache directory is this user's alone, and files in it appear whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from rekindle.assembly.loading.stores import store_directory
from rekindle.core.errors import ModelNotFound, StorageError
from rekindle.core.store.directory import atomic_write, cache_dir
from rekindle.formats.checkpoints.local.listing import Listing
from rekindle.formats.checkpoints.local.lmstudio import lmstudio_models
from rekindle.formats.checkpoints.local.model import home_directory
from rekindle.formats.checkpoints.local.ollama import ollama_models
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.unit.flushes import watched


def test_directories_are_made_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    inner = cache_dir("models", "inner")
    assert inner == tmp_path / "cache" / "models" / "inner"
    for directory in (inner, inner.parent, inner.parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_without_the_variable_the_platform_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REKINDLE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir().name == "rekindle"
    assert cache_dir().is_relative_to(tmp_path)


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o1777])
def test_a_directory_that_others_can_write_to_is_refused(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models").chmod(mode)
    with pytest.raises(StorageError, match="chmod -R go-w"):
        cache_dir("models")


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path))
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(StorageError, match=f"belongs to user {owner}.*set REKINDLE_CACHE"):
        cache_dir()


def test_a_place_that_cannot_be_a_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="cannot be created"):
        cache_dir()


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "entry"
    target.write_bytes(b"old")
    with atomic_write(target) as file:
        file.write(b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def write_and_fail() -> None:
        with atomic_write(tmp_path / "entry") as file:
            file.write(b"half")
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        write_and_fail()
    assert list(tmp_path.iterdir()) == []


def test_a_file_outlasts_a_power_cut_once_it_has_its_name(tmp_path: Path) -> None:
    with watched(tmp_path) as flushes, atomic_write(tmp_path / "entry") as file:
        file.write(b"new")
    assert flushes.targets == [tmp_path / "entry"]
    assert (flushes.unflushed, flushes.dirty) == ([], False)


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "REKINDLE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    with pytest.raises(StorageError, match=r"this user has no home directory .*set REKINDLE_CACHE"):
        cache_dir()
    with pytest.warns(RuntimeWarning, match="nothing is restored, and nothing will be: there is no cache directory"):
        assert store_directory("auto") is None
    assert home_directory() == Path("~")
    assert list(ollama_models(Listing())) == []
    assert list(lmstudio_models(Listing())) == []
    with pytest.raises(ModelNotFound, match="no model '~nobody/x'"):
        open_checkpoint("~nobody/x")
    monkeypatch.setenv("REKINDLE_CACHE", "~/cache")
    with pytest.raises(StorageError, match="set REKINDLE_CACHE"):
        cache_dir()
