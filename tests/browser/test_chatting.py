"""A box below a cell takes what is typed, and its answer streams above it while the kernel is free."""

import re

from playwright.sync_api import expect

from tests.browser.conftest import SCREENSHOTS, Opens

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
CHAT = f"""
session = await open_tiny(progress=False, chat_template={TEMPLATE!r})
chat = session.chat(max_tokens=60000, ignore_eos=True)
chat.widget()
"""
WORDS = re.compile(r"w\d+w\d+w\d+")


def test_enter_sends_the_answer_streams_and_stop_ends_it(opens: Opens) -> None:
    with opens(CHAT, "1 + 1", "[message['role'] for message in chat.messages]") as notebook:
        output = notebook.run(1)
        box = output.get_by_label("You")
        box.fill("w3 w4")
        box.press("Enter")
        expect(output).to_contain_text(WORDS)
        tokens = notebook.number(1, r"running, ([\d,]+) tokens?")
        expect(notebook.run(2)).to_contain_text("2")  # the kernel is free meanwhile
        notebook.number(1, r"running, ([\d,]+) tokens?", above=tokens)
        expect(box).to_have_value("")
        output.get_by_role("button", name="Stop").click()
        expect(output).to_contain_text("from the cache")
        expect(output).to_contain_text("cancelled")
        expect(output.get_by_role("button", name="Send")).to_be_enabled()
        expect(notebook.run(3)).to_contain_text("['user', 'assistant']")
        for dark in (False, True):
            notebook.use_theme(dark=dark)
            notebook.picture(SCREENSHOTS / f"chat_{'dark' if dark else 'light'}.png")


def test_a_conversation_goes_on_by_a_click_after_a_restart_of_the_kernel(opens: Opens) -> None:
    with opens(CHAT.replace("60000", "60"), "[message['role'] for message in chat.messages]") as notebook:
        output = notebook.run(1)
        for text in ("w3 w4 w5", "w6 w7"):
            box = output.get_by_label("You")
            box.fill(text)
            box.press("Enter")
            expect(output).to_contain_text(text)
            expect(output.get_by_role("button", name="Send")).to_be_enabled()
        notebook.restart()
        notebook.run(0)
        output = notebook.run(1)
        for dark in (False, True):
            notebook.use_theme(dark=dark)
            notebook.picture(SCREENSHOTS / f"resume_{'dark' if dark else 'light'}.png")
        output.get_by_role("button", name="w3 w4 w5").click()
        expect(output).to_contain_text("w3 w4 w5")
        expect(output.get_by_role("button", name="w3 w4 w5")).to_have_count(0)
        box = output.get_by_label("You")
        box.fill("w8 w9")
        box.press("Enter")
        expect(output).to_contain_text(re.compile(r"from the cache.*[1-9]\d* of \d+ tokens"))
        expect(output.get_by_role("button", name="Send")).to_be_enabled()
        expect(notebook.run(2)).to_contain_text(str(["user", "assistant"] * 3))
