"""Maps: `session.map` and its result, awaited for all answers or iterated in order of completion."""

import threading
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence, Sized
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Unpack, overload

from rekindle.client.batches.run import Errors
from rekindle.client.calls.options import GENERATE_DEFAULTS, EachPromptOptions, GenerateOptions, Messages
from rekindle.client.concurrency.loops import Loop
from rekindle.client.requests import HasRequests
from rekindle.core.concurrency import interrupts
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Waits, awaited, blocked, in_a_thread
from rekindle.core.errors import BatchFailed, InvalidRequest, RequestCancelled, SessionError, warn
from rekindle.core.keywords import spelled_out
from rekindle.core.words import quantity
from rekindle.mapping.call import MapCall
from rekindle.mapping.in_flight import EndedItem, InFlight
from rekindle.mapping.items import check_items
from rekindle.mapping.results import MapResults, Result
from rekindle.notebook.progress.batch_progress import BatchProgress, LateBar
from rekindle.results.generation import Generation
from rekindle.results.scores.decision import Decisions
from rekindle.results.scores.questions import Question


class MapPace:
    """Counts of a map's finished items, and their progress report.

    Args:
        in_flight: the requests of the map.
        total: the number of items; None if unknown.
    """

    def __init__(self, in_flight: InFlight, total: int | None):
        self._in_flight, self._total = in_flight, total
        self._pace = BatchProgress("mapping")
        self._done = self._stored = 0

    def count(self, *, stored: bool) -> None:
        """Count a finished item; `stored` if its answer came from the file of an earlier call."""
        self._done += 1
        self._stored += stored

    def complete(self) -> None:
        """Set the total to the number of finished items, after the last item."""
        self._total = self._done

    def report(self) -> Progress:
        """Return the finished items, the current token rate, and the remaining time."""
        remaining = ""
        if self._total is not None:
            remaining = self._pace.remaining(self._total - self._done, self._done - self._stored)
        return self._pace.report(self._done, self._total, self._in_flight.tokens, remaining)


Questions = Question | Sequence[Question] | Mapping[str, Question]
"""Questions of a map: one, several, or several by the names of their columns."""


