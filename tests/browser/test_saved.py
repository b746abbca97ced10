"""A notebook that is opened again, on another day, shows what it showed."""

from playwright.sync_api import expect

from tests.browser.conftest import SCREENSHOTS, Opens
from tests.browser.driver import BROKEN, open_notebook
from tests.browser.lab import Lab

SHORT = "token_ids=PROMPT, max_tokens=12, ignore_eos=True"
CELLS = {
    "dashboard = session.dashboard(); dashboard": "running when this stopped",
    f"await session.show({SHORT})": "12 tokens",
    f"handle = session.submit({SHORT}); handle.display(); await handle": "12 tokens",
    f"with session.trace() as trace: await session.generate({SHORT})\ntrace.timeline()": "20 + 12",
    "session.cache.draw()": "pages of 64 tokens",
    "dashboard.stop()": "",
}


def test_outputs_of_a_saved_notebook_are_there_without_a_kernel_that_made_them(opens: Opens, lab: Lab) -> None:
    with opens(*CELLS) as notebook:
        for place, _ in enumerate(CELLS, 1):
            notebook.run(place)
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
