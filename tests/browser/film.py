"""Make the film of the README: a chat in JupyterLab, before and after a restart of its kernel.

A clock in the corner has the real seconds of the run. Waits without a change are shortened, and nothing else is cut.
"""

import io
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from PIL import Image
from playwright.sync_api import Page, ViewportSize, expect

from rekindle.core.store.directory import cache_dir
from tests.browser.chromium import open_browser
from tests.browser.driver import AT_REST, ENDED, LIMIT, Notebook, open_notebook
from tests.browser.lab import open_lab
from tests.notebook.kernels import environment

FILM: Final = Path(__file__).parents[2] / "tutorials" / "rekindle.gif"
LARGEST: Final = 1_500_000
"""The most bytes of the film, because every reader of the README downloads it."""
SIZE: Final[ViewportSize] = {"width": 860, "height": 760}
COLOURS: Final = 64
CELLS: Final = (
    "import rekindle\n\nsession = await rekindle.open()",
    "session.chat(temperature=0).widget()",
)
QUESTIONS: Final = ("What is a prime number? Answer in one sentence.", "What is the capital of France?")
"""A turn before the restart, and one after it."""
OPENING: Final = 4.5
"""The most seconds of the film for one cell; a longer one is shown faster, by its clock."""
REST: Final = 1.8
"""Seconds of the film after the end of a cell, for its output to be read."""
QUIET: Final = 20.0
"""Seconds without a new program until all count as stored."""
WORDS: Final = """([id, words, style]) => {
    const element = document.getElementById(id) || document.body.appendChild(document.createElement("div"))
    element.id = id; element.style = style; element.textContent = words
}"""
"""A script to show words above the page."""
CLOCK_STYLE: Final = (
    "position:fixed;right:18px;top:14px;z-index:9999;padding:4px 12px;border-radius:14px;background:#e8590c;"
    "color:#fff;font:600 15px system-ui,sans-serif;font-variant-numeric:tabular-nums"
)
CAPTION_STYLE: Final = (
    "position:fixed;left:0;right:0;bottom:0;z-index:9999;padding:9px 18px;background:#222;color:#fff;"
    "font:15px system-ui,sans-serif;text-align:center"
)
CAPTIONS: Final = {
    "first start": "The first start compiles the programs of the model, and stores them",
    "second start": "After a restart of the kernel, programs, cached prompts and the chat come back from disk",
}
"""Sentences below the page, by the words of the clock."""

STYLE: Final = f"{AT_REST} #jp-main-statusbar {{ display: none !important }}"


class Frame(NamedTuple):
    """One picture, and its seconds in the film."""

    png: bytes
    seconds: float


class Camera:
    """A page and its pictures."""

    def __init__(self, page: Page):
        self._page = page
        self._start = time.monotonic()
        self._words, self._caption = "", ""
        self.frames: list[Frame] = []

    def begin(self, words: str) -> None:
        """Start the clock at 0, with words before it and their caption below the page."""
        self._words, self._caption, self._start = words, CAPTIONS[words], time.monotonic()

    def take(self, seconds: float, *, ticking: bool = True) -> None:
        """Take a picture with the clock, to be shown for `seconds`."""
        now = f"{self._words} {time.monotonic() - self._start:.1f} s" if ticking else self._words
        self._page.evaluate(WORDS, ["film-clock", now, CLOCK_STYLE])
        self._page.evaluate(WORDS, ["film-caption", self._caption, CAPTION_STYLE])
        self.frames.append(Frame(self._page.screenshot(style=STYLE), seconds))

    def follow(self, notebook: Notebook, place: int) -> None:
        """Run a cell, and take pictures until it has ended, as fast as they come."""
        first, before = len(self.frames), time.monotonic()
        notebook.start(place)
        times = []
        while not ENDED.match(notebook.prompt(place).inner_text()):
            self.take(0.0)
            times.append(time.monotonic())
        lengths = [now - then for then, now in zip([before, *times], times, strict=False)]
        speed = min(1.0, OPENING / max(sum(lengths), 1e-9))
        self.frames[first:] = [
            Frame(frame.png, length * speed) for frame, length in zip(self.frames[first:], lengths, strict=True)
        ]
        self.take(REST)

    def ask(self, notebook: Notebook, question: str) -> None:
        """Type a question into the chat of the second cell, and take pictures until it is answered."""
        chat = notebook.output(1)
        send = chat.get_by_role("button", name="Send")
        box = chat.get_by_label("You")
        box.fill(question)
        self.take(0.6)
        box.press("Enter")
        expect(send).to_be_disabled()
        while send.is_disabled():
            box.scroll_into_view_if_needed()
            self.take(0.1)
        box.scroll_into_view_if_needed()
        self.take(REST)

    def restart(self, notebook: Notebook) -> None:
        """Restart the kernel and clear the outputs, from the menu."""
        self._words = "restart the kernel"
        self._page.get_by_role("menuitem", name="Kernel", exact=True).click()
        item = self._page.get_by_role("menuitem", name="Restart Kernel and Clear Outputs of All Cells")
        item.hover()
        self.take(1.0, ticking=False)
        item.click()
        button = self._page.locator(".jp-Dialog .jp-mod-accept")
        button.wait_for()
        self.take(0.6, ticking=False)
        button.click()
        expect(notebook.prompt(0)).to_have_text("[ ]:")
        notebook.ready()
        self.take(0.8, ticking=False)


