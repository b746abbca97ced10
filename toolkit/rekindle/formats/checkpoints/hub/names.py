"""Names of models on the Hugging Face hub."""

import re
from dataclasses import dataclass
from typing import Any, Final

from rekindle.core.errors import ConfigError
from rekindle.formats.checkpoints.name_hints import WEIGHT_SUFFIXES

_NAME: Final = r"(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+)"
_GGUF: Final = r"(?P<file>(?:[\w.+-]+/)*[\w.+-]+\.gguf)"
_PATTERN: Final = re.compile(rf"{_NAME}(?:/{_GGUF})?(?:@(?P<revision>[\w./-]+))?", re.IGNORECASE)
_SPLIT: Final = re.compile(r"-\d{5}-of-(\d{5})\.gguf$", re.IGNORECASE)
_FILES: Final = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "vocab.txt", "sentencepiece.bpe.model"]
_IGNORED: Final = ["*/[!c]*.json", "*[!e]/*.safetensors", "*/tokenizer.model", "consolidated*"]
"""Weights in other formats, and files in folders, except 1_Pooling/config.json, 2_Dense/* and chat templates."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the hub.

    Attributes:
        name: `owner/name` of the repository.
        file: path of a GGUF file in the repository, or None for the whole directory.
        revision: a branch, a tag, or a commit; None for the default branch.
    """

    name: str
    file: str | None
    revision: str | None

    @classmethod
    def of(cls, model: str, revision: str | None = None) -> "HubModel | None":
        """Parse `owner/name` or `owner/name/file.gguf`, with an optional `@revision`.

        Return None if the text does not have this form.

        Raises:
            ConfigError: the text contains a revision, and `revision` is a different one.
        """
        match = _PATTERN.fullmatch(model)
        if match is None or (match["file"] is None and match["name"].lower().endswith(WEIGHT_SUFFIXES)):
            return None
        if revision is not None and match["revision"] not in (None, revision):
            raise ConfigError(f"{model!r} names a revision, and revision={revision!r} another one: omit one of them")
        return cls(match["name"], match["file"], revision or match["revision"])

    def __str__(self) -> str:
        return "/".join(filter(None, (self.name, self.file))) + (f"@{self.revision}" if self.revision else "")

    @property
    def patterns(self) -> dict[str, Any]:
        """Download filters for the hub library. For a split GGUF file they match all of its parts."""
        if self.file is None:
            return {"allow_patterns": _FILES, "ignore_patterns": _IGNORED}
        return {"allow_patterns": [_SPLIT.sub(r"-*-of-\1.gguf", self.file)]}
