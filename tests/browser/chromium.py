"""The browser of the tests: Debian's Chromium, without a window."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

PACKAGE = "chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
)


def installed() -> str | None:
    """Return the path of a Chromium, if this machine has one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def install() -> None:
    """Install Chromium with apt if there is none and this is root.

    Raises:
        SystemExit: there is none and this is not root; the message says what to do.
    """
    if installed():
        return
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        sys.exit(
            "The browser tests need Chromium: a program named "
            f"{' or '.join(NAMES)}. On Debian: sudo apt-get install --no-install-recommends {PACKAGE}"
        )
    for command in (["update"], ["install", "-y", "--no-install-recommends", PACKAGE]):
        subprocess.run([apt, "-qq", *command], check=True, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
    if not installed():
        sys.exit(f"apt-get installed {PACKAGE}, but there is no {' or '.join(NAMES)} on the PATH")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium without a window.

    Raises:
        RuntimeError: there is no Chromium.
    """
    path = installed()
    if path is None:
        raise RuntimeError("there is no Chromium here: `python -m tests.browser.chromium` installs it, or says how")
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=path, args=FLAGS) as browser:
        yield browser


if __name__ == "__main__":
    install()
