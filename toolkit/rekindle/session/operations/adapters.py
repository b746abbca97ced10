"""Operations on the adapters of a session: adding and removing them while requests run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import jax

from rekindle.client.adapters import AdapterInfo
from rekindle.client.engine_client import OpenEngine
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

    def __init__(self, engine: OpenEngine):
        self._engine = engine
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
        self._engine.facts.check_programs("adapters", adapters=True)
        lora = yield from in_a_thread(self._reader(source, tensors, config), "adapter")
        slot = yield from self._reserve(name)
        try:
            yield from self._put(lora, slot)
        except BaseException:
            self._engine.client.adapters.cancel(name, slot)
            raise
        self._engine.client.adapters.put(name, slot, AdapterInfo(lora.source, lora.rank, lora.digest))

    def remove(self, name: str) -> None:
        """See `Session.remove_adapter`."""
        self._engine.client.adapters.remove(name)

    def _reader(
        self, source: AdapterSource | None, tensors: Mapping[str, Any] | None, config: Mapping[str, Any] | None
    ) -> "Callable[[], Lora]":
        """Return the function to read an adapter and check it against the model."""
        from rekindle.formats.checkpoints.peft import given_adapter, read_adapter

        model = self._engine.facts.model
        if source is None and isinstance(tensors, Mapping) and isinstance(config, Mapping):
            return lambda: self._engine.facts.check_adapter(given_adapter(tensors, config, model))
        if isinstance(source, str | PathLike) and tensors is None and config is None:
            return lambda: self._engine.facts.check_adapter(read_adapter(source, model))
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
            slot, freed = self._engine.client.adapters.reserve(name, self._engine.facts.limits.max_adapters)
            if slot is not None:
                return slot
            yield Wait(freed, timeout=1.0)  # the engine may end meanwhile
            self._engine.check()

    def _put(self, lora: "Lora", slot: int) -> Waits[None]:
        """Put an adapter into a slot on all devices; at the first one, make room for all and prepare the programs."""
        is_first = not self.bytes
        content, empty = yield from in_a_thread(
            lambda: self._engine.facts.place_adapter(lora, with_room=is_first), "adapter"
        )
        _, put = self._engine.ask(lambda ticket: PutAdapter(ticket, slot, content, empty))
        yield from unless(until_closed(put), lambda: self._engine.thread.overdue)
        self._engine.check()
        if is_first:
            self.bytes = self._engine.facts.limits.data * sum(array.nbytes for array in jax.tree.leaves(empty))
            self._engine.facts.prepare_adapter_programs()


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
