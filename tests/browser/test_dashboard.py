"""A dashboard moves for as long as it can be seen and its session lives; its buttons do what they say."""

import re

from playwright.sync_api import expect

from tests.browser.conftest import Opens

SUBMIT = "handle = session.submit(token_ids=PROMPT, **LONG)"
GENERATED = r"running\s+20\s+([\d,]+)"
STOPPED = """
while "rekindle-dashboard" in {thread.name for thread in threading.enumerate()}:
    await asyncio.sleep(0.01)
print("no thread is left")
"""


def test_it_moves_while_cells_run_and_while_none_does(opens: Opens) -> None:
    with opens("session.dashboard()", SUBMIT, "await handle") as notebook:
        notebook.run(1)
        notebook.run(2)
        idle = notebook.number(1, GENERATED)
        notebook.number(1, GENERATED, above=notebook.number(1, GENERATED, above=idle))
        notebook.start(3)
        busy = notebook.number(1, GENERATED)
        notebook.number(1, GENERATED, above=notebook.number(1, GENERATED, above=busy))
        assert notebook.running(3)


def test_its_buttons_pause_the_engine_and_cancel_requests(opens: Opens) -> None:
    with opens(
        "session.dashboard()", SUBMIT, "print(session.paused, len(session.requests))", "await handle"
    ) as notebook:
        dashboard = notebook.run(1)
        notebook.run(2)
        dashboard.get_by_role("button", name="Pause").click()
        expect(dashboard.get_by_role("button", name="Resume")).to_be_visible()
        expect(dashboard).to_contain_text("paused")
        expect(notebook.run(3)).to_have_text(re.compile("True 1"))
        dashboard.get_by_role("button", name="Resume").click()
        expect(dashboard.get_by_role("button", name="Pause")).to_be_visible()
        error = notebook.start(4)
        dashboard.get_by_role("button", name=re.compile(r"^Cancel \d+$")).click()
        notebook.end(4)
        expect(error).to_contain_text("RequestCancelled")
        expect(dashboard.get_by_role("button", name=re.compile("^Cancel"))).to_have_count(0)


def test_it_stops_when_its_output_is_cleared(opens: Opens) -> None:
    with opens("session.dashboard()", STOPPED) as notebook:
        dashboard = notebook.run(1)
        expect(dashboard.get_by_role("button", name="Pause")).to_be_visible()
        notebook.clear(1)
        expect(dashboard.locator(".jp-OutputArea-child")).to_have_count(0)
        expect(notebook.run(2)).to_contain_text("no thread is left")


def test_it_says_when_its_session_is_closed_and_stops(opens: Opens) -> None:
    with opens("session.dashboard()", "await session.close()", STOPPED) as notebook:
        dashboard = notebook.run(1)
        expect(dashboard.get_by_role("button", name="Pause")).to_be_visible()
        notebook.run(2)
        expect(dashboard).to_contain_text("closed")
        expect(notebook.run(3)).to_contain_text("no thread is left")
        expect(dashboard.get_by_role("button")).to_have_count(0)
