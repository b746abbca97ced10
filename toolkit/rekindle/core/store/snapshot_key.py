"""Key of a snapshot's pages, and fingerprints of weight files from samples of their content."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

from rekindle.core.store.validity import StoreKey

FIRST_BYTES: Final = 1 << 20
LAST_BYTES: Final = 64 << 10
SAMPLES: Final = 1024
SAMPLE_BYTES: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class SnapshotKey(StoreKey):
    """The key of all pages of one snapshot.

    Attributes:
        model: repr of the decoder's config.
        weights: fingerprint of the weight files, see `weights_fingerprint`.
        dtype: the dtype of the computation.
        page_size: number of tokens in a page.
        page: dtype and shape of a stored page over all layers, and of a state if the model has states.
        code: digest of the sources, see `code_digest`.
        platform: "cpu", "gpu" or "tpu".
        numerics: other settings with an effect on the last digits of the session's results.
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
        """See `StoreKey.parts`."""
        return asdict(self)


def weights_fingerprint(files: Sequence[Path]) -> str:
    """Return a fingerprint of weight files: their names, sizes, modification times, and samples of their content.

    Rewritten or edited files have a new fingerprint, even if their samples are equal. So do copies with another
    modification time, at the cost of computing cached pages again.

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
    """Return a fingerprint of weight files by sizes and samples of their content. Copies have the same fingerprint.

    See `weights_fingerprint` for the argument and errors.

    Returns:
        64 hexadecimal digits.
    """
    digests = [hashlib.sha256(b"".join([str(path.stat().st_size).encode(), *_samples_of(path)])) for path in files]
    return hashlib.sha256(json.dumps(sorted(digest.hexdigest() for digest in digests)).encode()).hexdigest()


def _samples_of(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        yield from _samples(file, path.stat().st_size)


def _samples(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the first bytes, evenly spaced blocks, and the last bytes of a file; yield a small file whole."""
    if size <= FIRST_BYTES + LAST_BYTES + SAMPLES * SAMPLE_BYTES:
        yield file.read()
        return
    step = (size - FIRST_BYTES - LAST_BYTES) // SAMPLES
    starts = [(FIRST_BYTES + place * step, SAMPLE_BYTES) for place in range(SAMPLES)]
    for start, length in [(0, FIRST_BYTES), *starts, (size - LAST_BYTES, LAST_BYTES)]:
        file.seek(start)
        yield file.read(length)
