"""A request is shown in one output of its cell, which grows, and is static at its end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.notebook.driver import Notebook
from tests.notebook.kernels import COLAB
from tests.notebook.page import VIEW, Page, click, subshell
from tests.notebook.stop import assert_usable, stop

pytestmark = pytest.mark.notebook

GRAB = """
grabbed, submit = [], session._engine.client.submit

def grab(*arguments, **options):
    grabbed.append(submit(*arguments, **options))
    return grabbed[-1]

session._engine.client.submit = grab
"""
"""Code to put all new requests into `grabbed`, however soon they end."""
LET_GO = "del session._engine.client.submit"


@pytest.fixture
def page(notebook: Notebook) -> Iterator[Page]:
    yield Page(notebook)
    notebook.run("for request in session.requests.values(): request.cancel()")


def card(page: Page) -> str:
    """Return the id of the only output with a generation."""
    page.catch_up()
    (output,) = page.cards
    return output


def card_content(page: Page) -> dict[str, Any]:
    """Return the content of the card, by MIME type."""
    return page.outputs[card(page)]


def wait_for(page: Page, text: str) -> None:
    """Wait for a text on the card."""
    page.catch_up()
    while not page.cards or text not in card_content(page)["text/plain"]:
        page.listen()


def wait_until_drawn(page: Page) -> None:
    """Wait for an output and its widgets: a request may be faster than its drawing."""
    page.catch_up()
    while not any("Generation" in str(bundle) or "Answers" in str(bundle) for bundle in page.outputs.values()):
        page.listen()


def wait_until_static(page: Page) -> None:
    """Wait until no widget is left and no saved output needs one."""
    page.catch_up()
    while page.widgets or [bundle for bundle in page.outputs.values() if VIEW in bundle]:
        page.listen()


def test_show_draws_one_output_which_in_the_end_is_the_generations_own(notebook: Notebook, page: Page) -> None:
    cell = notebook.start(f"{GRAB}await session.show(**EXPECTED, logprobs=2)").end()
    assert (cell.error, cell.stdout, cell.stderr) == ("", "", "")
    assert notebook.run(f"{LET_GO}; print(_ == grabbed[0].generation)") == "True\n"
    assert len(page.versions[card(page)]) >= 2
    assert len({cell for cells in page.cells.values() for cell in cells}) == 1
    own = notebook.run("print(json.dumps(grabbed[0].generation._repr_mimebundle_()))")
    assert card_content(page) == json.loads(own)
    assert "less likely" in card_content(page)["text/html"]
    wait_until_static(page)


def test_show_sync_draws_it_too_and_an_error_is_raised(notebook: Notebook, page: Page) -> None:
    assert notebook.run("await asyncio.sleep(0); session.show_sync(**EXPECTED)") == ""
    assert card_content(page)["text/plain"].splitlines()[-1].startswith("[ended: length, 24 tokens; prompt ")
    assert not any(page.widgets)
    assert notebook.start("await session.show('')").end().error == "InvalidRequest"
    wait_until_static(page)


def test_a_long_text_is_not_sent_again_and_again(notebook: Notebook, page: Page) -> None:
    notebook.run("await session.show(token_ids=PROMPT, max_tokens=500, ignore_eos=True)")
    assert len(page.versions[card(page)]) >= 3
    sizes = [len(json.dumps(bundle)) for bundle in page.versions[card(page)]]
    assert max(sizes[:-1]) < 6000
    assert card_content(page)["text/plain"].splitlines()[-1].startswith("[ended: length, 500 tokens; prompt ")


def test_a_text_is_drawn_once_in_the_time_between_two_drawings(notebook: Notebook, page: Page) -> None:
    """Let there be an hour: `test_show.py` of the unit tests has the rate, on a clock that it moves."""
    notebook.run(
        "from unittest import mock\n"
        "from rekindle.notebook.live_text import Card\n"
        "with mock.patch.object(Card, 'seconds', 3600.0):\n"
        "    await session.show(token_ids=PROMPT, max_tokens=500, ignore_eos=True)"
    )
    assert len(page.versions[card(page)]) == 2, "as it begins, and as it has ended"


@pytest.mark.parametrize(
    "wait", ["await session.show(token_ids=PROMPT, **LONG)", "session.show_sync(token_ids=PROMPT, **LONG)"]
)
def test_an_interrupt_leaves_what_came_and_that_it_was_cancelled(wait: str, notebook: Notebook, page: Page) -> None:
    stop(notebook, "generating()", wait, lambda name, value: None)
    wait_for(page, "\n[cancelled, ")
    assert card_content(page)["text/plain"].startswith("w91w201")
    wait_until_static(page)
    assert_usable(notebook)


def test_an_interrupt_is_not_blamed_on_a_timeout(notebook: Notebook) -> None:
    for _ in range(6):  # more than half of interrupts at random moments once were
        cell = notebook.start("when(generating(), 'now'); await session.show(token_ids=PROMPT, **LONG)")
        cell.wait_for("now\n")
        interrupted, *_ = cell.interrupt()
        assert interrupted.error == "CancelledError"
        assert "deadline" not in interrupted.traceback
    assert_usable(notebook)


def test_an_interrupt_of_a_trio_cell_does_too(notebook: Notebook, page: Page) -> None:
    notebook.run("%autoawait trio")
    stop(notebook, "generating()", "await session.show(token_ids=PROMPT, **LONG)", lambda name, value: None)
    wait_for(page, "\n[cancelled, ")
    assert page.widgets == {}, "a button that hears nothing"
    assert notebook.run("await session.show(**EXPECTED)") == ""
    notebook.run("%autoawait asyncio")
    wait_until_static(page)
    assert_usable(notebook)


@pytest.mark.parametrize("on_a_subshell", [False, True])
def test_a_click_cancels_while_the_cell_awaits(
    on_a_subshell: bool, kernel: str, notebook: Notebook, page: Page
) -> None:
    notebook.run("generated = generating()")
    cell = notebook.start("when(generated, 'now'); await session.show(token_ids=PROMPT, **LONG); print('over')")
    cell.wait_for("now\n")
    wait_until_drawn(page)
    if kernel == COLAB:
        assert page.buttons == [], "it would not hear of clicks"
        assert "interrupt the kernel" in next(iter(page.outputs.values()))["text/plain"]
        cell.interrupt()
    else:
        (button,) = page.buttons
        click(notebook, button, subshell(notebook) if on_a_subshell else None)
        outputs = cell.end()
        assert (outputs.error, outputs.stdout) == ("", "now\nover\n")
    wait_for(page, "\n[cancelled, ")
    wait_until_static(page)
    assert_usable(notebook)


def test_a_list_is_a_table_whose_rows_are_cancelled_one_by_one(kernel: str, notebook: Notebook, page: Page) -> None:
    notebook.run("generated = generating()")
    ask = "token_ids=[PROMPT, PROMPT, PROMPT], **LONG"
    cell = notebook.start(f"when(generated, 'now'); answers = await session.show({ask}); answers")
    cell.wait_for("now\n")
    wait_until_drawn(page)
    if kernel == COLAB:
        assert not page.widgets, "their buttons would not hear of clicks"
        assert "interrupt the kernel" in next(iter(page.outputs.values()))["text/plain"]
        cell.interrupt()
    else:
        buttons = [comm for comm, state in page.widgets.items() if state.get("_model_name") == "ButtonModel"]
        assert len(buttons) == 3
        for button in buttons:
            click(notebook, button)
        outputs = cell.end()
        assert (outputs.error, outputs.stdout, outputs.stderr) == ("", "now\n", "")
        assert notebook.run("print([answer.finish_reason for answer in answers])") == f"{['cancelled'] * 3}\n"
        page.catch_up()
        own = notebook.run("print(json.dumps(answers._repr_mimebundle_()))")
        assert list(page.outputs.values()) == [json.loads(own)]
    wait_until_static(page)
    assert list(page.outputs.values())[-1]["text/plain"].count("cancelled") == 3
    assert_usable(notebook)


@pytest.mark.parametrize("wait", ["await session.show({})", "session.show_sync({})"])
def test_an_interrupt_leaves_the_rows_of_a_list(wait: str, notebook: Notebook, page: Page) -> None:
    ask = wait.format("token_ids=[PROMPT, PROMPT], **LONG")
    stop(notebook, "generating()", ask, lambda name, value: None)
    page.catch_up()
    wait_until_static(page)
    assert list(page.outputs.values())[-1]["text/plain"].count("cancelled") == 2
    assert "w91w201" in list(page.outputs.values())[-1]["text/html"]
    assert_usable(notebook)


def test_an_interrupt_of_a_loop_over_a_list_cancels_all(notebook: Notebook) -> None:
    for loop in ("stream", "as_completed"):
        ask = f"async for each in session.{loop}(token_ids=[PROMPT, PROMPT], **LONG): pass"
        stop(notebook, "generating()", ask, lambda name, value: None)
        assert_usable(notebook)


def test_display_returns_at_once_and_draws_on_until_its_button_is_pressed(
    notebook: Notebook, page: Page, tmp_path: Path
) -> None:
    notebook.run("handle = session.submit(token_ids=PROMPT, **LONG); handle.display()")
    first = card(page)
    wait_for(page, "[running, ")
    enough = tmp_path / "enough"
    wait = f"print('it blocks', flush=True)\nwhile not os.path.exists({str(enough)!r}): time.sleep(0.01)"
    blocking = notebook.start(f"import os\n{wait}")
    blocking.wait_for("it blocks\n")
    page.catch_up()
    before = len(page.versions[first])
    while len(page.versions[first]) < before + 3:
        page.listen()
    enough.touch()
    assert blocking.end().error == ""
    page.catch_up()
    (button,) = page.buttons
    click(notebook, button)
    wait_for(page, "\n[cancelled, ")
    wait_until_static(page)
    assert len({cells[0] for cells in page.cells.values()}) == 1
    assert len(set(page.cells[first])) > 1, "what executes a notebook hears of the cell alone that runs"
    assert_usable(notebook)


def test_a_displayed_request_ends_as_its_result_does(notebook: Notebook, page: Page) -> None:
    notebook.run("handle = session.submit(**EXPECTED); handle.display()")
    wait_for(page, "[ended")
    wait_until_static(page)
    own = notebook.run("print(json.dumps((await handle)._repr_mimebundle_()))")
    assert card_content(page) == json.loads(own)
    notebook.run("handle.display(); handle.display()")
    page.catch_up()
    assert [page.outputs[output] for output in page.cards] == [json.loads(own)] * 3
    wait_until_static(page)


def test_without_widgets_it_is_shown_all_the_same(notebook: Notebook, page: Page) -> None:
    notebook.run("import sys; widgets = sys.modules['ipywidgets']; sys.modules['ipywidgets'] = None")
    assert notebook.run("await session.show(**EXPECTED)") == ""
    notebook.run("sys.modules['ipywidgets'] = widgets")
    assert card_content(page)["text/plain"].splitlines()[-1].startswith("[ended: length, 24 tokens; prompt ")
    assert not [bundle for versions in page.versions.values() for bundle in versions if VIEW in bundle]


@pytest.mark.wide
def test_a_kernel_ends_without_a_word_while_it_draws(fresh: Notebook) -> None:
    # A compilation that takes long would be waited for, and said to be.
    fresh.run("session = await open_tiny(progress=False); await session.precompiled(progress=False)")
    fresh.run("handle = session.submit(token_ids=PROMPT, **LONG); handle.display(); await handle.record.pieces.wait(0)")
    assert fresh.run("print(handle.done)") == "False\n"
    fresh.shutdown()
    assert fresh.log() == ""
