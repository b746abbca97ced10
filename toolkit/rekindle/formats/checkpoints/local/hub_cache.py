"""The models in the cache of the Hugging Face hub, by snapshot, without a question to the hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rekindle.formats.checkpoints.hub import HubModel, cached_path
from rekindle.formats.checkpoints.local.model import LocalModel, bytes_of, first_parts, missing

if TYPE_CHECKING:
    from huggingface_hub import CachedRevisionInfo

PREFIX: Final = "huggingface:"


def cached_models() -> Iterator[LocalModel]:
    """Yield the models of all snapshots; names have the branch or the commit, except for "main"."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except (CacheNotFound, RuntimeError):  # a user without a home directory
        return
    for repository in sorted(repositories, key=lambda each: each.repo_id):
        if repository.repo_type == "model":
            for revision in sorted(repository.revisions, key=lambda each: each.commit_hash):
                yield from _models(repository.repo_id, revision)


def find_in_cache(name: str) -> Path:
    """Return the directory or the GGUF file of a model in the cache, by its id and optional revision.

    Raises:
        ModelNotFound: the cache has no such model.
    """
    from huggingface_hub import constants

    model = HubModel.of(name)
    path = None if model is None else cached_path(model)
    if path is not None:
        return path
    models = list(cached_models())
    for each in models:
        if each.name.casefold() == f"{PREFIX}{name}".casefold():
            return each.path
    remedy = f"`hf download {name.partition('@')[0]}` downloads it; HF_HUB_CACHE names another cache"
    names = [each.name for each in models]
    raise missing(PREFIX + name, "the Hugging Face cache", [Path(constants.HF_HUB_CACHE)], names, remedy)


def _models(repository: str, revision: "CachedRevisionInfo") -> Iterator[LocalModel]:
    snapshot = revision.snapshot_path
    ref = next(iter(sorted(revision.refs)), revision.commit_hash)
    suffix = "" if "main" in revision.refs else f"@{ref}"
    if (snapshot / "config.json").is_file() and any(snapshot.glob("*.safetensors")):
        yield LocalModel(f"{PREFIX}{repository}{suffix}", snapshot, bytes_of(snapshot))
    for file in first_parts(list(snapshot.rglob("*.gguf"))):
        name = f"{PREFIX}{repository}/{file.relative_to(snapshot).as_posix()}{suffix}"
        yield LocalModel(name, file, bytes_of(file))
