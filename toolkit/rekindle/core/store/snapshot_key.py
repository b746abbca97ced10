"""Key of a snapshot's pages, and fingerprints of files in keys."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rekindle.core.store.file_digests import file_digest
from rekindle.core.store.validity import StoreKey


@dataclass(frozen=True, slots=True)
class SnapshotKey(StoreKey):
    """The key of all pages of one snapshot: the content that decides their bits.

    Attributes:
        content: the name and the text of each part.
    """

    content: tuple[tuple[str, str], ...]

    def parts(self) -> dict[str, str]:
        """See `StoreKey.parts`."""
        return dict(self.content)


def content_fingerprint(files: Sequence[Path]) -> str:
    """Return a fingerprint of files by all their bytes, in any order. Copies have the same fingerprint.

    Returns:
        64 hexadecimal digits.

    Raises:
        OSError: a file cannot be read.
    """
    return hashlib.sha256(json.dumps(sorted(map(file_digest, files))).encode()).hexdigest()
