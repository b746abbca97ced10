"""A map under way: awaited as a whole, or followed as its answers come."""

import threading
from collections import deque
from collections.abc import Generator, Iterable, Sized
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from rekindle.client.batches.run import Errors, Outcome
from rekindle.client.prompts import GENERATE_DEFAULTS, EachPromptOptions, GenerateOptions, Messages
from rekindle.client.requests import Asker
from rekindle.core.concurrency import interrupts
from rekindle.core.concurrency.loops import Loop
from rekindle.core.concurrency.waits import Waits, awaited, blocked, in_a_thread
from rekindle.core.errors import BatchFailed, InvalidRequest, RequestCancelled, SessionError
from rekindle.core.keywords import spelled_out
from rekindle.core.markup import quantity
from rekindle.mapping.call import MapCall
from rekindle.mapping.in_flight import EndedItem, InFlight
from rekindle.mapping.items import checked
from rekindle.mapping.pace import MapPace
from rekindle.mapping.results import MapResults
from rekindle.notebook.batch_progress import LateBar
from rekindle.results.generation import Generation


class PendingMap(Loop[tuple[int, Outcome]]):
    """The answers to many items, from `session.map`: await it for all, or loop over it with `async for` or `for`.

    A loop gives each answer as it comes, with the place of its item, and holds no more than a window of them. Dropping
    or closing it, or leaving the await, cancels what runs.
    """

    def __init__(self, call: MapCall, items: Iterable[Any], *, progress: bool):
        super().__init__()
        self._lock = threading.RLock()  # another thread may close the map, and so may the garbage collector
        self._state = "not begun"
        self._call = call
        self._items = call.read(items)
        self._in_flight = InFlight(call.submit)
        self._pace = MapPace(self._in_flight, len(items) if isinstance(items, Sized) else None)
        self._bar = LateBar(self._pace.report, enabled=progress)
        self._ready: deque[EndedItem] = deque()

    def __await__(self) -> Generator[Any, None, MapResults]:
        return awaited(self._all()).__await__()

    def wait(self) -> MapResults:
        """Block until all items have ended, and return what came of them."""
        return blocked(self._all())

    def close(self) -> None:
        """Cancel what runs, and give nothing further. What has ended is written into the file.

        Any thread may call this, any number of times.
        """
        self._end("closed")

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rekindle.PendingMap, {self._state}: await it, or loop over it with 'async for' or 'for'>"

    if not TYPE_CHECKING:  # a type checker finds a forgotten await by itself

        def __getattr__(self, name: str) -> NoReturn:
            hint = ": nothing has come yet; answers = await session.map(...)" if hasattr(MapResults, name) else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def _next(self) -> Waits[tuple[int, Outcome] | None]:
        __tracebackhide__ = True  # a cell shows errors without such frames
        ended = yield from self._following()
        if ended is None:
            return None
        self._check(ended)
        return ended.item.place, ended.outcome

    def _all(self) -> Waits[MapResults]:
        """Wait for all items. What had ended is in `finished` of an interrupt, and in `results` of a failure.

        Raises:
            InvalidRequest: a wait or a loop has begun before.
            RequestCancelled: the map was closed meanwhile.
        """
        __tracebackhide__ = True
        if self._state != "not begun":
            raise InvalidRequest(f"this map is {self._state} already; call session.map() again")
        done: dict[int, EndedItem] = {}
        try:
            while (ended := (yield from self._following())) is not None:
                done[ended.item.place] = ended
                self._check(ended)
        except BatchFailed as failed:
            failed.results = self._so_far(done)
            raise
        except BaseException as left:
            so_far = self._so_far(done)
            answered = sum(isinstance(outcome, Generation) for outcome in so_far)
            words = f"interrupted after {quantity(answered, 'answer')}, which are in `finished` of this error"
            interrupts.tell(left, words, "finished", so_far)
            raise
        if self._state == "closed":
            raise RequestCancelled(f"the map was closed after {quantity(len(done), 'answer')}")
        return _results(done, self._in_flight)

    def _so_far(self, done: dict[int, EndedItem]) -> MapResults:
        with self._lock:
            return _results({**done, **{ended.item.place: ended for ended in self._ready}}, self._in_flight)

    def _following(self) -> Waits[EndedItem | None]:
        """Wait for the next end, and keep the window full; return None where there is no other."""
        __tracebackhide__ = True
        try:
            if self._state == "not begun":
                self._state = "under way"
                yield from in_a_thread(self._call.open, "map")
            while self._state != "closed":
                with self._lock:
                    self._land()
                    self._fill()
                    if not self._ready and not len(self._in_flight):
                        break
                    timeout = 0.0 if self._ready else self._bar.timeout
                yield self._in_flight.wait(
                    timeout
                )  # with answers at hand too, so that an interrupt is heard among them
                with self._lock:
                    self._bar.look()
                    if self._ready:
                        return self._ready.popleft()
            self._end("ended")
            return None
        except BaseException:
            self.close()
            raise

    def _end(self, state: str) -> None:
        """Leave nothing behind."""
        with self._lock:
            if self._state in ("closed", "ended"):
                return
            self._state = state
            try:
                self._land()
            finally:
                self._in_flight.cancel()
                if state == "ended":
                    self._pace.complete()
                self._bar.close()
                self._call.close()

    def _land(self) -> None:
        """Take what has ended, and write it down."""
        for ended in self._in_flight.landed():
            self._keep(ended)

    def _fill(self) -> None:
        """Read items until the window is full, or there are no others."""
        while len(self._in_flight) + len(self._ready) < self._call.window:
            item = next(self._items, None)
            if item is None or self._state == "closed":  # by what gives the items
                return
            if (stored := self._call.stored(item)) is not None:
                self._pace.count(stored=True)
                self._ready.append(EndedItem(item, stored))
            elif (ended := self._in_flight.enter(item)) is not None:
                self._keep(ended)

    def _keep(self, ended: EndedItem) -> None:
        self._pace.count(stored=False)
        self._ready.append(ended)
        if not isinstance(ended.outcome, SessionError):  # which says nothing of the item
            self._call.write(ended.item, ended.outcome)

    def _check(self, ended: EndedItem) -> None:
        """Raise an error that is to be raised, and end the map with it."""
        __tracebackhide__ = True
        outcome = ended.outcome
        if isinstance(outcome, SessionError):
            self.close()
            raise outcome.with_traceback(None)
        if self._call.errors == "raise" and isinstance(outcome, Exception):
            self.close()
            raise BatchFailed(
                f"item {ended.item.place} failed: {outcome}. Its error is the cause of this one, and what ran was "
                'cancelled. errors="return" goes on instead'
            ) from outcome


