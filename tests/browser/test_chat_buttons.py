"""Each message of a chat has its buttons in the page: continue, retry, edit, and arrows between versions."""

import re

from playwright.sync_api import expect

from tests.browser.conftest import SCREENSHOTS, Opens
from tests.browser.test_chatting import TEMPLATE

CHAT = f"""
session = await open_tiny(progress=False, chat_template={TEMPLATE!r})
chat = session.chat(max_tokens=8, ignore_eos=True)
chat.widget()
"""
WORDS = "[len(message['content'].split('w')) for message in chat.messages]"


def test_buttons_on_messages_continue_retry_edit_and_go_back(opens: Opens) -> None:
    with opens(CHAT, WORDS) as notebook:
        output = notebook.run(1)
        box, send = output.get_by_label("You"), output.get_by_role("button", name="Send")
        for text in ("w3 w4", "w5"):
            box.fill(text)
            box.press("Enter")
            expect(output).to_contain_text(text)
            expect(send).to_be_enabled()
        retry = output.get_by_role("button", name="Retry")
        expect(retry).to_have_count(2)
        expect(output.get_by_role("button", name="Edit")).to_have_count(4)
        box.fill("typed meanwhile")
        output.get_by_role("button", name="Continue").click()
        expect(output).to_contain_text("16 tokens")
        expect(send).to_be_enabled()
        expect(box).to_have_value("typed meanwhile")
        expect(notebook.run(2)).to_contain_text("17]")
        for dark in (False, True):
            notebook.use_theme(dark=dark)
            notebook.picture(SCREENSHOTS / f"chat_buttons_{'dark' if dark else 'light'}.png")
        retry.first.click()
        expect(output).to_contain_text("2/2")
        expect(retry).to_have_count(1)
        output.get_by_role("button", name="Former version").click()
        expect(retry).to_have_count(2)
        expect(output).to_contain_text("1/2")
        output.get_by_role("button", name="Edit").first.click()
        expect(box).to_have_value("w3 w4")
        expect(output).to_contain_text("an edit of a message")
        notebook.picture(SCREENSHOTS / "chat_buttons_edit.png")
        box.fill("w9")
        box.press("Enter")
        expect(output).not_to_contain_text("an edit of a message")
        expect(retry).to_have_count(1)
        expect(output.get_by_text(re.compile(r"^\s*2/2\s*$"))).to_have_count(1)
