"""The models of the plugin: the default one, and the added ones of a file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import llm

PREFIX: Final = "rekindle/"
"""The beginning of all ids, which tells this plugin's models from others."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the plugin.

    Attributes:
        name: the id without its prefix.
        model: the model, as for `rekindle.open`.
        aliases: further names.
        embeds: whether the model is for embeddings, not for text.
    """

    name: str
    model: str
    aliases: Sequence[str] = ()
    embeds: bool = False

    @property
    def model_id(self) -> str:
        """The id in `llm`."""
        return PREFIX + self.name


DEFAULT: Final = Entry("smollm2-135m-instruct", "smollm2-135m-instruct", ("rekindle/smollm2", "smollm2"))
"""The small model of PyPI, without an entry in the file."""


def models_path() -> Path:
    """Return the path of the file with the added models."""
    return Path(llm.user_dir()) / "rekindle.json"


def added_models() -> list[Entry]:
    """Return the default model and those of the file.

    Raises:
        ValueError: the file has another format.
    """
    path = models_path()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = [Entry(name, **fields) for name, fields in content.items()]
    except FileNotFoundError:
        return [DEFAULT]
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not as `llm rekindle add` writes it ({error}): mend or delete it") from error
    return [*([] if DEFAULT.name in content else [DEFAULT]), *entries]


def write(entries: Sequence[Entry]) -> None:
    """Write the added models to the file, in place of its content."""
    content = {}
    for entry in entries:
        if entry != DEFAULT:
            fields = asdict(entry)
            content[fields.pop("name")] = fields
    path = models_path()
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    new.replace(path)
