"""Adapters of an LLM: known by their files, and the least recently used ones leave."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from rekindle.formats.checkpoints.peft import CONFIG, WEIGHTS
from rekindle.session.session import Session
from rekindle.vllm.lora.request import LoRARequest

Stamp = tuple[tuple[int, int, int, int], ...]
"""Inode, size, and times of modification and of change in nanoseconds of each file of an adapter."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """An adapter of the session.

    Attributes:
        name: its name there.
        path: its directory.
        stamp: the files there at that time.
    """

    name: str
    path: str
    stamp: Stamp


class LoadedAdapters:
    """The adapters of an LLM in its session, from the least to the most recently used.

    An adapter is known by its directory and the files in it: files saved anew there are another adapter. vLLM knows it
    by `lora_int_id` alone.

    Args:
        session: the session.
    """

    def __init__(self, session: Session):
        self._session = session
        self._loaded: list[_Loaded] = []

    @property
    def room(self) -> int:
        """The number of adapters for which the session has room."""
        return self._session._engine.facts.limits.max_adapters

    def name_of(self, lora: LoRARequest | None) -> str | None:
        """Return the name of an adapter in the session, read first if need be. The least recently used one makes room.

        A replaced adapter, or one that leaves, serves its earlier requests to their end.

        Raises:
            InvalidRequest, ModelError: see `Session.add_adapter`.
        """
        if lora is None:
            return None
        lora.check()
        stamp, names = _stamp_of(Path(lora.lora_path)), self._session.adapters
        self._loaded = [each for each in self._loaded if each.name in names]  # the session's user may remove some
        same = [each for each in self._loaded if each.path == lora.lora_path]
        # Files removed after they were read, as loops of training do, are those of before.
        adapter = next((each for each in reversed(same) if not stamp or each.stamp == stamp), None)
        if adapter is None or lora.load_inplace:
            adapter = self._added(lora, stamp, [each.name for each in same])
        self._loaded = [*(each for each in self._loaded if each.name != adapter.name), adapter]
        return adapter.name

    def _added(self, lora: LoRARequest, stamp: Stamp, outdated: Collection[str]) -> _Loaded:
        names = self._session.adapters.keys() - set(outdated)
        others = (f"{lora.lora_name}#{number}" for number in count(lora.lora_int_id))
        name = lora.lora_name if lora.lora_name not in names else next(each for each in others if each not in names)
        for each in outdated:
            if each != name:
                self._session.remove_adapter_sync(each)
        mine = [each for each in self._loaded if each.name in self._session.adapters and each.name != name]
        if name not in self._session.adapters and len(self._session.adapters) >= self.room and mine:
            self._session.remove_adapter_sync(mine[0].name)
        self._session.add_adapter_sync(name, lora.lora_path)
        return _Loaded(name, lora.lora_path, stamp)


def _stamp_of(directory: Path) -> Stamp:
    """Return the stamp of an adapter's directory; empty if a file is missing."""
    try:
        states = [(directory / name).stat() for name in (CONFIG, WEIGHTS)]
    except OSError:
        return ()
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in states)
