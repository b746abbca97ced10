"""A notebook that is opened again, on another day or by somebody else, shows what it showed."""

import json

from playwright.sync_api import expect

from tests.browser.conftest import SCREENSHOTS, Opens
from tests.browser.contrasts import assert_contrasts
from tests.browser.driver import BROKEN, open_notebook
from tests.browser.lab import Lab

SHORT = "token_ids=PROMPT, max_tokens=12, ignore_eos=True"
PAGED = SHORT.replace("12", "60")
"""Arguments of a generation with a whole page."""
DRAWINGS = {
    f"with session.trace() as trace: await session.generate({PAGED})\ntrace.timeline()": "20 + 60",
    "session.cache.draw()": "of 64 tokens",
}
CELLS = {
    "dashboard = session.dashboard(); dashboard": "running when the dashboard stopped",
    f"await session.show({SHORT})": "12 tokens",
    f"handle = session.submit({SHORT}); handle.display(); await handle": "12 tokens",
    **DRAWINGS,
    "dashboard.stop()": "",
}


def test_outputs_of_a_saved_notebook_are_there_without_a_kernel_that_made_them(opens: Opens, lab: Lab) -> None:
    with opens(*CELLS) as notebook:
        for place, _ in enumerate(CELLS, 1):
            notebook.run(place)
        # A thread takes the button of a displayed request away, perhaps after the cell that awaits the request.
        expect(notebook.page.get_by_role("button", name="Cancel")).to_have_count(0)
        notebook.save()
        assert "widget-view" not in lab.read(notebook.name)
        name, context = notebook.name, notebook.page.context
    with open_notebook(context, lab, name) as reopened:
        reopened.picture(SCREENSHOTS / "reopened.png")
        for place, text in enumerate(CELLS.values(), 1):
            expect(reopened.output(place)).to_contain_text(text)
        expect(reopened.page.get_by_text(BROKEN)).to_have_count(0)
        expect(reopened.page.get_by_role("button", name="Cancel")).to_have_count(0)
        assert reopened.complaints == []


def test_a_dashboard_that_moves_while_its_notebook_is_saved_is_there_as_it_was_then(opens: Opens, lab: Lab) -> None:
    with opens("session.dashboard()", f"await session.generate({SHORT})") as notebook:
        for place in (1, 2):
            notebook.run(place)
        expect(notebook.output(1)).to_contain_text("100.0% computed")
        notebook.save()
        name, context = notebook.name, notebook.page.context
    with open_notebook(context, lab, name) as reopened:
        reopened.picture(SCREENSHOTS / "reopened_dashboard.png")
        expect(reopened.output(1)).to_contain_text("100.0% computed")
        expect(reopened.output(1)).to_contain_text("running")


def test_who_is_sent_a_notebook_and_does_not_trust_it_sees_drawings_as_text(opens: Opens, lab: Lab) -> None:
    with opens(*DRAWINGS) as notebook:
        for place, _ in enumerate(DRAWINGS, 1):
            output = notebook.run(place).locator(".jp-OutputArea-output")
            expect(output.locator("svg[role=img]")).to_be_visible()
            expect(output.locator("pre")).to_be_hidden()
        notebook.save()
        written, context = lab.read(notebook.name), notebook.page.context
    lab.put("received.ipynb", written.replace('"cell-1"', '"another"'))
    with open_notebook(context, lab, "received.ipynb") as received:
        received.picture(SCREENSHOTS / "received.png")
        for place, text in enumerate(DRAWINGS.values(), 1):
            drawn = json.loads(written)["cells"][place]["outputs"][0]["data"]["text/plain"]
            output = received.output(place).locator(".jp-OutputArea-output")
            expect(output.locator("svg")).to_have_count(0)
            expect(output.locator("pre")).to_have_css("white-space", "pre")
            assert text in output.inner_text()
            assert output.locator("pre").inner_text().strip() == "".join(drawn).strip()
            assert output.inner_text().strip().endswith("".join(drawn).strip()), "nothing but a header and the text"
            assert_contrasts(received.output(place))
        assert received.complaints == []
