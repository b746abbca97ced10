"""Prompts have images by chat templates for texts alone, and by places without a token in the vocabulary."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.core.errors import UnsupportedModel
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.engine.pictured import GREEDY, Pictured
from tests.unit.formats.internvl_chat import TEMPLATE, write_internvl_chat

pytestmark = [pytest.mark.anyio, pytest.mark.wide]
INTERNVL, LLAVA = Pictured("internvl"), Pictured("llava")
PLACES = (INTERNVL.path / "chat_template.jinja").read_text().replace("<IMG_CONTEXT>", "<image>")
SETTINGS: Any = {"dtype": "float32", "page_size": 16, "max_prefill_tokens": 96, "max_running": 4, "progress": False}


@pytest.mark.parametrize("template", [TEMPLATE, PLACES], ids=["texts", "places"])
async def test_files_of_opengvlab_answer_as_those_of_transformers(template: str, tmp_path: Path) -> None:
    path = write_internvl_chat(tmp_path / "model", template)
    with rekindle.open_sync(path, **SETTINGS, restore="off") as session:
        prompts: Any = [INTERNVL.messages(number) for number in (0, 1)]
        answers: Any = await session.generate(prompts, **GREEDY)
        for number, answer in enumerate(answers):
            assert list(answer.prompt_token_ids) == INTERNVL.tokens(number, "input_ids")
            assert list(answer.token_ids) == INTERNVL.tokens(number, "greedy_new")
        text: Any = [{"role": "user", "content": "Only text."}]
        assert (await session.generate(text, max_tokens=1)).token_ids


def with_token(directory: Path, token: str) -> Path:
    """Write the tiny LLaVA with another text for its token of images, which config.json does not name."""
    shutil.copytree(LLAVA.path, directory, copy_function=shutil.copyfile)
    config = json.loads((directory / "config.json").read_text())
    del config["image_token_index"]
    (directory / "config.json").write_text(json.dumps(config))
    path = directory / "tokenizer.json"
    path.write_text(path.read_text().replace('"<image>"', f'"{token}"'))
    return directory


async def test_the_unknown_token_stands_for_embeddings_in_a_vocabulary_without_their_token(tmp_path: Path) -> None:
    with rekindle.open_sync(with_token(tmp_path / "model", "<unk>"), **SETTINGS, restore="off") as session:
        for number in (0, 1):
            answer = await session.generate(LLAVA.messages(number), **GREEDY)
            assert list(answer.prompt_token_ids) == LLAVA.tokens(number, "input_ids")
            assert list(answer.token_ids) == LLAVA.tokens(number, "greedy_new")


def test_a_vocabulary_without_both_tokens_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="need the token '<image>' or '<unk>', and the model's vocabulary has"):
        open_checkpoint(with_token(tmp_path / "model", "<other>"))
