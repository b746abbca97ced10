"""Session on the fake device."""

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NoReturn, Unpack, cast

import jax
import numpy as np

from rekindle.assembly.deployment import Deployment
from rekindle.assembly.limits.resolution import resolve_settings
from rekindle.assembly.loaded_engine import Lane, LoadedEngine
from rekindle.assembly.loading.identity import PARTS, Identity, Part, model_contents
from rekindle.assembly.preparing.preparer import TOKENIZED_AT_ONCE, Preparer
from rekindle.assembly.programs.engine_programs import EnginePrograms
from rekindle.assembly.programs.restore_report import RestoreReport
from rekindle.assembly.replicas import ReadWeights
from rekindle.assembly.thread import EngineThread
from rekindle.client.engine_client import EngineClient, OpenEngine
from rekindle.core.content import content_digest
from rekindle.core.device.place import Place
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.lowering import Programs
from rekindle.core.engine.actors.detokenizer import Detokenizer
from rekindle.core.engine.actors.grammars import Grammars, jumps_on
from rekindle.core.engine.actors.intake import Intake
from rekindle.core.engine.actors.tokenizing import Tokenizing
from rekindle.core.engine.actors.vision import Vision
from rekindle.core.engine.wiring import Actors
from rekindle.core.errors import InvalidRequest
from rekindle.core.models.weights.form import WeightForm
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.text.masks import SerialMasks
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.weights import Weights
from rekindle.formats.lora import Lora
from rekindle.formats.responses.reading.turns import AnswerTurns
from rekindle.session.session import Session
from rekindle.settings.engine import Settings, SettingsOptions
from rekindle.testing.by_hand import CheckedScheduler, fake_limits
from rekindle.testing.device import FakeSettler, FakeStepper
from rekindle.testing.model import FAKE_MODEL
from rekindle.testing.tiers import FakeDiskTier, FakeHostTier


class _FakeLoadedEngine(LoadedEngine):
    def load(self, weights: Weights, *, shares: bool = False) -> ReadWeights:
        """Return empty weights, since the fake device has none, with the digest of the given ones."""
        return ReadWeights([[] for _ in self.lanes] if len(self.lanes) > 1 else [], content_digest(weights))

    def reload(self, weights: Weights | None, *, shares: bool = False) -> ReadWeights:
        """Return empty weights."""
        new = self.load(weights or {})
        return new if weights is not None else replace(new, digest=self.weights_digest)

    def check_adapter(self, lora: Lora) -> Lora:
        """Accept any adapter."""
        return lora

    def place_adapter(self, lora: Lora, *, with_room: bool) -> tuple[Any, Any]:
        """Return the digest in place of arrays."""
        content = [lora.digest for _ in self.lanes] if len(self.lanes) > 1 else lora.digest
        return content, None

    def capturing(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse all captures, since the fake device has no activations."""
        raise InvalidRequest("capture needs activations, and the fake device has none")

    def prepare_steering(self) -> None:
        """Do nothing, since the fake device runs no programs."""

    def prepare_adapter_programs(self) -> None:
        """Do nothing, since the fake device runs no programs."""


def fake_loaded_engine(
    limits: EngineLimits,
    *,
    tokenizer: Tokenizer | None = None,
    eos_ids: Collection[int] = (),
    settler: FakeSettler | None = None,
    free: Callable[[], None] = lambda: None,
) -> LoadedEngine:
    """Return a loaded engine around the fake device; `free` is called instead of freeing a real device.

    All lanes share `settler`, if present.
    """
    checkpoint = Checkpoint("fake", FAKE_MODEL, {}, frozenset(eos_ids), tokenizer, {}, ())
    preparer = Preparer.of(checkpoint, limits.max_context, limits.picture_rows)
    # The fake device runs no programs.
    executables = Executables(cast(Programs, None), 0)
    lanes = tuple(_fake_lane(limits, preparer, settler, executables) for _ in range(limits.lanes))
    places = [lane.place for lane in lanes if lane.place is not None]
    resources = ExitStack()
    resources.callback(free)
    return _FakeLoadedEngine(
        checkpoint=checkpoint,
        family=None,
        settings=replace(resolve_settings(Settings(), limits), device="cpu:0"),
        limits=limits,
        deployment=Deployment("int", WeightForm(np.dtype(np.float32)), "xla", 0).over(places),
        defaults={"processor_args": ()} if limits.processes_logits else {},
        unserved=(),
        preparer=preparer,
        lanes=lanes,
        programs=EnginePrograms((executables,), [], RestoreReport(0, 0, 0, 0, 0, 0.0, 0.0, {}), 0),
        resources=resources,
        identity=_fake_identity(checkpoint, limits),
    )


def _fake_identity(checkpoint: Checkpoint, limits: EngineLimits) -> Identity:
    parts: dict[Part, str] = {part: f"fake {part}" for part in PARTS}
    return Identity({**parts, **model_contents(checkpoint), "context": str(limits.max_context)})


def _fake_lane(limits: EngineLimits, preparer: Preparer, settler: FakeSettler | None, executables: Executables) -> Lane:
    scheduler, disk_tier = CheckedScheduler(limits), FakeDiskTier()
    actors = Actors(
        intake=Intake(preparer, TOKENIZED_AT_ONCE),
        tokenizer=Tokenizing(preparer, TOKENIZED_AT_ONCE),
        scheduler=scheduler,
        stepper=FakeStepper(limits),
        settler=settler or FakeSettler(),
        detokenizer=Detokenizer(preparer.tokenizer, AnswerTurns.of(preparer.tokenizer)),
        grammars=Grammars(jumps_on("cpu", limits), SerialMasks()),
        vision=Vision(),
        host_tier=FakeHostTier(limits.data * limits.pool.host_pages, disk_tier, limits.pool.state_pages),
        disk_tier=disk_tier,
    )
    return Lane(scheduler, actors, Place((jax.devices("cpu")[0],)), executables)


def fake_session(
    loaded_engine: LoadedEngine | None = None, *, progress: bool = False, **settings: Unpack[SettingsOptions]
) -> Session:
    """Return a session on a `fake_loaded_engine`, by default with these settings.

    Args:
        loaded_engine: the engine; None makes one.
        progress: whether calls draw their progress by default.
        **settings: as in `open`.
    """
    session_settings = Settings(**cast(dict[str, Any], settings))
    backend = loaded_engine or fake_loaded_engine(fake_limits(**settings))
    if loaded_engine is None:
        backend = replace(
            backend,
            settings=replace(
                backend.settings, route=session_settings.route, prefill_from=session_settings.prefill_from
            ),
            deployment=replace(backend.deployment, apart=session_settings.prefill is not None),
        )
    client = EngineClient(session_settings.max_waiting)
    thread = EngineThread(lambda report: backend, client.deliver, client.fail_all)
    thread.opening.wait_blocking(0)
    return Session(OpenEngine(thread, backend, client), progress=progress)
