"""Prompts with images of a tiny SmolVLM, and the numbers of transformers for them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

GOLDEN = Path(__file__).parents[1] / "goldens" / "vision" / "smolvlm"
PROMPTS: list[dict[str, Any]] = json.loads((GOLDEN / "golden.json").read_text())["prompts"]
NUMBERS = np.load(GOLDEN / "golden.npz")
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}


def messages_of(number: int, *, is_flipped: bool = False) -> list[dict[str, Any]]:
    """Return the messages of a golden, with its images as files or upside down."""

    def part_of(part: dict[str, Any]) -> dict[str, Any]:
        if part["type"] != "image":
            return part
        path = GOLDEN / part["image"]
        image: Any = Image.open(path).transpose(Image.Transpose.FLIP_TOP_BOTTOM) if is_flipped else path
        return {"type": "image", "image": image}

    return [
        {**message, "content": [part_of(part) for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in PROMPTS[number]["messages"]
    ]
