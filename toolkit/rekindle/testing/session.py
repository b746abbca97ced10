"""A whole session on the fake device."""

from collections.abc import Callable, Collection
from typing import Unpack

from rekindle.concurrency.threads import soon
from rekindle.config import Settings, SettingsOptions
from rekindle.engine.actors.detokenizer import Detokenizer
from rekindle.engine.actors.intake import Intake
from rekindle.engine.engine import Actors
from rekindle.engine.host import Host
from rekindle.engine.machine import Machine
from rekindle.models.text.tokenizer import Tokenizer
from rekindle.scheduler.limits import Limits
from rekindle.scheduler.stats import Stats
from rekindle.session.callers import Callers
from rekindle.session.session import Session
from rekindle.store.restored import Restored
from rekindle.testing.by_hand import CheckedScheduler, fake_limits
from rekindle.testing.device import FakeDiskTier, FakeHostTier, FakeSettler, FakeStepper
from rekindle.testing.model import FAKE_MODEL, VOCAB_SIZE


def fake_machine(
    limits: Limits,
    *,
    tokenizer: Tokenizer | None = None,
    eos_ids: Collection[int] = (),
    settler: FakeSettler | None = None,
    free: Callable[[], None] = lambda: None,
) -> Machine:
    """A machine around the fake device, built at once; `free` is called when it would free the real one."""
    scheduler, disk_tier = CheckedScheduler(limits), FakeDiskTier()
    actors = Actors(
        intake=Intake(tokenizer, VOCAB_SIZE, frozenset(eos_ids), limits.max_context),
        scheduler=scheduler,
        stepper=FakeStepper(limits),
        settler=settler or FakeSettler(),
        detokenizer=Detokenizer(tokenizer),
        host_tier=FakeHostTier(limits.host_pages, disk_tier),
        disk_tier=disk_tier,
    )
    return Machine(
        source="fake",
        model=FAKE_MODEL,
        limits=limits,
        dtype="int",
        actors=actors,
        tokenizer=tokenizer,
        defaults={},
        unserved=(),
        free=free,
        load=lambda weights: [],
        look=scheduler.look,
        stats=lambda: Stats(scheduler.stats, programs=0, loads=0, compilations=0, unexpected_compilations=0),
        preparing=(),
        stored=lambda: soon(lambda: None, "stored"),
        restored=lambda: Restored(0, 0, 0, 0, 0.0, {}),
    )


def fake_session(machine: Machine | None = None, **settings: Unpack[SettingsOptions]) -> Session:
    """A session on a machine of `fake_machine`, by default one with these settings; it serves when this returns."""
    parsed = Settings(**settings)
    made = machine or fake_machine(fake_limits(**settings))
    callers = Callers(parsed.max_waiting)
    host = Host(lambda report: made, callers.deliver, callers.fail_all)
    host.opening.grown_blocking(0)
    return Session(host, made, callers)
