"""Saving leaves the root logger as it was, so that our lines and the user's settings are not lost."""

import subprocess
import sys
from pathlib import Path

import pytest

SAVE = """
import logging, sys
from pathlib import Path
import numpy as np
from rekindle.core.store import entries
from rekindle.notebook.log import log
store = Path(sys.argv[1])
with entries.new_entry(store, {}, {"a": np.zeros(3)}) as path:
    log("during the save")
    logging.getLogger("user").warning("a warning")
log("after the save")
assert not logging.root.handlers, logging.root.handlers
with entries.new_entry(store, {}, {"a": np.zeros(3)}) as path:
    pass
logging.basicConfig(level=logging.INFO, format="user: %(message)s")
log("by the user's handler")
"""


@pytest.mark.wide
def test_a_save_gives_the_root_logger_no_handler(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SAVE, str(tmp_path)], capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if "save" in line or "warning" in line or "handler" in line]
    assert lines == ["during the save", "a warning", "after the save", "user: by the user's handler"]
