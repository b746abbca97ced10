"""What makes a snapshot's pages valid, named part by part, and the identity of weight files without reading them."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

from rekindle.store.validity import Difference, code_digest

FIRST_BYTES: Final = 1 << 20
LAST_BYTES: Final = 64 << 10
SAMPLES: Final = 256
SAMPLE_BYTES: Final = 4 << 10


@dataclass(frozen=True, slots=True)
class SnapshotKey:
    """Pages are used only where every part is as it was when they were computed.

    Attributes:
        model: the decoder's config.
        weights: see `weights_fingerprint`.
        dtype: of the computation.
        page_size: in tokens.
        page: shape and dtype of a page as it is stored.
        code: of this package's own sources.
        platform: "cpu", "gpu" or "tpu".
    """

    model: str
    weights: str
    dtype: str
    page_size: str
    page: str
    code: str
    platform: str

    @classmethod
    def of(
        cls,
        model: object,
        weights: str,
        dtype: str,
        page_size: int,
        page_shape: Sequence[int],
        page_dtype: str,
        platform: str,
    ) -> "SnapshotKey":
        """The key of what this process computes.

        Args:
            model: the decoder's config; its repr is part of the key.
            weights: what `weights_fingerprint` says of its files.
            dtype: of the computation.
            page_size: in tokens.
            page_shape: of one page over all layers, as it is stored.
            page_dtype: the same.
            platform: "cpu", "gpu" or "tpu".
        """
        return cls(
            model=repr(model),
            weights=weights,
            dtype=dtype,
            page_size=str(page_size),
            page=f"{page_dtype}{list(page_shape)}",
            code=code_digest(),
            platform=platform,
        )

    def parts(self) -> dict[str, str]:
        """Every part by name."""
        return asdict(self)

    @property
    def digest(self) -> str:
        """64 hexadecimal digits that differ where any part does."""
        return hashlib.sha256(json.dumps(self.parts(), sort_keys=True).encode()).hexdigest()

    def explain(self, other: "SnapshotKey | Mapping[str, str]") -> dict[str, Difference]:
        """The parts that differ, each with its value here and in `other`, which may be the parts of a stored key."""
        mine, theirs = self.parts(), other.parts() if isinstance(other, SnapshotKey) else other
        pairs = {name: (mine.get(name, ""), theirs.get(name, "")) for name in (*mine, *theirs)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def weights_fingerprint(files: Sequence[Path]) -> str:
    """The identity of weight files, from their names, sizes, times of change, and samples of their content.

    Files that were written again or edited in place have another one, even where the samples are the same; so have
    copies with another time of change, which costs no more than computing pages again.

    Args:
        files: all of a model's, in any order.

    Returns:
        64 hexadecimal digits.

    Raises:
        OSError: a file cannot be read.
    """
    whole = hashlib.sha256()
    for path in sorted(files, key=lambda path: (path.name, str(path))):
        status = path.stat()
        whole.update(json.dumps([path.name, status.st_size, status.st_mtime_ns]).encode())
        with path.open("rb", buffering=0) as file:
            for sample in _samples(file, status.st_size):
                whole.update(sample)
    return whole.hexdigest()


def _samples(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The first bytes, blocks at even distances, and the last bytes; all of a small file."""
    if size <= FIRST_BYTES + LAST_BYTES + SAMPLES * SAMPLE_BYTES:
        yield file.read()
        return
    step = (size - FIRST_BYTES - LAST_BYTES) // SAMPLES
    starts = [(FIRST_BYTES + place * step, SAMPLE_BYTES) for place in range(SAMPLES)]
    for start, length in [(0, FIRST_BYTES), *starts, (size - LAST_BYTES, LAST_BYTES)]:
        file.seek(start)
        yield file.read(length)
