"""A picture pasted or dropped into a chat is an image of the next message, with a thumbnail beside the answer."""

import base64
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.browser.conftest import SCREENSHOTS, Opens
from tests.browser.contrasts import assert_contrasts
from tests.browser.driver import SIZE
from tests.browser.test_accessible import violations

GOLDEN = Path(__file__).parents[1] / "goldens" / "vision" / "smolvlm"
IMAGES = [GOLDEN / f"image-{index}.png" for index in range(2)]
CHAT = f"""
pictured = await rekindle.open(
    {str(GOLDEN)!r}, dtype="float32", max_running=4, page_size=16, max_prefill_tokens=64, progress=False
)
chat = pictured.chat(max_tokens=8, ignore_eos=True, temperature=0)
chat.widget()
"""
FACTS = """
print(len(chat.messages), "messages with", pictured.stats.scheduler.embedded_pictures, "image")
"""
LOOK = f"""
look = await pictured.look("<image> and <image>?", images={list(map(str, IMAGES))}, heads=[(0, 0), (1, 3)])
look.over_images()
"""
TRANSFER = """([name, type, data]) => {
    const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0))
    const transfer = new DataTransfer()
    transfer.items.add(new File([bytes], name, {type}))
    return transfer
}"""
COPY = """async data => {
    const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0))
    await navigator.clipboard.write([new ClipboardItem({"image/png": new Blob([bytes], {type: "image/png"})})])
}"""


def drop(target: Locator, name: str, kind: str, data: bytes) -> None:
    """Drop a file on an element."""
    arguments = [name, kind, base64.b64encode(data).decode()]
    transfer = target.page.evaluate_handle(TRANSFER, arguments)
    for event in ("dragover", "drop"):
        target.dispatch_event(event, {"dataTransfer": transfer})


def test_a_dropped_and_a_pasted_picture_are_images_of_the_next_message(opens: Opens) -> None:
    with opens(CHAT, FACTS, LOOK) as notebook:
        page, output = notebook.page, notebook.run(1)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        box, thumbnails = output.get_by_label("You"), output.locator(".rekindle-drops img")
        drop(output.locator(".jp-OutputArea-output").first, "notes.txt", "text/plain", b"only text")
        alert = output.get_by_role("alert")
        expect(alert).to_contain_text("notes.txt: an image must be PNG")
        for dark in (True, False):
            notebook.use_theme(dark=dark)
            assert_contrasts(alert)
        notebook.picture(SCREENSHOTS / "attached_refused.png")
        drop(output.locator(".jp-OutputArea-output").first, "cat.png", "image/png", IMAGES[0].read_bytes())
        expect(thumbnails).to_have_count(1)
        expect(alert).to_have_count(0)
        page.evaluate(COPY, base64.b64encode(IMAGES[1].read_bytes()).decode())
        box.press("ControlOrMeta+v")
        expect(thumbnails).to_have_count(2)
        expect(box).to_have_value("")
        assert violations(page) == []
        for dark in (False, True):
            notebook.use_theme(dark=dark)
            notebook.picture(SCREENSHOTS / f"attached_{'dark' if dark else 'light'}.png")
        output.get_by_role("button", name="Remove").last.click()
        expect(thumbnails).to_have_count(1)
        box.fill("What is it?")
        box.press("Enter")
        expect(output).to_contain_text("from the cache")
        expect(output.locator("img[alt^='image of']")).to_have_count(1)
        expect(thumbnails).to_have_count(0)
        drop(box, "again.png", "image/png", IMAGES[1].read_bytes())
        expect(thumbnails).to_have_count(1)
        page.set_viewport_size({"width": 500, "height": 900})
        page.screenshot(path=SCREENSHOTS / "attached_500.png")
        assert output.evaluate("output => output.scrollWidth <= output.clientWidth + 1")
        expect(notebook.run(2)).to_contain_text("2 messages with 1 image")
        maps = notebook.run(3)
        expect(maps.locator("svg[role=img][aria-label*='most attention at']")).to_have_count(4)
        for width in (500, SIZE["width"]):
            page.set_viewport_size({"width": width, "height": 900})
            for dark in (False, True):
                notebook.use_theme(dark=dark)
                maps.scroll_into_view_if_needed()
                page.screenshot(path=SCREENSHOTS / f"attention_{'dark' if dark else 'light'}_{width}.png")
                assert_contrasts(maps)
                assert violations(page) == []
            assert maps.evaluate("output => output.scrollWidth <= output.clientWidth + 1")


def test_a_model_of_text_alone_says_so_of_a_picture(opens: Opens) -> None:
    with opens("session.chat().widget()") as notebook:
        output = notebook.run(1)
        drop(output.get_by_label("You"), "cat.png", "image/png", IMAGES[0].read_bytes())
        expect(output.get_by_role("alert")).to_contain_text("cat.png: the model takes no images")
        large = bytes((20 << 20) + 1)
        drop(output.get_by_label("You"), "film.png", "image/png", large)
        expect(output.get_by_role("alert")).to_contain_text("film.png: an image may have 20 MiB")
