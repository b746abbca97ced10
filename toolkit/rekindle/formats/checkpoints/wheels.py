"""Download of a wheel from a package index over HTTP, for environments without pip and uv."""

import json
import os
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin
from urllib.request import Request, urlopen

from rekindle.core.concurrency.progress import Progress, Report

INDEX: Final = "https://pypi.org/simple"
JSON: Final = "application/vnd.pypi.simple.v1+json"
TIMEOUT_SECONDS: Final = 60.0
_CHUNK: Final = 1 << 18


class NotDownloaded(Exception):
    """A wheel could not be downloaded; the message has the reason."""


def download_wheel(requirement: str, directory: Path, stage: str, report: Report) -> Path:
    """Download a wheel from the index of PIP_INDEX_URL, or else from PyPI, and return its path.

    Args:
        requirement: the name and the version, as "name==1.0".
        directory: the directory for the wheel.
        stage: the stage of the reports.
        report: called with the number of bytes so far.

    Raises:
        NotDownloaded: the index is unreachable, or has no such wheel.
    """
    try:
        url, name = _address(requirement)
        with urlopen(url, timeout=TIMEOUT_SECONDS) as answer, (directory / name).open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0) or None
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                report(Progress(stage, file.tell(), total))
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise NotDownloaded(f"{type(error).__name__}: {error}") from error
    return directory / name


def _address(requirement: str) -> tuple[str, str]:
    """Return the address of a wheel, and its file name."""
    project, _, version = requirement.partition("==")
    index = os.environ.get("PIP_INDEX_URL") or INDEX
    with urlopen(
        Request(f"{index.rstrip('/')}/{project}/", headers={"Accept": JSON}), timeout=TIMEOUT_SECONDS
    ) as answer:
        files: list[dict[str, Any]] = json.load(answer)["files"]
        base = answer.url
    begins = f"{project.replace('-', '_')}-{version}-"
    for file in files:
        name = str(file["filename"])
        if name.startswith(begins) and name.endswith(".whl") and "/" not in name and "\\" not in name:
            return urljoin(base, str(file["url"])), name
    raise ValueError(f"{index} has no wheel of {requirement}")
