"""A follower opens the session of its leader, runs its orders, and reports its failures."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.devices import places_over
from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.core.buckets import Bucket
from rekindle.core.device.orders import DeviceState, Order, StateOrder, TickOrder, Use
from rekindle.core.device.programs.executables import Executables
from rekindle.core.device.programs.functions import ALLOW, ENTER, GATHER, SCATTER, Key
from rekindle.core.device.state import Slots
from rekindle.core.engine.actors.stepper import Stepper
from rekindle.core.errors import EngineFailed, HostLost, HostRefused
from rekindle.core.messages import Gathered, Offload
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.hosts import following
from rekindle.hosts.address import Address
from rekindle.hosts.agreement import differences
from rekindle.hosts.link import Link
from rekindle.hosts.opening import ModelShard, model_request, weights_request
from rekindle.hosts.wire import frame_of, order_of
from rekindle.settings.engine import Settings
from rekindle.testing import fake_limits
from tests.engine.small import FEW_PAGES


@pytest.mark.parametrize(
    "order",
    [
        TickOrder(Bucket(16, 4), np.arange(9, dtype=np.int32)),
        StateOrder(ENTER, 3, np.arange(5, dtype=np.int32)),
        StateOrder(ALLOW, np.arange(3, dtype=np.int32), np.arange(6, dtype=np.int32).reshape(3, 2)),
        StateOrder(GATHER, 7),
        Use(4),
        StateOrder(SCATTER, 3, np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
        StateOrder(SCATTER, 2, jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)),
    ],
)
def test_an_order_is_the_same_on_the_other_side(order: Order | Use) -> None:
    came = order_of(frame_of(order))
    assert type(came) is type(order)
    assert getattr(came, "key", None) == getattr(order, "key", None)
    for name in type(order).__dataclass_fields__:
        mine, theirs = np.asarray(getattr(order, name)), np.asarray(getattr(came, name))
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype or mine.ndim == 0


@pytest.fixture(scope="module")
def request_of(families: Path) -> dict[str, Any]:
    """Return the opening request of a leader on one device to its followers."""
    model, settings = families / "llama-tied", Settings(**cast(dict[str, Any], FEW_PAGES))
    blueprint = Blueprint.of(open_checkpoint(model), settings, places_over(None, Settings(tensor=1))[0])
    return model_request(model, None, blueprint.resolve(settings), blueprint)


def run(share: ModelShard, order: Order) -> Any:
    return share.state.take(order, share.executables.run(order.key, *share.state.arguments(order)))


def test_a_follower_opens_what_it_is_asked_for(request_of: dict[str, Any]) -> None:
    share = ModelShard.open(request_of, None)
    with share.resources:
        empty = run(share, StateOrder(GATHER, 1))
        content = np.arange(empty.size, dtype=empty.dtype).reshape(empty.shape)
        run(share, StateOrder(SCATTER, 2, content))
        np.testing.assert_array_equal(run(share, StateOrder(GATHER, 2)), content)
    assert all(array.is_deleted() for array in share.state.weights)


def test_a_follower_refuses_another_model(request_of: dict[str, Any], families: Path) -> None:
    with pytest.raises(HostRefused, match=r"has another model.* differently: weights"):
        ModelShard.open(request_of, str(families / "llama-bias"))
    other = {**request_of, "facts": {**request_of["facts"], "jax_config": "another"}}
    with pytest.raises(HostRefused, match=r"computes it differently.*jax_config"):
        ModelShard.open(other, None)
    assert not differences(request_of["facts"], request_of["facts"])


def obeyed(monkeypatch: pytest.MonkeyPatch, link: Link, model: str | None = None) -> list[str]:
    """Follow the leader at the other end of a link to its end, and return the lines in the terminal."""
    lines: list[str] = []
    monkeypatch.setattr(following, "END_SECONDS", 0)
    frames = following._frames(link, Address("leader", 1), lambda *_: None)
    following._serve(frames, link, model, lines.append)
    return lines


def test_a_follower_serves_one_session_after_the_other(
    monkeypatch: pytest.MonkeyPatch, links: tuple[list[Link], list[Link]], request_of: dict[str, Any]
) -> None:
    leader, follower = links[0][0], links[1][0]
    content = np.zeros((3, 2, 2, 16, 16), np.float32)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(obeyed, monkeypatch, follower)
        for session in (1, 2):
            leader.send({"say": "open", "session": session, **request_of})
            assert leader.receive().header == {"say": "ready", "session": session, "load": 0}
            leader.send(*frame_of(StateOrder(SCATTER, 2, content)))
            leader.send({"say": "load", "session": session, "load": 1, **weights_request(request_of["model"])})
            assert leader.receive().header == {"say": "ready", "session": session, "load": 1}
            leader.send(*frame_of(Use(1)))
            leader.send({"say": "close"})
        leader.send({"say": "open", "session": 3, **request_of, "facts": {}})
        answer = leader.receive().header
        assert (answer["say"], answer["session"]) == ("refused", 3)
        assert "another model" in answer["why"]
        leader.send({"say": "close"})
        leader.send({"say": "end"})
        lines = future.result()
    assert [line.partition(" after ")[2][:8] for line in lines if "is closed" in line] == ["2 orders"] * 2
    assert lines[-1] == "the leader has ended"


def test_a_follower_that_cannot_go_on_says_so_to_its_leader(
    monkeypatch: pytest.MonkeyPatch, links: tuple[list[Link], list[Link]], request_of: dict[str, Any]
) -> None:
    leader, follower = links[0][0], links[1][0]
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(obeyed, monkeypatch, follower)
        leader.send({"say": "open", "session": 1, **request_of})
        assert leader.receive().header["say"] == "ready"
        leader.send({"say": "over", "why": "another follower is lost"})
        with pytest.raises(HostLost, match="another follower is lost"):
            future.result()


class Failing:
    """A stand-in for `Executables` without room for programs."""

    async def ready(self, key: Key) -> Any:
        return None

    def run(self, key: Key, *arguments: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")


@pytest.mark.anyio
async def test_an_order_that_fails_after_others_were_told_of_it_ends_the_session() -> None:
    orders: list[Order | Use] = []
    programs, state = cast(Executables, Failing()), DeviceState([], (), cast(Slots, None))
    alone = Stepper(programs, state, fake_limits())
    assert await alone.handle(Offload(1, (2,), (3,))) == [Gathered(1, (3,), ())]
    leading = Stepper(programs, state, fake_limits(), send=orders.append)
    with pytest.raises(EngineFailed, match="failed in this process and not in its followers"):
        await leading.handle(Offload(1, (2,), (3,)))
    assert orders == [StateOrder(GATHER, 2)]