class PendingMap(Loop[tuple[int, Result | Exception]], Generic[Result]):
    """Answers to many items, from `session.map`: await it for all, or loop over it with `async for` or `for`.

    A loop yields (index of the item, outcome) in order of completion, and holds at most one window of answers. Dropping
    or closing the map, or leaving the wait early, cancels the running requests.
    """

    def __init__(self, call: MapCall, items: Iterable[Any], *, progress: bool):
        super().__init__()
        self._lock = threading.RLock()  # another thread or the garbage collector may close the map
        self._state = "not begun"
        self._call = call
        self._items = call.read(items)
        self._in_flight = InFlight(call.submit)
        self._pace = MapPace(self._in_flight, len(items) if isinstance(items, Sized) else None)
        self._bar = LateBar(self._pace.report, enabled=progress)
        self._ready: deque[EndedItem] = deque()

    def __await__(self) -> Generator[Any, None, MapResults[Result]]:
        return awaited(self._all()).__await__()

    def wait(self) -> MapResults[Result]:
        """Block until all items have ended, and return their outcomes. Raises the errors of an await."""
        return blocked(self._all())

    def close(self) -> None:
        """Cancel the running requests, and stop the iteration. Thread-safe and idempotent.

        Finished answers are written to the file first.
        """
        self._end("closed")

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rekindle.PendingMap, {self._state}: await it, or loop over it with 'async for' or 'for'>"

    if not TYPE_CHECKING:  # type checkers report a forgotten await by themselves

        def __getattr__(self, name: str) -> NoReturn:
            hint = ": nothing has come yet; answers = await session.map(...)" if hasattr(MapResults, name) else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def _next(self) -> Waits[tuple[int, Result | Exception] | None]:
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        ended = yield from self._next_ended()
        if ended is None:
            return None
        self._check(ended)
        return ended.item.place, ended.outcome

    def _all(self) -> Waits[MapResults[Result]]:
        """Wait for all items. The outcomes so far are in `finished` of an interrupt, and in `results` of BatchFailed.

        Raises:
            InvalidRequest: the map was awaited or iterated before.
            RequestCancelled: the map was closed meanwhile.
        """
        __tracebackhide__ = True
        if self._state != "not begun":
            raise InvalidRequest(f"this map is {self._state} already; call session.map() again")
        done: dict[int, EndedItem] = {}
        try:
            while (ended := (yield from self._next_ended())) is not None:
                done[ended.item.place] = ended
                self._check(ended)
        except BatchFailed as error:
            error.results = self._so_far(done)
            raise
        except BaseException as error:
            so_far = self._so_far(done)
            answered = sum(outcome is not None and not isinstance(outcome, Exception) for outcome in so_far)
            words = f"interrupted after {quantity(answered, 'answer')}, which are in `finished` of this error"
            interrupts.tell(error, words, "finished", so_far)
            raise
        if self._state == "closed":
            raise RequestCancelled(f"the map was closed after {quantity(len(done), 'answer')}")
        results = self._results(done)
        if len(results) > 1 and all(isinstance(outcome, Exception) for outcome in results):
            first = f"{type(results[0]).__name__}: {results[0]}"
            warn(f"each of {quantity(len(results), 'item')} failed; the first: {first}", RuntimeWarning)
        return results

    def _so_far(self, done: dict[int, EndedItem]) -> MapResults[Result]:
        with self._lock:
            return self._results({**done, **{ended.item.place: ended for ended in self._ready}})

    def _results(self, done: dict[int, EndedItem]) -> MapResults[Result]:
        """Return the outcomes ordered by item; None for each unfinished item."""
        ended = {place: each.item for place, each in done.items()}
        items = {item.place: item for item in self._in_flight.unfinished} | ended
        places = sorted(items)
        outcomes = [done[place].outcome if place in done else None for place in places]
        labels, values = [items[place].label for place in places], [items[place].value for place in places]
        results: MapResults[Result] = self._call.task.results(outcomes, labels, values)
        return results

    def _next_ended(self) -> Waits[EndedItem | None]:
        """Wait for the next outcome, keeping the window full; return None after the last."""
        __tracebackhide__ = True
        try:
            if self._state == "not begun":
                self._state = "under way"
                yield from in_a_thread(self._call.open, "map")
            while self._state != "closed":
                with self._lock:
                    for ended in self._in_flight.take_ended():
                        self._record(ended)
                    has_room = self._fill()
                    if not self._ready and not len(self._in_flight):
                        break
                    timeout = 0.0 if self._ready or has_room else self._bar.timeout
                # Also waits (without timeout) if answers are ready, so that an interrupt is noticed between answers.
                yield self._in_flight.wait(timeout)
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
        """End the map: collect ended requests, cancel the others, and close the bar and the file."""
        with self._lock:
            if self._state in ("closed", "ended"):
                return
            self._state = state
            try:
                for ended in self._in_flight.take_last():
                    self._record(ended)
            finally:
                self._in_flight.cancel()
                if state == "ended":
                    self._pace.complete()
                self._bar.close()
                self._call.close()

    def _fill(self) -> bool:
        """Read and submit items until the window is full or no items remain; return True if it stopped before."""
        entered = 0
        while len(self._in_flight) + len(self._ready) < self._call.window:
            item = next(self._items, None)
            if item is None or self._state == "closed":  # the iterator of the items may have closed the map
                return False
            if (stored := self._call.stored_answer(item)) is not None:
                self._pace.count(stored=True)
                self._ready.append(EndedItem(item, stored))
            elif (ended := self._in_flight.enter(item)) is not None:
                self._record(ended)
            entered += 1
            if entered == self._call.task.at_once:
                return True
        return False

    def _record(self, ended: EndedItem) -> None:
        """Record an outcome for the caller and in the file."""
        self._pace.count(stored=False)
        self._ready.append(ended)
        if not isinstance(ended.outcome, SessionError):  # an error of the session is not an outcome of the item
            self._call.write(ended)

    def _check(self, ended: EndedItem) -> None:
        """Close the map and raise the error of an outcome, if the map raises errors or the session has ended."""
        __tracebackhide__ = True
        outcome = ended.outcome
        if isinstance(outcome, SessionError):
            self.close()
            raise outcome.with_traceback(None)
        if self._call.errors == "raise" and isinstance(outcome, Exception):
            self.close()
            raise BatchFailed(
                f"item {ended.item.place} failed: {outcome}. Its error is the cause of this error, and the running "
                'requests were cancelled. errors="return" returns errors in place and continues'
            ) from outcome


