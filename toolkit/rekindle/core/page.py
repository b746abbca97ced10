"""Identity of a page of the prefix cache, the same in every process, on the device, in a tree and on disk."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Final

NULL_PAGE = 0
"""The page that padding writes to; it is never allocated."""
STATE_KEY = b"state"
"""The key of a state below its node, in place of tokens. It is shorter than any page of tokens."""
Marks = Mapping[int, bytes]
"""The marks of images in a sequence of tokens, by page; pages without images have none."""
NO_MARKS: Final[Marks] = MappingProxyType({})
"""The marks of a sequence without images."""


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A page or a state on disk, with a place in the prefix tree.

    Attributes:
        record: number of the page in the store.
        digest: digest of its node; see `PrefixTree.digest`.
        parent: digest of the parent node, possibly a root.
        namespace: cache namespace of the prefix.
        key: the key from `page_key`; `STATE_KEY` for a state after the parent's tokens.
    """

    record: int
    digest: str
    parent: str
    namespace: str
    key: bytes

    @property
    def is_state(self) -> bool:
        """True for a state, False for a page."""
        return self.key == STATE_KEY


@dataclass(frozen=True, slots=True)
class NewPage:
    """A page to be stored; the attributes are those of `StoredPage`."""

    digest: str
    parent: str
    namespace: str
    key: bytes


def page_key(tokens: Sequence[int], mark: bytes = b"") -> bytes:
    """Return the key of a page: its tokens as int32, in little-endian bytes, then the mark of its images."""
    return array("i", tokens).tobytes() + mark


def tokens_of(key: bytes, page_size: int) -> list[int]:
    """Return the tokens in the key of a page."""
    return array("i", key[: page_size * array("i").itemsize]).tolist()


def digest_below(parent: bytes, key: bytes) -> bytes:
    """Return the digest of a node from its parent's digest and its key."""
    return sha256(parent + key).digest()
