"""Continuous batching: pure host logic, without a clock, a device or I/O. The planner fills each tick."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeVar

from rekindle.core.errors import RekindleError, RequestCancelled
from rekindle.core.messages import (
    Admit,
    Advanced,
    Collect,
    Collected,
    Fetched,
    KeepWeights,
    Message,
    NewWeights,
    Offloaded,
    Output,
    Outputs,
    Overdue,
    PictureCut,
    PutPages,
    SaveCache,
    SendPages,
    Settled,
    Started,
    Stopped,
    TakePages,
    WeightsKept,
    Withdraw,
    Written,
)
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.page import StoredPage
from rekindle.core.request.constraint import Allowed
from rekindle.core.request.figures import CachedTokens
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import EndReason, TokenLogprob
from rekindle.core.scheduler.cache.outbox import HostTierOutbox
from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.core.scheduler.limits import EngineLimits
from rekindle.core.scheduler.plan_builder import PlanBuilder
from rekindle.core.scheduler.planner import Planner
from rekindle.core.scheduler.requests.state import RequestState
from rekindle.core.scheduler.requests.table import RequestTable
from rekindle.core.scheduler.weight_changes import WeightChanges
from rekindle.core.scheduler.writeback import DiskWriteback

T = TypeVar("T")

NOT_RECOMPUTED: Final = (
    "a damaged program lost the pages of the request, and deterministic=True does not recompute generated tokens with "
    "another program; submit the request again"
)


class Scheduler:
    """The scheduler actor of one lane: it decides when to plan a tick, and when a request ends.

    It handles the messages. The `RequestTable` has the requests, the `Planner` fills the ticks, `DiskWriteback` writes
    cached pages to disk, and `WeightChanges` tells when new weights come into use.

    Attributes:
        table: the requests, with the groups' pages and prefix trees. Other threads read the trees through `look`.
        stats: a snapshot, replaced after each message; safe to read from any thread.
    """

    def __init__(self, limits: EngineLimits):
        self._limits = limits
        self._lock = threading.RLock()  # reentrant: a policy may read the cache while it is called
        self._in_flight = 0
        self._last_settled = 0  # the last settled tick
        self._overdue = False
        self._waiting_at_overdue: Collection[int] = ()  # the requests queued at the last overdue report
        self._outbox = HostTierOutbox()
        self.table = RequestTable(limits, self._outbox)
        self._writeback = DiskWriteback(limits, [group.cache for group in self.table.groups])
        self._planner = Planner(limits, self.table, self._writeback)
        self._weights = WeightChanges(self.table, self._writeback)
        self.stats = self.table.stats()

    def handle(self, message: Message) -> list[Message]:
        """Handle a message, and plan as far ahead as the depth allows."""
        with self._lock:
            return self._handle(message)

    def look(self, at: Callable[[Sequence[PrefixTree]], T]) -> T:
        """Call `at` with the groups' prefix trees, between two messages; return its result.

        Thread-safe. The engine blocks meanwhile.
        """
        with self._lock:
            return at([group.cache.tree for group in self.table.groups])

    @property
    def overdue(self) -> bool:
        """True while a tick exceeds `watchdog_timeout`."""
        return self._overdue

    def uncached(self, request: Request) -> int:
        """Return the number of a request's initial tokens to compute, in the group with the most cached."""
        state = RequestState.of(request, self._limits)
        return min(group.uncached(state) for group in self.table.groups)

    def pages_on_device(self, request: Request) -> int:
        """Return the length of a request's cached prefix on the device, in pages."""
        state = RequestState.of(request, self._limits)
        return len(self.table.group_of(state).cache.on_device(state.namespace, state.tokens, state.marks))

    def remaining(self, request_id: int) -> int | None:
        """Return the number of tokens to compute before a running request's next one; None for others."""
        state = self.table.get(request_id)
        return None if state is None or state.lease is None else max(0, state.prefill_end - state.computed)

    def restore(self, pages: Iterable[StoredPage]) -> None:
        """Add pages written to disk by an earlier session, parents before children."""
        pages = list(pages)
        with self._lock:
            for group in self.table.groups:
                group.cache.tree.restore(pages)
            self.stats = self.table.stats()

    def check(self) -> None:
        """Assert the invariants: each page and slot has exactly one holder, each request exactly one place."""
        self.table.check()

    def _handle(self, message: Message) -> list[Message]:
        messages = list(self._take_in(message))
        messages += [*self._weights.change(self._in_flight), *self._plans(), *self._unblock()]
        messages += self._drain_grammars()
        if self.table.outputs:  # after the plans, so that the device does not wait for the callers
            messages.append(Outputs(tuple(self.table.outputs)))
            self.table.outputs.clear()
        for group in self.table.groups:
            group.cache.offload_ahead()
        messages += self._writeback.advance(self.table.counts.ticks, idle=not len(self.table) and not self._in_flight)
        messages += self._outbox.drain()
        messages += self.table.gallery.drain()
        self.stats = self.table.stats()
        return messages

    def _drain_grammars(self) -> list[Message]:
        """Return the news of constrained requests for the grammars, with drafts."""
        table = self.table
        news = dict.fromkeys(request.id for request, _ in table.grammar_outbox.tokens)
        states = [state for request_id in news if (state := table.get(request_id)) is not None]
        drafts = table.drafter.propose(states, table.running) if states else {}
        return table.grammar_outbox.drain(table.running, drafts)

    def _take_in(self, message: Message) -> Iterator[Message]:
        match message:
            case Admit(request, started) if request.complete:
                yield from self._answer(request, started)
            case Admit(request, started):
                self.table.join(request, started=started)
                if started:
                    self._output_forced(request, None)
            case Withdraw(request_id):
                if not self.table.release(request_id) and (state := self.table.get(request_id)):
                    self.table.end(state, "cancelled")
            case Stopped(request_id, tokens):
                if state := self.table.get(request_id):
                    self._stop(state, tokens)
            case Advanced(outcomes, late):
                for request_id, outcome in outcomes:
                    if state := self.table.get(request_id):
                        yield from self._advance(state, outcome)
                for request_id in late:
                    if state := self.table.get(request_id):
                        state.masking.late = True
                        self.table.grammar_outbox.late.append(request_id)
            case PictureCut(outcome=outcome):
                for request_id in self.table.gallery.take(message):
                    if (state := self.table.get(request_id)) and isinstance(outcome, Exception):
                        yield self.table.reject(state, outcome)
            case Overdue(tick, error):
                if tick is None or tick > self._last_settled:
                    yield from self._fail_overdue(error)
            case Settled(losses=losses):
                if losses > self.table.losses:
                    yield from self._lose_device()
                yield from self._settle(message)
            case NewWeights():
                self._weights.add(message)
            case KeepWeights(ticket):
                if self._weights.withdraw(ticket):  # otherwise the weights are in use, as reported by the stepper
                    yield WeightsKept(ticket)
            case Offloaded():
                for group in self.table.groups:
                    group.cache.on_offloaded(message)
            case Written():
                self._writeback.on_written(message)
            case SaveCache(ticket):
                self._writeback.add_ticket(ticket)
            case Fetched():
                self.table.waiting.on_fetched(message)
            case SendPages():
                yield self._send_pages(message)
            case TakePages(request, first, contents):
                yield from self._take_pages(request, first, contents)
            case _:
                raise wrong_receiver("scheduler", message)

    # Planning

    def _plans(self) -> Iterator[Message]:
        """Yield plans until the limit of ticks in flight, or until nothing is left to compute.

        Planning waits for the masks of constrained requests, except late ones: skipping a tick makes a request slower
        by half. While new weights are pending, only started requests are admitted, or no tick is planned if the started
        ones will use them too. No tick is planned behind an overdue one, or while the device has no weights.
        """
        table = self.table
        if self._overdue or self._weights.asleep or self._weights.drains:
            return
        while self._in_flight < self._limits.depth and not any(
            state.delays_plans for state in table.running if state.masking.constrained
        ):
            changes, builder = table.waiting.changes, self._planner.build(only_started=self._weights.pending)
            if not builder.is_empty:
                self._in_flight += 1
                table.counts.ticks += 1
                yield from self._outbox.drain()
                yield builder.plan(table.counts.ticks, table.drain_preempted(), table.losses)
            yield from builder.messages
            # After the plan, so that only later ticks find a page of this tick.
            for state in builder.prefilling:
                state.publish()
            self._keep_states(builder)
            # If the queue changed meanwhile, the next plan may have work though this one has none.
            if builder.is_empty and table.waiting.changes == changes:
                return

    def _keep_states(self, builder: PlanBuilder) -> None:
        """Copy states after a tick, before the next one changes them."""
        for states, decoded in ((builder.prefilling, False), (builder.decoding, True)):
            for state in states:
                # With a draft in flight, its position is known when the draft is verified.
                if state.keeping is not None and not state.awaits_draft:
                    self._keep_state(state, decoded=decoded)

    def _keep_state(self, state: RequestState, *, decoded: bool) -> None:
        if state.keeping is not None and state.lease is not None:
            state.keep_state(self.table.group_of(state).running.slots[state], decoded=decoded)

    def _unblock(self) -> Iterator[Message]:
        """Make room for the first queued request if nothing runs and only staged or held pages block it."""
        while not self._in_flight and not self.table.running and not self._weights.asleep:
            first = self.table.waiting.blocked(only_started=self._weights.pending)
            if first is None:
                return
            if (error := self._planner.make_room(first)) is not None:
                yield self.table.reject(first, error)
            yield from self._weights.change(self._in_flight)
            yield from self._plans()

    # Progress of requests

    def _answer(self, request: Request, started: bool) -> Iterator[Message]:
        """End a request whose whole output is known in advance."""
        self.table.counts.ended += 1
        if started:
            self._output_forced(request, "stop")
            return
        self.table.counts.add_forced(len(request.initial_output) - len(request.output_prefix))
        by_token = request.initial_output[-1] in request.end_ids
        version = self.table.exchanges
        self.table.outputs.append(
            Output(request, request.initial_output, "stop" if by_token else None, weights_version=version)
        )
        self.table.outputs += [] if by_token else [Output(request, (), "stop")]
        seed, image_tokens = request.params.seed, request.image_tokens
        yield Started(request.id, request.prompt, seed, CachedTokens(), image_tokens=image_tokens)

    def _output_forced(self, request: Request, end: EndReason | None) -> None:
        """Output the tokens forced now in a request started in another lane, and its end if any."""
        forced = request.initial_output[len(request.output_prefix) :]
        if forced or end is not None:
            self.table.counts.add_forced(len(forced))
            self.table.outputs.append(Output(request, forced, end, weights_version=self.table.exchanges))

    def _settle(self, message: Settled) -> Iterator[Message]:
        """Apply the results of one tick; drop the surplus of ended requests."""
        table = self.table
        self._in_flight -= 1
        self._last_settled, self._overdue, self._waiting_at_overdue = message.tick, False, ()
        self._planner.step_counts.add(message)
        verified = table.drafter.settle(message, table)
        for finished in [state for state in table.running if state.held_at == message.tick]:
            table.hold(finished)
        self._settle_prompts(message)
        self._settle_tokens(message)
        for drafted in verified:
            self._keep_state(drafted, decoded=True)
        for request_id, error in message.failures.items():
            if state := table.get(request_id):
                yield table.reject(state, error)

    def _settle_prompts(self, message: Settled) -> None:
        """Output the log-probabilities and the hidden states of slices of prompts."""
        table = self.table
        for request_id, scores in message.prompt_logprobs.items():
            if state := table.get(request_id):
                state.observed.scores_settled += len(scores)
                table.outputs.append(Output(state.request, (), None, prompt_logprobs=scores))
        for request_id, states in message.sums.items():
            if state := table.get(request_id):
                state.observed.sums_settled += states.count
                table.outputs.append(Output(state.request, (), None, states=states))

    def _settle_tokens(self, message: Settled) -> None:
        """Add new tokens to their requests, and output them: those of a request and tick at once."""
        for request_id, pairs in groupby(message.tokens, key=itemgetter(0)):
            tokens, scores = list(map(itemgetter(1), pairs)), message.logprobs.get(request_id, ())
            while tokens and (state := self.table.get(request_id)) is not None:
                count = self._settle_request(state, tokens, scores)
                tokens, scores = tokens[count:], scores[count:]

    def _settle_request(self, state: RequestState, tokens: Sequence[int], scores: Sequence[TokenLogprob]) -> int:
        """Add new tokens to a request, and output them; return their number, which is lower before forced tokens."""
        table, end, new = self.table, None, list[int]()
        if state.final_length == len(state.tokens):  # only its prompt was requested
            table.end(state, "length")
            return len(tokens)
        for token in tokens:
            end = state.take(token)
            new.append(token)
            if state.masking.is_pending:
                table.grammar_outbox.tokens.append((state.request, token))
            if end is not None or (state.thinking is not None and state.thinking.forced):
                break
        table.counts.generated_tokens += len(new)
        of_new = tuple(scores[: len(new)])
        table.outputs.append(Output(state.request, tuple(new), end, of_new, (), None, table.exchanges))
        if end is not None:
            table.leave(state)
        elif state.thinking is not None and state.thinking.forced:
            self._force(state, state.thinking.forced[: state.final_length - len(state.tokens)])
        elif state.keeping is not None and state.lease is not None:
            state.place_states()
        return len(new)

    def _advance(self, state: RequestState, outcome: Allowed | RekindleError) -> Iterator[Message]:
        """Continue a constrained request with its new mask, or fail it."""
        state.masking.is_pending = state.masking.late = False
        if isinstance(outcome, RekindleError):
            yield self.table.reject(state, outcome)
            return
        state.masking.allowed = outcome
        self._force(state, outcome.forced, complete=outcome.complete)

    def _force(self, state: RequestState, forced: tuple[int, ...], *, complete: bool = False) -> None:
        """Add forced tokens to an output, which may end it."""
        changes_rope = False
        if forced:
            self.table.outputs.append(Output(state.request, forced, None, weights_version=self.table.exchanges))
            self.table.counts.add_forced(len(forced))
            changes_rope = not state.jump(forced)
        if complete or state.full:
            self.table.end(state, "stop" if complete else "length")
        elif forced and state.lease is not None:
            if changes_rope:
                self.table.preempt(state)
            else:
                self.table.reserve(state, len(state.tokens))

    def _stop(self, state: RequestState, tokens: int) -> None:
        """End a request after the tokens of a complete stop string; tokens settled since then are surplus."""
        request = state.request
        length = len(request.prompt) + tokens
        surplus = len(state.tokens) - max(length, len(request.prompt) + len(request.output_prefix))
        self.table.counts.generated_tokens -= surplus
        del state.tokens[length:]
        self.table.end(state, "stop")

    def _fail_overdue(self, error: RekindleError) -> Iterator[Message]:
        """Fail all running requests, and the requests already queued at the previous overdue report."""
        for state in self.table:
            if state.lease is not None or state.request.id in self._waiting_at_overdue:
                yield self.table.reject(state, error)
        self._overdue = self._in_flight > 0  # otherwise no tick settles that would end it
        self._waiting_at_overdue = {state.request.id for state in self.table}

    # Pages of prompts, moved between lanes

    def _send_pages(self, message: SendPages) -> Message:
        """Collect the pages of a prompt, as far as the device has them."""
        state = RequestState.of(message.request, self._limits)
        pages = self.table.group_of(state).cache.on_device(state.namespace, state.tokens, state.marks)[message.first :]
        if not pages or message.exchanges != self.table.exchanges:
            return Collected(message.request.id, ())
        return Collect(message.request.id, pages, self.table.losses)

    def _take_pages(self, request: Request, first: int, contents: Sequence[Any]) -> Iterator[Message]:
        """Put pages of a prompt into the cache for its request, if there is room."""
        state = RequestState.of(request, self._limits)
        cache = self.table.group_of(state).cache
        cached, pages = cache.receive(state.namespace, state.tokens, first, len(contents), state.marks)
        if pages:
            self.table.counts.moved_pages += len(pages)
            yield from self._outbox.drain()  # evicted pages are copied before they are overwritten
            yield PutPages(pages, tuple(contents[cached - first :]), self.table.losses)

    # Loss of the device state

    def _lose_device(self) -> Iterator[Message]:
        """Restart all running requests from their tokens, because the pages on the device are lost."""
        for state in self.table:
            state.lose_dispatched()
            if self._limits.one_shape and len(state.tokens) > len(state.request.initial_tokens):
                yield self.table.reject(state, RequestCancelled(NOT_RECOMPUTED))
        for state in self.table.running[::-1]:
            self.table.preempt(state)
        self.table.waiting.forget_cache()
        self.table.gallery.lose_device()
        for group in self.table.groups:
            group.cache.lose_device()