@overload
def map(  # noqa: A001
    session: HasRequests,
    items: Iterable[Any] | None = None,
    *,
    template: str | Messages | None = None,
    questions: None = None,
    path: str | PathLike[str] | None = None,
    errors: Errors = "return",
    window: int | None = None,
    progress: bool | None = None,
    **options: Unpack[EachPromptOptions],
) -> PendingMap[Generation]: ...
@overload
def map(  # noqa: A001
    session: HasRequests,
    items: Iterable[Any],
    *,
    template: str | Messages | None = None,
    questions: Questions,
    path: str | PathLike[str] | None = None,
    errors: Errors = "return",
    window: int | None = None,
    progress: bool | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    cache_salt: str = "",
    adapter: str | None = None,
) -> PendingMap[Decisions]: ...
@spelled_out(GenerateOptions, GENERATE_DEFAULTS)
def map(  # noqa: A001
    session: HasRequests,
    items: Iterable[Any] | None = None,
    *,
    template: str | Messages | None = None,
    questions: Questions | None = None,
    path: str | PathLike[str] | None = None,
    errors: Errors = "return",
    window: int | None = None,
    progress: bool | None = None,
    **options: Unpack[EachPromptOptions],
) -> PendingMap[Any]:
    """Answer thousands of prompts: `await session.map(texts, ...)`, or a loop in order of completion.

    An await returns all answers in the order of the items. A loop, `async for index, answer in session.map(texts)`,
    yields each answer as it ends, and does not keep it. Items are read on demand, so `items` may be a generator. The
    map starts when it is awaited or iterated, and waits for room in the waiting queue.

    With `path`, each finished answer is appended to the file, before a loop yields it. A later call with the same items
    and options continues: it reads finished answers and repeats failed items. A crash of the process loses only answers
    not yet appended.

    With `questions`, each item is a state, and the results are its `rekindle.Decisions` in place of text, as of
    `decide`: `await session.map(texts, questions={"topic": rekindle.Choice(...)})`.

    Leaving the wait or the loop early cancels the running requests. Finished answers are in the file, and after an
    interrupt of the await also in the attribute `finished` of the error.

    Args:
        items: texts, conversations, or mappings for the template; the rows of a data frame are mappings.
        template: a text or a list of messages with fields in the syntax of `str.format`, such as "Translate: {text}". A
            mapping provides the fields by name, and a str provides the field `text`. Double all other braces.
        questions: a `rekindle.Choice`, `rekindle.YesNo` or `rekindle.Score`, a list of them, or a mapping of column
            names to them. An item is then a text, a conversation or other JSON. Of the options of `generate`, only
            `chat_template_kwargs`, `cache_salt` and `adapter` apply.
        path: the path of a file of JSON lines, created if it does not exist.
        errors: "return" puts each error in the place of its item and continues; "raise" raises the first error and
            cancels the running requests.
        window: the maximum number of requests in flight plus answers not yet taken by a loop. The default is twice the
            number of requests that the session runs at once.
        progress: whether to draw a progress bar for a map that takes longer than a second. The bar shows finished
            answers, tokens per second and, if the number of items is known, the remaining time. The default is the
            `progress` of `open`.
        token_ids: prompts as token ids, in place of items.
        Others: as in `generate`.

    Returns:
        A `PendingMap`. Its await returns `rekindle.MapResults`, a list displayed as a table, with `to_frame` for a data
        frame; with `questions`, `rekindle.MapDecisions` with an answer and a confidence for each question.

    Raises:
        InvalidRequest: an option is invalid. Raised by the await or the loop: none of the first 8 items fits the
            template; or the file has answers to other items or with other options, or another map is writing it. The
            file is then unchanged.
        InvalidData: the file has other content; it is unchanged (raised by the await or the loop, as all following
            errors).
        BatchFailed: an item failed, and `errors` is "raise"; after an await, `results` has the finished answers.
        SessionError: the session is closed or its engine failed.
        OSError: the file cannot be read or written.

    Warns:
        RuntimeWarning: each of several items failed, with `errors="return"`.
    """
    value = check_items(items, options.get("token_ids"))
    call = MapCall.of(session._requests, options, questions, template, path, errors, window)
    return PendingMap(call, value, progress=session._requests.draws_progress(progress))
