"""A token of a generation can be clicked, and so can what was likely in its place; a branch then grows below."""

import re

from playwright.sync_api import expect

from tests.browser.conftest import Opens

GENERATE = "answer = await session.generate(token_ids=PROMPT, max_tokens=12, logprobs=3, ignore_eos=True)"
EXPLORE = "explorer = session.explore(answer)\nexplorer"
CHECK = """
(branch,) = explorer.branches
begins = answer.token_ids[:4]
print(branch.generation.token_ids[:4] == begins, branch.generation.token_ids[4] != answer.token_ids[4])
"""


def test_a_click_on_what_was_likely_too_branches_there(opens: Opens) -> None:
    with opens(GENERATE, EXPLORE, CHECK) as notebook:
        notebook.run(1)
        output = notebook.run(2)
        buttons = output.get_by_role("button")
        expect(buttons).to_have_count(12)
        expect(output).to_contain_text("choose a token")
        buttons.nth(4).click()
        expect(output).to_contain_text("place 4, instead of")
        likely = output.get_by_role("button", name=re.compile(r"%$"))
        likely.first.click()
        expect(output).to_contain_text("12 tokens, the first 5 set before")
        expect(notebook.run(3)).to_have_text(re.compile("True True"))
        likely.last.click()
        expect(output.get_by_text("the first 5 set before")).to_have_count(2)
