"""A chat template for texts alone, and one with a place that is no token, give prompts with images."""

from pathlib import Path
from typing import Any

import pytest

import rekindle
from tests.engine.pictured import GREEDY, Pictured
from tests.unit.formats.internvl_chat import TEMPLATE, write_internvl_chat

pytestmark = [pytest.mark.anyio, pytest.mark.wide]
INTERNVL = Pictured("internvl")
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
