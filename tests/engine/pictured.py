"""Prompts with images of tiny models, and the numbers of transformers for them."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

VISION: Final = Path(__file__).parents[1] / "goldens" / "vision"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}


class Pictured:
    """A tiny model with its prompts.

    Attributes:
        path: its directory.
    """

    def __init__(self, name: str):
        self.path = VISION / name

    @cached_property
    def prompts(self) -> list[dict[str, Any]]:
        """The prompts of the golden."""
        prompts: list[dict[str, Any]] = json.loads((self.path / "golden.json").read_text())["prompts"]
        return prompts

    @cached_property
    def numbers(self) -> Any:
        """The arrays of the golden."""
        return np.load(self.path / "golden.npz")

    def tokens(self, number: int, name: str) -> list[int]:
        """Return token ids of a golden: "input_ids", "greedy_new" or "flipped_new"."""
        ids: list[int] = self.numbers[f"{number}_{name}"].reshape(-1).tolist()
        return ids

    def messages(self, number: int, *, is_flipped: bool = False) -> list[dict[str, Any]]:
        """Return the messages of a golden, with its images as files or upside down."""

        def part_of(part: dict[str, Any]) -> dict[str, Any]:
            if part["type"] != "image":
                return part
            path = self.path / part["image"]
            image: Any = Image.open(path).transpose(Image.Transpose.FLIP_TOP_BOTTOM) if is_flipped else path
            return {"type": "image", "image": image}

        return [
            {**message, "content": [part_of(part) for part in message["content"]]}
            if isinstance(message["content"], list)
            else message
            for message in self.prompts[number]["messages"]
        ]


_SMOLVLM: Final = Pictured("smolvlm")
GOLDEN: Final = _SMOLVLM.path
NUMBERS: Final = _SMOLVLM.numbers
messages_of = _SMOLVLM.messages
