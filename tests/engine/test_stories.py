"""Whatever happens to stores that processes with different settings share, answers are right or errors are clear."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

PROCESSES = 2
STORIES = 5000


@pytest.mark.deep
def test_stories_of_shared_stores_end_with_right_answers_or_clear_errors(families: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    each = STORIES // PROCESSES
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.engine.stories", str(families / "qwen3"), str(cache)),
                *(str(first), str(each)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in range(0, STORIES, each)
    ]
    ends: Counter[str] = Counter()
    try:
        for process in running:
            output, errors = process.communicate()
            assert process.returncode == 0, errors[-4000:]
            ends.update(json.loads(output.splitlines()[-1]))
    finally:
        for process in running:
            process.kill()
    assert ends.total() == STORIES
    answered = sum(count for end, count in ends.items() if end.endswith("answered"))
    assert answered > STORIES // 2, ends
