"""Operations on the adapters of a session: adding and removing them while requests run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import jax

from rekindle.assembly.loaded_engine import LoadedEngine
from rekindle.assembly.thread import EngineThread
from rekindle.client.adapters import AdapterInfo
from rekindle.client.engine_client import EngineClient
from rekindle.core.concurrency.waits import Wait, Waits, in_a_thread, unless, until_closed
from rekindle.core.errors import ConfigError, InvalidRequest
from rekindle.core.messages import PutAdapter
from rekindle.core.request import checks
from rekindle.core.request.accepted import LONGEST_NAME
from rekindle.core.scheduler.limits import DEFAULT_ADAPTERS, DEFAULT_RANK
from rekindle.settings.engine import Settings

if TYPE_CHECKING:
    from rekindle.formats.lora import Lora

AdapterSource = str | PathLike[str]
"""The directory of an adapter."""


class AdapterOperations:
    """Operations on the adapters of one session, each awaitable or blocking.

    Attributes:
        bytes: the memory of the room for adapters on all devices; 0 before the first one.
    """

    def __init__(self, engine: EngineThread, loaded_engine: LoadedEngine, client: EngineClient):
        self._engine, self._loaded_engine, self._client = engine, loaded_engine, client
        self.bytes = 0

    def add(
        self,
        name: str,
        source: AdapterSource | None,
        tensors: Mapping[str, Any] | None,
        config: Mapping[str, Any] | None,
    ) -> Waits[None]:
        """See `Session.add_adapter`."""
        _check_name(name)
        self._loaded_engine.check_programs("adapters", adapters=True)
        lora = yield from in_a_thread(self._reader(source, tensors, config), "adapter")
        slot = yield from self._reserve(name)
        try:
            yield from self._put(lora, slot)
        except BaseException:
            self._client.adapters.cancel(name, slot)
            raise
        self._client.adapters.put(name, slot, AdapterInfo(lora.source, lora.rank, lora.digest))

    def remove(self, name: str) -> None:
        """See `Session.remove_adapter`."""
        self._client.adapters.remove(name)

    def _reader(
        self, source: AdapterSource | None, tensors: Mapping[str, Any] | None, config: Mapping[str, Any] | None
    ) -> "Callable[[], Lora]":
        """Return the function to read an adapter and check it against the model."""
        from rekindle.formats.checkpoints.peft import given_adapter, read_adapter

        model = self._loaded_engine.model
        if source is None and isinstance(tensors, Mapping) and isinstance(config, Mapping):
            return lambda: self._loaded_engine.check_adapter(given_adapter(tensors, config, model))
        if isinstance(source, str | PathLike) and tensors is None and config is None:
            return lambda: self._loaded_engine.check_adapter(read_adapter(source, model))
        if source is None and tensors is None and config is None:
            raise InvalidRequest(
                'an adapter has a name for requests and a directory: session.add_adapter("name", "DIRECTORY"), or '
                "tensors= and config= in place of the directory"
            )
        raise InvalidRequest(
            "an adapter is the path of its directory, or tensors= and config=, mappings as in the two files there"
        )

    def _reserve(self, name: str) -> Waits[int]:
        """Wait for a free slot, while removed adapters are still in use."""
        while True:
            slot, freed = self._client.adapters.reserve(name, self._loaded_engine.limits.max_adapters)
            if slot is not None:
                return slot
            yield Wait(freed, timeout=1.0)  # the engine may end meanwhile
            self._require_engine()

    def _put(self, lora: "Lora", slot: int) -> Waits[None]:
        """Put an adapter into a slot on all devices; at the first one, make room for all and prepare the programs."""
        is_first = not self.bytes
        content, empty = yield from in_a_thread(
            lambda: self._loaded_engine.place_adapter(lora, with_room=is_first), "adapter"
        )
        _, put = self._client.ask(lambda ticket: PutAdapter(ticket, slot, content, empty), self._engine.post)
        yield from unless(until_closed(put), lambda: self._engine.overdue)
        self._require_engine()
        if is_first:
            self.bytes = self._loaded_engine.limits.data * sum(array.nbytes for array in jax.tree.leaves(empty))
            self._loaded_engine.prepare_adapter_programs()

    def _require_engine(self) -> None:
        if self._engine.error is not None:
            raise self._engine.error.with_traceback(None)


def with_room_for(adapters: Mapping[str, AdapterSource], settings: Settings) -> Settings:
    """Return the settings with room for the adapters of `open`.

    Raises:
        ConfigError: the settings have too little room.
        ModelNotFound: a directory has no adapter.
        CheckpointError: a configuration is no JSON object, or has no ranks.
    """
    if not adapters:
        return settings
    from rekindle.formats.checkpoints.peft import config_of, rank_of

    ranks = {name: rank_of(config_of(source), str(source)) for name, source in adapters.items()}
    most, rank = max(DEFAULT_ADAPTERS, len(adapters)), max(DEFAULT_RANK, *ranks.values())
    most, rank = settings.max_adapters or most, settings.max_adapter_rank or rank
    if len(adapters) > most:
        raise ConfigError(f"max_adapters is {most}, and adapters has {len(adapters)}: raise it, or leave it out")
    if largest := next((name for name in adapters if ranks[name] > rank), None):
        raise ConfigError(
            f"max_adapter_rank is {rank}, and {largest!r} has rank {ranks[largest]}: raise it, or leave it out"
        )
    return replace(settings, max_adapters=most, max_adapter_rank=rank)


def _check_name(name: Any) -> None:
    if not checks.text("name", name, LONGEST_NAME):
        raise InvalidRequest("name must be a text of at least one character, such as 'sql'")
