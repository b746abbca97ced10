"""The page of a server takes a key, chats, and shows the dashboard; it loads nothing from elsewhere."""

from contextlib import closing

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import SCREENSHOTS
from tests.browser.driver import complaints_of
from tests.unit.scripted import scripted_session

ANSWER = """Hello! **Two** ways:

- this
- <img src=x onerror="window.hacked = 1">

```python
way = 2  # the second
```
"""
WIDE = """() => document.documentElement.scrollWidth > innerWidth"""


def assert_accessible(page: Page) -> None:
    found = Axe().run(page).response["violations"]
    assert [(rule["id"], [node["html"] for node in rule["nodes"][:3]]) for rule in found] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_gives_its_key_and_chats(
    scheme: str, context: BrowserContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return ANSWER

    with scripted_session(monkeypatch, script) as session, closing(context.new_page()) as page:
        server = session.serve_sync(name="a-model", port=0, api_keys=["the key"])
        url, complaints, requests = server.url, complaints_of(page), list[str]()
        page.on("request", lambda request: requests.append(request.url))
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto(url)
        page.get_by_label("API key").fill("another")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_role("status")).to_have_text("The server does not accept this key.")
        assert_accessible(page)
        assert [text for text in complaints if "401" not in text] == []
        complaints.clear()
        page.get_by_label("API key").fill("the key")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_label("Model")).to_have_value("a-model")
        expect(page.locator("#address")).to_have_text(f"{url.rstrip('/')}/v1")
        expect(page.locator("#boards")).to_contain_text("tokens per second")
        page.get_by_label("Message").fill("Hi there")
        page.get_by_label("Message").press("Enter")
        answer = page.locator(".assistant")
        expect(answer.locator("strong")).to_have_text("Two")
        expect(answer.locator("li")).to_have_text(["this", '<img src=x onerror="window.hacked = 1">'])
        expect(answer.locator("pre").first).to_contain_text("way = 2  # the second")
        expect(answer.locator("img")).to_have_count(0)
        expect(answer.get_by_text("**Two**")).to_be_hidden()
        answer.get_by_text("as written").click()
        expect(answer.get_by_text("**Two**")).to_be_visible()
        page.get_by_label("Message").fill("And more?")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".assistant strong")).to_have_text(["Two", "Two"])
        assert "Hi there" in prompts[-1], "the conversation goes on"
        assert ANSWER.strip() in prompts[-1]
        for width in (1000, 500):
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=SCREENSHOTS / f"server_{scheme}_{width}.png", full_page=True)
            assert not page.evaluate(WIDE)
            assert_accessible(page)
        page.get_by_role("button", name="New chat").click()
        expect(page.locator("#talk > *")).to_have_count(0)
        assert complaints == []
        assert [address for address in requests if not address.startswith((url, "data:"))] == []


def test_a_conversation_beyond_the_context_goes_on_and_says_so_once(
    context: BrowserContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return f"Answer {prompt.count('<|im_start|>user')}" if "long" not in prompt else "so " * 500

    told = "The conversation has filled the context: its oldest turns are no longer sent to the model."
    with scripted_session(monkeypatch, script, max_context=320) as session, closing(context.new_page()) as page:
        page.goto(session.serve_sync(name="a-model", port=0).url)
        for number in range(6):
            page.get_by_label("Message").fill(f"Question {number} {'of many words ' * 3}")
            page.get_by_role("button", name="Send").click()
            expect(page.locator(".assistant")).to_have_count(number + 1)
            expect(page.get_by_role("button", name="Send")).to_be_enabled()
        expect(page.locator(".assistant").last).to_contain_text("Answer")
        assert "Question 5" in prompts[-1]
        assert "Question 0" not in prompts[-1], "the oldest turn left"
        expect(page.get_by_text(told)).to_have_count(1)
        page.get_by_label("Message").fill("Give a long one")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#talk")).to_contain_text("tokens. Ask for more to go on.")
        page.screenshot(path=SCREENSHOTS / "server_full.png", full_page=True)
        page.get_by_role("button", name="New chat").click()
        page.get_by_label("Message").fill("Hi")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".assistant")).to_contain_text("Answer 1")
        expect(page.get_by_text(told)).to_have_count(0)
