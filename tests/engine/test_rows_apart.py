"""With the native kernels, the bits of a request do not depend on its batch, for the tiny model of each family."""

from pathlib import Path
from typing import Any, Final

import pytest

import rekindle
from rekindle.settings.engine import SettingsOptions
from rekindle_kernels.cpu.library import unavailable_reason
from tests.families import MODELS

BATCH: Final = 20
SETTINGS: Final[SettingsOptions] = {
    "implementation": "cpu",
    "num_pages": 64,
    "page_size": 16,
    "max_context": 48,
    "max_running": BATCH,
    "precompile": "lazy",
    "prefix_cache": False,
}
OPTIONS: Final[dict[str, Any]] = {"max_tokens": 4, "ignore_eos": True, "logprobs": 2, "prompt_logprobs": 0}
COVERING: Final = {"gpt2", "llama-tied", "stablelm"}
"""Families whose norms are computed alone, by head, and in a product."""
DIFFERING: Final = {"deepseek-v2-group", "falcon-h1-norm", "nemotron-h-moe"}
"""Models where XLA's part of a step rounds by the number of rows, which is a defect."""

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=f"no native kernels: {unavailable_reason()}")


def _marks(family: str) -> list[pytest.MarkDecorator]:
    tier = pytest.mark.wide if family in COVERING else pytest.mark.deep
    return [tier, pytest.mark.xfail(reason="XLA's sums")] if family in DIFFERING else [tier]


@pytest.mark.parametrize("family", [pytest.param(name, marks=_marks(name)) for name in MODELS])
def test_a_prompt_has_the_same_bits_alone_and_among_twenty(families: Path, family: str) -> None:
    prompts = [[(7 * place * number) % 251 for number in range(1, 21)] for place in range(1, BATCH + 1)]
    with rekindle.open_sync(families / family, progress=False, **SETTINGS) as session:
        alone = [session.generate_sync(token_ids=prompt, **OPTIONS) for prompt in prompts[:3]]
        together = session.generate_sync(token_ids=prompts, **OPTIONS)[:3]
    assert [answer.prompt_logprobs for answer in together] == [answer.prompt_logprobs for answer in alone]
    assert [answer.logprobs for answer in together] == [answer.logprobs for answer in alone]
