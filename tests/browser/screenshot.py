"""Take the picture of the README: a notebook in JupyterLab, in the middle of an answer."""

import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import ViewportSize, expect

from rekindle.core.store.directory import cache_dir
from tests.browser.chromium import open_browser
from tests.browser.driver import LIMIT, open_notebook
from tests.browser.lab import open_lab
from tests.notebook.kernels import environment

PICTURE = Path(__file__).parents[2] / "tutorials" / "rekindle.png"
LARGEST = 300_000
"""The most bytes of the picture, because everybody who clones the repository downloads it."""
SIZE: ViewportSize = {"width": 920, "height": 1200}
DENSITY = 1.5
"""The pixels of the picture for each one of the page, so that text is sharp on most screens."""
TOKENS = 45
"""The number of tokens of the running answer when the picture is taken."""
COLOURS = 256
CELLS = (
    'import rekindle\n\nsession = await rekindle.open("smollm2-135m-instruct", progress=False)\nsession.dashboard()',
    'await session.generate("The three primary colours are", max_tokens=24, logprobs=3)',
    'story = "The lighthouse keeper wrote every day in a blue book. " * 30\n'
    "async with session.prefix(story) as held:\n"
    '    await held.generate(["Who wrote?", "Where?", "In what?"], max_tokens=80)\n'
    "    display(session.cache.draw())",
    'question = {"role": "user", "content": "Tell me a story about a lighthouse."}\n'
    "await session.show([question], max_tokens=400)",
)


def take(path: Path) -> None:
    """Take the picture while the last cell is still running."""
    expect.set_options(timeout=10 * LIMIT)  # its programs may have to be compiled
    with tempfile.TemporaryDirectory() as directory:
        home, cache = Path(directory) / "home", Path(directory) / "cache"
        home.mkdir()
        cache.mkdir(mode=0o700)
        for name in ("models", "programs"):
            (cache / name).symlink_to(cache_dir(name))
        variables = {**environment(home), "REKINDLE_CACHE": str(cache)}
        with (
            open_lab(home, variables) as lab,
            open_browser() as browser,
            browser.new_context(viewport=SIZE, device_scale_factor=DENSITY) as context,
        ):
            lab.write("rekindle.ipynb", CELLS)
            context.set_default_timeout(LIMIT)
            with open_notebook(context, lab, "rekindle.ipynb") as notebook:
                *first, last = range(len(CELLS))
                for place in first:
                    notebook.run(place)
                notebook.start(last)
                notebook.number(0, r"running\s+\d+\s+(\d+)", above=TOKENS)
                notebook.picture(path)
                assert notebook.running(last)
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    take(PICTURE)
    if (size := PICTURE.stat().st_size) > LARGEST:
        sys.exit(f"{PICTURE} has {size:,} bytes, more than {LARGEST:,}: make what it shows smaller")
    sys.stdout.write(f"{PICTURE}: {size:,} bytes\n")
