"""A cell's output shows text while it comes, and keeps what has come when the request is stopped."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import expect

from tests.browser.conftest import Opens
from tests.browser.driver import Notebook

SHOW = "await session.show(token_ids=PROMPT, **LONG)"
DISPLAY = "session.submit(token_ids=PROMPT, **LONG).display()"
NEXT = "print(list((await session.generate(**EXPECTED)).token_ids) == GOLDEN, session.requests)"
TOKENS = r"([\d,]+) tokens?\b"
WORDS = re.compile(r"w\d+w\d+w\d+")


def test_text_grows_while_its_cell_runs(opens: Opens) -> None:
    with opens(SHOW) as notebook:
        output = notebook.start(1)
        expect(output).to_contain_text(WORDS)
        before, tokens = output.inner_text(), notebook.number(1, TOKENS)
        more = notebook.number(1, TOKENS, above=tokens)
        notebook.number(1, TOKENS, above=more)
        assert output.inner_text() != before
        assert notebook.running(1)


def test_its_button_cancels_it_and_then_goes_away(opens: Opens) -> None:
    with to_be_cancelled(opens) as notebook:
        notebook.output(1).get_by_role("button", name="Cancel").click()


def test_the_stop_button_cancels_what_a_cell_shows(opens: Opens) -> None:
    with to_be_cancelled(opens) as notebook:
        notebook.interrupt()


def test_the_stop_button_cancels_what_a_cell_awaits(opens: Opens) -> None:
    with opens(
        "when(generating(), 'it generates')\nawait session.generate(token_ids=PROMPT, **LONG)", NEXT
    ) as notebook:
        output = notebook.start(1)
        expect(output).to_contain_text("it generates")
        notebook.interrupt()
        notebook.end(1)
        assert_next_cell_works(notebook, 2)


def test_what_a_cell_left_behind_grows_and_is_cancelled_by_its_button(opens: Opens) -> None:
    with opens(DISPLAY, NEXT) as notebook:
        output = notebook.run(1)
        tokens = notebook.number(1, TOKENS)
        assert_next_cell_works(notebook, 2, "True {")
        notebook.number(1, TOKENS, above=tokens)
        output.get_by_role("button", name="Cancel").click()
        expect(output).to_contain_text("cancelled")
        expect(output.get_by_role("button")).to_have_count(0)


def test_rows_fill_side_by_side_and_each_is_cancelled_by_its_button(opens: Opens) -> None:
    show = "answers = await session.show(token_ids=[PROMPT, PROMPT[:2]], **LONG)\nanswers"
    with opens(show, "[answer.finish_reason for answer in answers]", NEXT) as notebook:
        output = notebook.start(1)
        rows = [output.get_by_role("row").filter(has_text=f"[{place}]") for place in range(2)]
        buttons = output.get_by_role("button", name="Cancel")
        for row in rows:
            expect(row).to_contain_text(WORDS)
        buttons.first.click()
        expect(rows[0]).to_contain_text("cancelled")
        expect(buttons).to_have_count(1)
        assert notebook.running(1)
        grown = rows[1].inner_text()
        expect(rows[1]).not_to_have_text(grown)
        buttons.first.click()
        notebook.end(1)
        expect(output.get_by_role("table")).to_have_count(1)
        expect(buttons).to_have_count(0)
        expect(notebook.run(2)).to_contain_text("['cancelled', 'cancelled']")
        assert_next_cell_works(notebook, 3)


@contextmanager
def to_be_cancelled(opens: Opens) -> Iterator[Notebook]:
    """Start a cell that shows text as it comes. Check that it ends cancelled, with its text and without a button."""
    with opens(SHOW, NEXT) as notebook:
        output = notebook.start(1)
        expect(output).to_contain_text(WORDS)
        yield notebook
        notebook.end(1)
        expect(output).to_contain_text("cancelled")
        expect(output).to_contain_text(WORDS)
        expect(output.get_by_role("button")).to_have_count(0)
        assert_next_cell_works(notebook, 2)


def assert_next_cell_works(notebook: Notebook, place: int, said: str = "True {}") -> None:
    """Check that the next cell gives the right tokens, and that only the expected requests are left."""
    expect(notebook.run(place)).to_contain_text(said)
