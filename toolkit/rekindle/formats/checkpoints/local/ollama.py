"""The models of Ollama: a manifest by name, and the GGUF file among the blobs of its layers."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import CheckpointError, ModelNotFound, UnsupportedModel
from rekindle.formats.checkpoints.local.listing import Listing, is_file
from rekindle.formats.checkpoints.local.model import StoredModel, home_directory, missing
from rekindle.formats.model_file import damage

PREFIX: Final = "ollama:"
_MANIFESTS: Final = ("manifests-v2", "manifests")
"""Folders of manifests; a name in the first one hides the same name in the second."""
_PUBLIC: Final = ("registry.ollama.ai", "ollama.com")
"""Two names of one registry, which a name leaves out."""
_KIND: Final = "application/vnd.ollama.image."
_DIGEST: Final = re.compile(r"(?:sha256[:-])?([0-9a-fA-F]{64})")
_SERVICE: Final = Path("/usr/share/ollama/.ollama/models")
"""The directory of Ollama's service on Linux."""


def model_directories() -> list[Path]:
    """Return the directories of Ollama's models: of OLLAMA_MODELS, or else the user's and the service's."""
    if setting := os.environ.get("OLLAMA_MODELS", "").strip().strip("\"'"):
        return [Path(setting).expanduser()]
    own = home_directory() / ".ollama" / "models"
    return [own, _SERVICE] if _is_there(_SERVICE) else [own]


def ollama_models(listing: Listing) -> Iterator[StoredModel]:
    """Yield Ollama's models; one without a GGUF file has the path of its manifest, and the reason."""
    for short, (manifest, directory) in _manifests(listing).items():
        yield _stored(PREFIX + short, manifest, directory)


def _stored(name: str, manifest: Path, directory: Path) -> StoredModel:
    try:
        with damage(manifest):
            path = _gguf_file(name, manifest, directory)
            return StoredModel(name, path, path.stat().st_size, _numbers(name, manifest, directory))
    except (CheckpointError, UnsupportedModel) as error:
        return StoredModel(name, manifest, 0, problem=str(error).partition("\n")[0])


def _numbers(name: str, manifest: Path, directory: Path) -> str:
    """Return the kind of most numbers of a model, which the name of its file does not have; "" if it is unknown."""
    with suppress(CheckpointError):
        content = _gguf_manifest(name, _read(name, manifest), directory)
        return str(_read(name, _blob(name, content.get("config") or {}, directory)).get("file_type") or "")
    return ""


def find_in_ollama(name: str) -> Path:
    """Return the GGUF file of a model of Ollama by its name; without a tag, "latest" is meant.

    Raises:
        ModelNotFound: Ollama has no such model.
        UnsupportedModel: the model has no GGUF file, or an adapter.
        CheckpointError: the manifest or the file is unreadable or missing.
    """
    return _gguf_file(*_manifest_of(name))


def projector_in_ollama(name: str) -> Path | None:
    """Return the file with the vision tower of a model of Ollama; None for a model without one.

    Raises:
        ModelNotFound: Ollama has no such model.
        CheckpointError: the manifest or the file is unreadable or missing.
    """
    name, manifest, directory = _manifest_of(name)
    projectors = [layer for layer in _layers(name, manifest, directory) if _kind(layer) == "projector"]
    return _file_of(name, projectors[0], directory) if projectors else None


def _manifest_of(name: str) -> tuple[str, Path, Path]:
    """Return the full name of a model, its manifest, and its directory of models."""
    listing = Listing()
    manifests, target = _manifests(listing), _short_name(name)
    for each, (manifest, directory) in manifests.items():
        if each.casefold() == target.casefold():
            return PREFIX + each, manifest, directory
    raise _missing(target, list(manifests), listing.skipped)


def _missing(name: str, names: list[str], skipped: list[str]) -> ModelNotFound:
    remedy = f"`ollama pull {name}` downloads it; OLLAMA_MODELS names another directory of models"
    return missing(PREFIX + name, "Ollama", model_directories(), [PREFIX + each for each in names], remedy, skipped)


