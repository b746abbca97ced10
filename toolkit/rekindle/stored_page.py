"""One page of the prefix cache on disk, as its store tells of it, and as it is told."""

from dataclasses import dataclass


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
