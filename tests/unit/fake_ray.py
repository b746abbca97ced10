"""A stand-in for the module ray: actors are objects of this process, each on a loop of its own, and can be killed."""

import asyncio
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

from rekindle.core.errors import EngineFailed

RESTART_SECONDS = 0.05


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class ActorUnavailableError(RayActorError):
    pass


class ActorDiedError(RayActorError):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: BaseException):
        super().__init__(str(cause))
        self.cause = cause


class Ref:
    """A future answer, for a blocking thread or a task of any loop."""

    def __init__(self) -> None:
        self._future: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self._future

    def __await__(self) -> Any:
        return asyncio.wrap_future(self._future).__await__()


class Stream:
    """The items of a method's iterator."""

    def __init__(self) -> None:
        self._items: list[Ref] = [Ref()]
        self._position = 0

    def put(self, item: Any) -> None:
        self._items.append(Ref())
        self._items[-2].future().set_result(item)

    def fail(self, error: BaseException) -> None:
        if not self._items[-1].future().done():
            self._items[-1].future().set_exception(error)

    async def __aiter__(self) -> AsyncIterator[Ref]:
        while True:
            ref = self._items[self._position]
            self._position += 1
            try:
                await asyncio.shield(asyncio.wrap_future(ref.future()))
            except StopAsyncIteration:
                return
            except RayError:
                yield ref
                return
            yield ref


class Method:
    """A method of an actor."""

    def __init__(self, actor: "Actor", name: str):
        self._actor, self._name = actor, name

    def options(self, **options: Any) -> "Method":
        return self

    def remote(self, *arguments: Any) -> Any:
        return self._actor.call(self._name, arguments)


class Life:
    """One process of an actor."""

    def __init__(self, kind: type, arguments: tuple[Any, ...]):
        self.open: list[Ref | Stream] = []
        self._began = threading.Event()
        threading.Thread(target=asyncio.run, args=(self._run(),), daemon=True).start()
        self._began.wait()
        self.instance = kind(*arguments)

    @property
    def failed(self) -> bool:
        return isinstance(self.instance._engine.error, EngineFailed)

    async def _run(self) -> None:
        self.loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._began.set()
        await self._ended.wait()  # what is left is cancelled then

    def end(self, error: BaseException) -> None:
        self.loop.call_soon_threadsafe(self._ended.set)
        self.instance._engine.stop()  # a process would be gone; nothing that it says is heard any more
        for each in self.open:
            if isinstance(each, Stream):
                each.fail(error)
            elif not each.future().done():
                each.future().set_exception(error)


class Actor:
    """A remote object with a loop of its own, made anew after a kill."""

    def __init__(self, kind: type, arguments: tuple[Any, ...]):
        self._kind, self._arguments = kind, pickle.dumps(arguments)
        self._died: type[RayActorError] | None = None
        self._lock = threading.RLock()
        self.deaths = 0
        self._begin()

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)

    def _begin(self) -> None:
        with self._lock:
            if self._died is not ActorDiedError:
                self._life = Life(self._kind, pickle.loads(self._arguments))
                self._died = None

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        with self._lock:
            answer: Any = Stream() if name == "outbox" else Ref()
            if self._died is not None:
                error = self._died("the actor is not there")
                answer.fail(error) if isinstance(answer, Stream) else answer.future().set_exception(error)
                return answer
            if name != "look":  # functions take Ray's own pickle
                arguments = pickle.loads(pickle.dumps(arguments))
            life = self._life
            life.open.append(answer)
            method = getattr(life.instance, name)
            work = method(*arguments)
            streamed = isinstance(answer, Stream)
            coroutine = self._streamed(life, work, answer) if streamed else self._answered(life, work, answer)
            asyncio.run_coroutine_threadsafe(coroutine, life.loop)
            return answer

    def kill(self, *, restart: bool) -> None:
        with self._lock:
            if self._died is not None:
                return
            self.deaths += 1
            self._died = ActorUnavailableError if restart else ActorDiedError
            self._life.end(self._died("the actor was killed"))
        if restart:
            threading.Timer(RESTART_SECONDS, self._begin).start()

    async def _answered(self, life: Life, work: Coroutine[Any, Any, Any], ref: Ref) -> None:
        try:
            result = pickle.loads(pickle.dumps(await work))
        except Exception as error:
            self._settle(life, partial(ref.future().set_exception, RayTaskError(error)))
        else:
            self._settle(life, partial(ref.future().set_result, result))

    async def _streamed(self, life: Life, items: AsyncIterator[Any], stream: Stream) -> None:
        try:
            async for item in items:
                self._settle(life, partial(stream.put, pickle.loads(pickle.dumps(item))))
            self._settle(life, partial(stream.fail, StopAsyncIteration()))
        except Exception as error:
            self._settle(life, partial(stream.fail, RayTaskError(error)))

    def _settle(self, life: Life, settle: Callable[[], None]) -> None:
        with self._lock:
            if self._life is life and self._died is None:
                settle()


class FakeRay:
    """The functions of ray in use by Rekindle.

    Attributes:
        actors: the started actors, by name.
    """

    exceptions = SimpleNamespace(
        RayError=RayError, RayActorError=RayActorError, RayTaskError=RayTaskError, ActorDiedError=ActorDiedError
    )

    def __init__(self) -> None:
        self.actors: dict[str, Actor] = {}
        self.options: dict[str, dict[str, Any]] = {}
        self.util = SimpleNamespace(list_named_actors=self._list_actors)

    def is_initialized(self) -> bool:
        return True

    def remote(self, kind: type) -> Any:
        def options(**options: Any) -> Any:
            def start(*arguments: Any) -> Actor:
                actor = self.actors[options["name"]] = Actor(kind, arguments)
                self.options[options["name"]] = options
                return actor

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def get_actor(self, name: str, namespace: str) -> Actor:
        if name not in self.actors:
            raise ValueError(name)
        return self.actors[name]

    def kill(self, actor: Actor, *, no_restart: bool) -> None:
        actor.kill(restart=not no_restart)
        if no_restart:
            self.actors = {name: each for name, each in self.actors.items() if each is not actor}

    def restart_failed(self) -> None:
        """Kill the actors whose engines have failed, as their processes end themselves."""
        for actor in list(self.actors.values()):
            if actor._died is None and actor._life.failed:
                actor.kill(restart=True)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0, "GPU": 1.0, "memory": 1e9, "rack": 1.0}

    def put(self, value: Any) -> Any:
        return value

    def wait(self, refs: Sequence[Ref], num_returns: int, timeout: float) -> tuple[list[Ref], list[Ref]]:
        until = time.monotonic() + timeout
        while not all(ref.future().done() for ref in refs) and time.monotonic() < until:
            time.sleep(0.001)
        return [ref for ref in refs if ref.future().done()], [ref for ref in refs if not ref.future().done()]

    def get(self, refs: Sequence[Ref]) -> list[Any]:
        return [ref.future().result() for ref in refs]

    def _list_actors(self, *, all_namespaces: bool) -> list[dict[str, str]]:
        return [{"name": name, "namespace": "rekindle"} for name in self.actors]