def _manifests(listing: Listing) -> dict[str, tuple[Path, Path]]:
    """Return the manifests by the short names of their models, each with its directory of models."""
    manifests: dict[str, tuple[Path, Path]] = {}
    for directory in model_directories():
        for root in (directory / each for each in _MANIFESTS):
            for entry in filter(is_file, listing.at_depth(root, 4)):  # not a link to a blob that is gone
                manifest = Path(entry.path)
                host, namespace, model, tag = manifest.relative_to(root).parts
                manifests.setdefault(_shortest(host, namespace, model, tag), (manifest, directory))
    return dict(sorted(manifests.items()))


def _is_there(directory: Path) -> bool:
    """Return True if a directory exists, also below one that this user may not read."""
    try:
        return directory.is_dir()
    except OSError:
        return True


def _short_name(name: str) -> str:
    """Return a name as Ollama prints it: with a tag, and without the public registry and its library."""
    path, colon, tag = name.strip().rpartition(":")
    if not colon or "/" in tag:  # a colon before a slash is one of a host with a port
        path, tag = name.strip(), "latest"
    *place, model = path.split("/")
    host, namespace = (["", "", *place])[-2:]
    return _shortest(host or _PUBLIC[0], namespace or "library", model, tag)


def _shortest(host: str, namespace: str, model: str, tag: str) -> str:
    is_public = host.casefold() in _PUBLIC
    parts = [] if is_public and namespace.casefold() == "library" else [namespace]
    return "/".join([*([] if is_public else [host]), *parts, f"{model}:{tag}"])


def _gguf_file(name: str, manifest: Path, directory: Path) -> Path:
    layers = _layers(name, manifest, directory)
    kinds = list(map(_kind, layers))
    if kinds.count("model") != 1:
        there = ", ".join(sorted(set(kinds))) or "none, as of a model in the cloud"
        raise UnsupportedModel(f"{name} has {kinds.count('model')} GGUF files instead of one; its layers: {there}")
    if "adapter" in kinds:
        raise UnsupportedModel(
            f"{name} has an adapter beside its model, which is not read.\n"
            "- Open the model alone, by the name after FROM in its Modelfile (`ollama show --modelfile`)\n"
            "- and pass the adapter as a PEFT directory to session.add_adapter"
        )
    return _file_of(name, layers[kinds.index("model")], directory)


def _layers(name: str, manifest: Path, directory: Path) -> list[Mapping[str, Any]]:
    return _gguf_manifest(name, _read(name, manifest), directory).get("layers") or []


def _kind(layer: Mapping[str, Any]) -> str:
    return str(layer.get("mediaType", "")).partition(";")[0].removeprefix(_KIND)


def _file_of(name: str, layer: Mapping[str, Any], directory: Path) -> Path:
    blob = _blob(name, layer, directory)
    if not blob.is_file():
        raise CheckpointError(f"{blob}, the file of {name}, is missing: `ollama pull` downloads the model again")
    return blob


def _gguf_manifest(name: str, content: Mapping[str, Any], directory: Path) -> Mapping[str, Any]:
    """Return a manifest, or of a list of manifests for several runners the one for GGUF files."""
    children: list[Mapping[str, Any]] = content.get("manifests") or []
    if not children:
        return content
    child = next((each for each in children if each.get("format") in ("gguf", None)), None)
    if child is None:
        formats = ", ".join(str(each.get("format")) for each in children)
        raise UnsupportedModel(f"{name} has no GGUF file; its formats: {formats}")
    return child if child.get("layers") else _read(name, _blob(name, child, directory))


def _blob(name: str, layer: Mapping[str, Any], directory: Path) -> Path:
    digest = _DIGEST.fullmatch(str(layer.get("digest")))
    if digest is None:
        raise CheckpointError(f"the manifest of {name} has a layer with the digest {layer.get('digest')!r}")
    return directory / "blobs" / f"sha256-{digest[1].lower()}"


def _read(name: str, manifest: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{manifest}, the manifest of {name}, cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{manifest}, the manifest of {name}, is no JSON object: `ollama pull` writes it again")
    return content
