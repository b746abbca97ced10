"""Identity of an engine: all content that decides its answers, by part, and the parts in the key of each survivor.

A survivor, such as a stored page, outlives a call or a process. The key of a survivor takes all parts of the identity,
except for the entries of `LEFT_OUT`, each with a reason.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Final, Literal

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.core.content import Indigestible, content_digest
from rekindle.core.device.programs.key import SharedKey, Target, cpu_model
from rekindle.core.store.snapshot_key import SnapshotKey, content_fingerprint
from rekindle.core.store.sources import SOURCES
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.families.reading import Family
from rekindle.formats.weight_file import is_unchanged
from rekindle_kernels.api import library_of

Part = Literal[
    "weights",
    "configs",
    "model",
    "tower",
    "family",
    "tokenizer",
    "template",
    "defaults",
    "processor",
    "context",
    "numbers",
    "page_size",
    "page",
    "kernels",
    "library",
    "machine",
    "compiler",
    "devices",
    "rows",
    "shapes",
    "code",
]
PARTS: Final[Mapping[Part, str]] = {
    "weights": "all bytes of the weight files, with a vision tower",
    "configs": "all bytes of config.json and of the files like it",
    "model": "structure of the decoder",
    "tower": "structure of the vision tower",
    "family": "function given as `family`",
    "tokenizer": "vocabulary and rules of the tokenizer, and the end tokens",
    "template": "chat templates",
    "defaults": "sampling options of the model's files",
    "processor": "logits processor",
    "context": "largest number of tokens of a prompt with its answer",
    "numbers": "data types of weights and pages, and the forms of packed weights",
    "page_size": "number of tokens in a page",
    "page": "dtype and shape of a page, and of a state",
    "kernels": "implementation of the kernels, and the platform",
    "library": "instruction set and library of the native kernels",
    "machine": "model of the device, or of the CPU",
    "compiler": "versions, settings and flags of JAX and XLA",
    "devices": "number of devices of a sum",
    "rows": "the one program of `deterministic=True`, where rows depend on the program",
    "shapes": "sizes of programs and chunks",
    "code": "sources of all imports of an engine",
}

Survivor = Literal["pages", "images", "converted", "programs", "map", "fingerprint", "replicas"]

_ONCE: Final = ", once as "
"""Mark of a text without a second occurrence."""
_CHOICE: Final = "chooses tokens, and a page is found by its tokens"
_TOWER: Final = "belongs to the decoder, and an embedding is of the tower alone"
_ANSWER: Final = "decides answers by the same weights"
_DIGITS: Final = "changes last digits at most, and a map may go on elsewhere"
_PLACE: Final = "belongs to the place of a replica, whose own keys have it"
LEFT_OUT: Final[Mapping[Survivor, Mapping[Part, str]]] = {
    "pages": {
        "tokenizer": _CHOICE,
        "template": _CHOICE,
        "defaults": _CHOICE,
        "processor": _CHOICE,
        "context": "bounds the number of pages, not the numbers in one",
        "shapes": "changes no bit where rows are independent; where they are not, `rows` has the program",
    },
    "images": {
        "model": _TOWER,
        "family": _TOWER,
        "tokenizer": _TOWER,
        "template": _TOWER,
        "defaults": _TOWER,
        "processor": _TOWER,
        "context": _TOWER,
        "page_size": _TOWER,
        "page": _TOWER,
        "devices": "each device computes the whole tower",
        "rows": _TOWER,
        "shapes": _TOWER,
    },
    "converted": {
        "tokenizer": _ANSWER,
        "template": _ANSWER,
        "defaults": _ANSWER,
        "processor": _ANSWER,
        "context": "bounds pages, and no weight depends on them",
        "page_size": "of pages, and no weight depends on them",
        "page": "of pages, and no weight depends on them",
        "compiler": "numpy and the library of the kernels convert, and no program",
        "rows": "a program, which takes the same weights",
        "shapes": "sizes of programs, which take the same weights",
    },
    "programs": {
        "weights": "argument of a program; its shapes and types are in the key",
        "configs": "decides the weights, which are arguments",
        "family": "decides the structure, which is in the key",
        "tokenizer": "not known to a program",
        "template": "not known to a program",
        "defaults": "argument of a program",
        "context": "in the key as the shape of the page tables",
        "rows": "a program itself",
        "shapes": "each size is another program",
    },
    "map": {
        "defaults": "merged into the options of the call, which are compared",
        "page_size": _DIGITS,
        "page": _DIGITS,
        "library": _DIGITS,
        "machine": _DIGITS,
        "compiler": _DIGITS,
        "devices": _DIGITS,
        "rows": _DIGITS,
        "shapes": _DIGITS,
    },
    "fingerprint": {},
    "replicas": {
        "family": "in the recipe, as a function",
        "defaults": "used by the session, not by a replica",
        "processor": "in the recipe, as a function",
        "context": "in the recipe, as settings",
        "numbers": "in the recipe, as settings",
        "page_size": "in the recipe, as settings",
        "page": "in the recipe, as settings",
        "shapes": "in the recipe, as settings",
        "kernels": _PLACE,
        "library": _PLACE,
        "machine": _PLACE,
        "compiler": _PLACE,
        "devices": _PLACE,
        "rows": _PLACE,
    },
}
"""Parts missing in the key of a survivor, each with the reason. `test_identity.py` changes every part."""

CODE: Final = "rekindle.assembly.building"
"""The root of all modules with an effect on the numbers of a page or the tokens of a prompt."""


class Identity:
    """The content of each part as a text, computed at first use. Thread-safe.

    Args:
        contents: the text of each part, or a function for the text.
    """

    def __init__(self, contents: Mapping[Part, str | Callable[[], str]]):
        self._contents = dict(contents)
        self._lock = Lock()

    @classmethod
    def of(
        cls, blueprint: Blueprint, family: Family | None = None, defaults: Mapping[str, Any] | None = None
    ) -> "Identity":
        """Return the identity of the engine of a blueprint, given the `family` of `open` and the sampling defaults."""
        checkpoint, programs, place = blueprint.checkpoint, blueprint.programs, blueprint.place
        implementation = programs.shapes.implementation
        state, form = programs.shapes.state, blueprint.form
        copies = [each for each in (state.page, state.state) if each is not None]
        limits, platform = blueprint.limits, place.first.platform
        return cls(
            {
                **model_contents(checkpoint),
                "family": lambda: "" if family is None else _digest_or_unknown(family),
                "defaults": lambda: content_digest([dict(defaults or {}), dict(checkpoint.chat_defaults)]),
                "processor": str(programs.statics.get("logits_processor", "")),
                "context": str(limits.max_context),
                "numbers": blueprint.dtype.name
                + (f", {blueprint.kv_dtype.name} pages" if blueprint.kv_dtype != blueprint.dtype else "")
                + (f", {form} ({form.digest})" if form.kinds else ""),
                "page_size": str(limits.pool.page_size),
                "page": ", ".join(f"{copy.dtype.name}{list(copy.shape)}" for copy in copies),
                "kernels": f"{implementation} on {platform}",
                "library": lambda: library_of(implementation),
                "machine": lambda: cpu_model() if platform == "cpu" else Target.of(place.devices).device_kind,
                "compiler": lambda: (
                    SharedKey.of(checkpoint.config, Target.of(place.devices), programs.jax_settings).compiler
                ),
                "devices": str(place.tensor),
                "rows": lambda: blueprint.one_program,
                "shapes": lambda: content_digest(
                    [limits.one_shape, limits.prefill_chunk, *map(str, limits.all_buckets())]
                ),
                "code": lambda: SOURCES.digest(CODE),
            }
        )

    def __getitem__(self, part: Part) -> str:
        with self._lock:
            content = self._contents[part]
            if not isinstance(content, str):
                content = self._contents[part] = content()
            return content

    def taken_by(self, survivor: Survivor) -> dict[Part, str]:
        """Return the parts in the key of a survivor.

        Raises:
            OSError: a weight file cannot be read.
        """
        return {part: self[part] for part in self._contents if part not in LEFT_OUT[survivor]}

    def pages_key(self) -> SnapshotKey:
        """Return the key of stored pages; raises as `taken_by`."""
        return SnapshotKey(tuple(self.taken_by("pages").items()))

    def images_key(self) -> SnapshotKey:
        """Return the key of stored embeddings of images; raises as `taken_by`."""
        return SnapshotKey(tuple(self.taken_by("images").items()))

    def weights_key(self) -> SnapshotKey:
        """Return the key of converted weights; raises as `taken_by`."""
        return SnapshotKey(tuple(self.taken_by("converted").items()))

    def is_unrepeated(self, survivor: Survivor) -> bool:
        """Return True if the key of a survivor is the only one of its kind, so that nothing is found by it again."""
        return any(_ONCE in text for text in self.taken_by(survivor).values())

    def texts(self) -> dict[Part, str]:
        """Return the text of every part, for another process; raises as `taken_by`."""
        return {part: self[part] for part in self._contents}


def model_contents(checkpoint: Checkpoint) -> dict[Part, Callable[[], str] | str]:
    """Return the parts of a model's files, the same for copies on other machines."""
    tokenizer = checkpoint.tokenizer
    return {
        "weights": lambda: weights_digest_of(checkpoint),
        "configs": checkpoint.configs,
        "model": repr(checkpoint.config),
        "tower": "" if checkpoint.vision is None else repr(checkpoint.vision.config),
        "tokenizer": lambda: content_digest([_tokenizer_content(tokenizer), sorted(checkpoint.eos_ids)]),
        "template": lambda: content_digest(
            None if tokenizer is None else [tokenizer.chat_template, tokenizer.tool_template]
        ),
    }


def weights_digest_of(checkpoint: Checkpoint) -> str:
    """Return the digest of opened weight files; for files changed since, a text without a second occurrence.

    Raises:
        OSError: a file cannot be read.
    """
    if not checkpoint.files:
        return ""
    digest = content_fingerprint(checkpoint.files)
    return digest if is_unchanged(checkpoint.stamps) else _once("changed since they were opened")


def _once(text: str) -> str:
    return f"{text}{_ONCE}{secrets.token_hex(16)}"


def _digest_or_unknown(function: Any) -> str:
    """Return the digest of a function; for unreadable content, a text without a second occurrence."""
    try:
        return content_digest(function)
    except Indigestible:
        return _once("unknown")


def _tokenizer_content(tokenizer: Tokenizer | None) -> object:
    """Return the content of a tokenizer, without its chat templates."""
    if tokenizer is None:
        return None
    try:
        backend: object = json.loads(tokenizer.to_json())
    except Exception:  # parts in Python cannot be written
        backend = tokenizer.backend.get_vocab()
    return [backend, tokenizer.bos_token, tokenizer.eos_token, tokenizer.response_template]
