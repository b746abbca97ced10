"""The table of families in the guide, from `rekindle.cli.models`: `python -m tests.family_table` writes it."""

from pathlib import Path
from typing import Final

from rekindle.cli.arguments.models import TOKENS
from rekindle.cli.models.table import FamilyRow, rows
from rekindle.core.words import size_text
from tests.documents import GUIDES

GUIDE: Final = GUIDES / "model_families.md"
_HEAD: Final = "|---|---|---|\n"


def table() -> str:
    """Return the rows of the table in Markdown."""
    return "".join(f"| {row.name} | {row.tested} | {_sizes(row)} |\n" for row in rows())


def in_guide(guide: Path = GUIDE) -> str:
    """Return the rows of the table in the guide."""
    _, _, end = guide.read_text(encoding="utf-8").partition(_HEAD)
    return end


def _sizes(row: FamilyRow) -> str:
    return ", ".join(f"{size.label} {size_text(size.bytes_with(TOKENS, 'bfloat16'))}" for size in row.sizes)


if __name__ == "__main__":
    start, head, _ = GUIDE.read_text(encoding="utf-8").partition(_HEAD)
    GUIDE.write_text(start + head + table(), encoding="utf-8")
