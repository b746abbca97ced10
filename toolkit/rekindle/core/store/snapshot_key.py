"""The key that makes the pages of a snapshot valid, and the identity of weight files without reading all of them."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

from rekindle.core.store.validity import StoreKey

FIRST_BYTES: Final = 1 << 20
LAST_BYTES: Final = 64 << 10
SAMPLES: Final = 256
SAMPLE_BYTES: Final = 4 << 10


@dataclass(frozen=True, slots=True)
class SnapshotKey(StoreKey):
    """The key of all pages of one snapshot.

    Attributes:
        model: the decoder's config, as its repr.
        weights: see `weights_fingerprint`.
        dtype: the dtype of the computation.
        page_size: tokens of a page.
        page: dtype and shape of a page over all layers, as it is stored.
        code: see `code_digest`.
        platform: "cpu", "gpu" or "tpu".
        numerics: what else the last digits depend on, as far as it matters to the session.
    """

    model: str
    weights: str
    dtype: str
    page_size: str
    page: str
    code: str
    platform: str
    numerics: str

    def parts(self) -> dict[str, str]:
        """See `StoreKey`."""
        return asdict(self)


def weights_fingerprint(files: Sequence[Path]) -> str:
    """Return the identity of weight files, from their names, sizes, times of change, and samples of their content.

    Files that were written again or edited in place have another identity, even where the samples are the same. Copies
    with another time of change have another one too, which costs no more than computing pages again.

    Args:
        files: all weight files of a model, in any order.

    Returns:
        64 hexadecimal digits.

    Raises:
        OSError: a file cannot be read.
    """
    whole = hashlib.sha256()
    for path in sorted(files, key=lambda path: (path.name, str(path))):
        status = path.stat()
        whole.update(json.dumps([path.name, status.st_size, status.st_mtime_ns]).encode())
        for sample in _samples_of(path):
            whole.update(sample)
    return whole.hexdigest()


def content_fingerprint(files: Sequence[Path]) -> str:
    """Return the identity of weight files from their sizes and samples of their content: copies have the same.

    Args and raises as `weights_fingerprint`.

    Returns:
        64 hexadecimal digits.
    """
    found = [hashlib.sha256(b"".join([str(path.stat().st_size).encode(), *_samples_of(path)])) for path in files]
    return hashlib.sha256(json.dumps(sorted(each.hexdigest() for each in found)).encode()).hexdigest()


def _samples_of(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        yield from _samples(file, path.stat().st_size)


def _samples(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the first bytes, blocks at even distances, and the last bytes; of a small file, yield all."""
    if size <= FIRST_BYTES + LAST_BYTES + SAMPLES * SAMPLE_BYTES:
        yield file.read()
        return
    step = (size - FIRST_BYTES - LAST_BYTES) // SAMPLES
    starts = [(FIRST_BYTES + place * step, SAMPLE_BYTES) for place in range(SAMPLES)]
    for start, length in [(0, FIRST_BYTES), *starts, (size - LAST_BYTES, LAST_BYTES)]:
        file.seek(start)
        yield file.read(length)
