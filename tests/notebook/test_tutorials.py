"""The first tutorial runs in cells on trio and on Colab's kernel too, and its claims about its results are true.

`make tutorials` runs all tutorials in cells on asyncio. The others check themselves, by asserts in their cells.
"""

from pathlib import Path

import pytest

from tests.notebook import driver
from tests.notebook.driver import open_notebook
from tests.notebook.kernels import COLAB, CURRENT, command, environment

pytestmark = [pytest.mark.notebook, pytest.mark.tutorial]

TUTORIALS = Path(__file__).parents[2] / "tutorials"
MARK = "# %%"
OPENING = 300
"""Seconds until the first cell, with its compilation, fails: 30 times its duration on a machine at rest."""

CAPITAL = 'assert "Helsinki" in brief.messages[-1]["content"]\n'
"""The check of an answer that is another by the roundings of Colab's XLA."""
CHECKS = """
assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 3
assert "Rome" in turn.text
assert turn.cached.device >= 64, "the last turn found the pages of the turns before"
assert "Louvre" in other.messages[-1]["content"]
assert len(other) == len(chat) == 6
assert "Helsinki" in brief.messages[-1]["content"]

assert (answer.finish_reason, len(answer.token_ids), answer.usage.completion_tokens) == ("length", 20, 20)
assert answer.usage.prompt_tokens == len(prompt_ids)
assert (reply.finish_reason, reply.usage.prompt_tokens) == ("stop", 37)
assert "Paris" in reply.text
assert len(pieces) > 8, "the sentences came in many pieces"

assert answers[0].text.startswith(answer.text)
assert ticks < 2 * 20, "one after the other they would have taken at least 4 * 20"

assert three[0].token_ids == drawn.token_ids == again.token_ids, "a seed gives the same among others"
assert len({each.token_ids for each in three}) == 3
assert [token.token_id for token in unsure.logprobs] == list(unsure.token_ids)
assert any(token.rank > 1 for token in unsure.logprobs), "a draw does not always take the likeliest"
for token in unsure.logprobs:
    assert [each.rank for each in token.top] == [1, 2, 3]
    assert sum(math.exp(each.logprob) for each in token.top) <= 1 + 1e-5

assert (counted.finish_reason, counted.stopped_by) == ("stop", "seven")
assert "seven" not in counted.text
assert "six" in counted.text

assert first.cached.device == 0
assert second.cached_tokens == second.cached.device == 128
assert "watch" in first.text
assert "1871" in second.text
assert second.timings.queued <= second.timings.first_token <= second.timings.total
assert all(each.cached.device == doc.tokens // 64 * 64 for each in facts), "its whole pages"
assert "Marigold" in facts[0].text
assert "1958" in facts[1].text

assert request.done
assert request.generation is None
assert after == answer
found = counts.device_hit_tokens + counts.host_hit_tokens + counts.disk_hit_tokens
assert counts.prompt_tokens == counts.computed_tokens + found
"""
"""The first tutorial's claims about its results. Its own cells are calls and their results, for newcomers."""


def code_cells(tutorial: str) -> list[str]:
    """Return the code of each cell, parted as jupytext does it."""
    _, *cells = f"\n{(TUTORIALS / tutorial).read_text(encoding='utf-8')}".split(f"\n{MARK}")
    return [cell.strip() for cell in cells if not cell.startswith(" [markdown]")]


@pytest.mark.usefixtures("smollm2_path")
@pytest.mark.parametrize(
    ("kernel", "library"), [(CURRENT, "trio"), pytest.param(COLAB, "asyncio", marks=pytest.mark.older_kernel)]
)
def test_the_first_tutorial_runs_and_does_what_it_says(
    kernel: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SILENCE", OPENING)
    cells = code_cells("01_first_words.py")
    assert sum("await " in cell for cell in cells) > 10
    with open_notebook(tmp_path / "kernel.log", command(kernel), environment(tmp_path / "ipython")) as notebook:
        notebook.run(f"%autoawait {library}")
        notebook.run("import sniffio\nasync def library(): return sniffio.current_async_library()")
        for cell in cells:
            notebook.run(cell)
        assert notebook.run("print(await library())") == f"{library}\n"
        notebook.run(CHECKS if kernel == CURRENT else CHECKS.replace(CAPITAL, ""))
        assert notebook.stray_output() == ""
