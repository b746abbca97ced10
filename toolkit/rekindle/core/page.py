"""The identity of one page of the prefix cache, the same in every process, on the device, in a tree and on disk."""

from dataclasses import dataclass
from hashlib import sha256

NULL_PAGE = 0
"""The page that padding writes to; it is never allocated."""


@dataclass(frozen=True, slots=True)
class StoredPage:
    """The place in the prefix tree that a page on disk belongs to.

    Attributes:
        record: the number by which the store knows the page.
        digest: the digest of its node; see `PrefixTree.digest`.
        parent: the digest of that node's parent, which may be a root.
        namespace: whose prefix it is.
        key: its tokens as int32, in little-endian bytes.
    """

    record: int
    digest: str
    parent: str
    namespace: str
    key: bytes


@dataclass(frozen=True, slots=True)
class NewPage:
    """A page that is to be stored; the attributes are those of `StoredPage`."""

    digest: str
    parent: str
    namespace: str
    key: bytes


def digest_below(parent: bytes, key: bytes) -> bytes:
    """Return the digest of a node from the digest of its parent and its own key."""
    return sha256(parent + key).digest()