def shoot() -> list[Frame]:
    """Return the pictures of a first start, a restart and the second start."""
    expect.set_options(timeout=LIMIT)
    with tempfile.TemporaryDirectory() as directory:
        home, cache = Path(directory) / "home", Path(directory) / "cache"
        home.mkdir()
        cache.mkdir(mode=0o700)
        (cache / "models").symlink_to(cache_dir("models"))  # programs are compiled in the film, and the model is there
        variables = {**environment(home), "REKINDLE_CACHE": str(cache)}
        with (
            open_lab(home, variables) as lab,
            open_browser() as browser,
            browser.new_context(viewport=SIZE) as context,
        ):
            lab.write("rekindle.ipynb", CELLS)
            context.set_default_timeout(LIMIT)
            with open_notebook(context, lab, "rekindle.ipynb") as notebook:
                camera = Camera(notebook.page)
                notebook.page.mouse.move(SIZE["width"] / 2, SIZE["height"] - 4)
                for words in ("first start", "second start"):
                    camera.begin(words)
                    camera.take(0.8)
                    for place in range(len(CELLS)):
                        camera.follow(notebook, place)
                    if words == "second start":
                        offer = notebook.output(1).get_by_role("button", name=QUESTIONS[0])
                        expect(offer).to_be_visible()
                        camera.take(REST)
                        offer.click()
                        expect(notebook.output(1)).to_contain_text("A prime number is")
                        camera.take(REST)
                    camera.ask(notebook, QUESTIONS[words != "first start"])
                    if words == "first start":
                        _wait_for_programs(cache / "programs")
                        camera.restart(notebook)
                camera.take(REST)
                return camera.frames


def _wait_for_programs(folder: Path) -> None:
    """Wait, off camera, until the programs that are compiled in the background are stored."""
    count, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET:
        if (now := sum(1 for _ in folder.iterdir())) != count:
            count, since = now, time.monotonic()
        time.sleep(0.5)


def write(frames: list[Frame], path: Path) -> None:
    """Write pictures as an animation, in few colours and without pictures that repeat the one before."""
    pictures = [Image.open(io.BytesIO(frame.png)).convert("RGB") for frame in frames]
    # A palette of the last picture of each part: the frames of all parts have its colours.
    palette = _column([pictures[at] for at in range(0, len(pictures), max(1, len(pictures) // 12))] + pictures[-1:])
    colours = palette.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    indexed = [picture.quantize(palette=colours, dither=Image.Dither.NONE) for picture in pictures]
    # GIF counts in hundredths of a second, and browsers slow down frames of less than two.
    lengths = [max(20, round(100 * frame.seconds) * 10) for frame in frames]
    first, *rest = indexed
    first.save(path, save_all=True, append_images=rest, duration=lengths, loop=0, optimize=False, disposal=1)


def _column(pictures: list[Image.Image]) -> Image.Image:
    """Return pictures one below the other."""
    width, height = pictures[0].size
    column = Image.new("RGB", (width, height * len(pictures)))
    for place, picture in enumerate(pictures):
        column.paste(picture, (0, place * height))
    return column


if __name__ == "__main__":
    frames = shoot()
    write(frames, FILM)
    size, seconds = FILM.stat().st_size, sum(frame.seconds for frame in frames)
    sys.stdout.write(f"{FILM}: {len(frames)} pictures, {seconds:.0f} s, {size:,} bytes\n")
    if size > LARGEST:
        sys.exit(f"{FILM} has more than {LARGEST:,} bytes: make what it shows smaller")