@spelled_out(GenerateOptions, GENERATE_DEFAULTS)
def map(  # noqa: A001
    session: Asker,
    items: Iterable[Any] | None = None,
    *,
    template: str | Messages | None = None,
    path: str | PathLike[str] | None = None,
    errors: Errors = "return",
    window: int | None = None,
    progress: bool | None = None,
    **ask: Unpack[EachPromptOptions],
) -> PendingMap:
    """Answer thousands of prompts: `await session.map(texts, ...)`, or `async for place, answer in` it.

    Items are read as they are needed, so a generator of any length will do, and a window of them is in the engine
    at once. Awaited, it returns the answers in order; in a loop, each comes as it ends, and is not kept.

    With a path, each answer is a line of that file as soon as it is taken. A later call with the same items and
    keywords goes on from there: what was answered is read, and what had failed is asked again. A kill costs the
    answers under way, and no more than the line that was being written.

    Args:
        items: texts, conversations, or mappings that fill the template.
        template: a text or a list of messages with fields as `str.format` has them, such as "Translate: {text}". A
            mapping has the fields by name, and a text is the field `text`. Braces that are no field are doubled.
        path: of a file of JSON lines; one that does not exist is made.
        errors: "return" puts each error in the place of its item, and goes on; "raise" raises the first error, and
            cancels what runs.
        window: the most requests in the engine at once; the default is twice `max_running`.
        progress: draw a bar if it takes longer than a second: how many answers there are, tokens per second, and
            the time that is left if the number of items is known. The default is what `open` was told.
        token_ids: prompts of token ids instead of items.
        Others: as in `generate`.

    Returns:
        A `PendingMap`. Awaited, it gives `rekindle.MapResults`, a list that a cell shows as a table; its `to_frame`
        is a data frame. Leaving the wait or the loop cancels what runs; what had ended is in the file, and in
        `finished` of an interrupt of the await.

    Raises:
        InvalidRequest: a keyword that cannot be served; when it begins, the file has answers that were made with
            other keywords or to other items, and nothing of it was changed; or another map writes it.
        InvalidData: when it begins, something else is in the file, and nothing of it was changed.
        BatchFailed: one failed, and errors are raised; what had ended is in its `results` if it was awaited.
        SessionError: the session is closed or its engine failed.
        OSError: the file cannot be read or written.
    """
    given = checked(items, ask.get("token_ids"))
    call = MapCall.of(session._requests, ask, template, path, errors, window)
    return PendingMap(call, given, progress=session._requests.draws(progress))


def _results(done: dict[int, EndedItem], in_flight: InFlight) -> MapResults:
    """Return what came of the items by place; None for each that had been begun and had not ended."""
    items = {item.place: item for item in in_flight.unfinished} | {place: each.item for place, each in done.items()}
    places = sorted(items)
    outcomes = [done[place].outcome if place in done else None for place in places]
    return MapResults(outcomes, [items[place].asked for place in places], [items[place].given for place in places])
