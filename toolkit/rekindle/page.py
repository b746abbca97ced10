"""One page of the prefix cache, as every process knows it: on the device, in a tree, on disk."""

from dataclasses import dataclass
from hashlib import sha256

NULL_PAGE = 0
"""The page that padding writes to; it is never allocated."""


@dataclass(frozen=True, slots=True)
class StoredPage:
    """Where in the prefix tree a record on disk belongs.

    Attributes:
        record: the number by which the store knows it.
        digest: of the node that it is a copy of, as `PrefixTree.digest` gives it.
        parent: the digest of that node's parent, which may be a root.
        namespace: whose prefix it is.
        key: its tokens, as int32 bytes, the lowest byte first.
    """

    record: int
    digest: str
    parent: str
    namespace: str
    key: bytes


@dataclass(frozen=True, slots=True)
class NewPage:
    """A page to be stored; the attributes are those of `StoredPage`."""

    digest: str
    parent: str
    namespace: str
    key: bytes


def digest_below(parent: bytes, key: bytes) -> bytes:
    """The digest of a node with this key, below one with that digest."""
    return sha256(parent + key).digest()
