"""The next work of a request for a plan: a chunk of known tokens, or decode rows. It counts as computed at once."""

from collections.abc import Sequence
from dataclasses import replace

from rekindle.core.buckets import QUERY_BLOCK
from rekindle.core.messages import Chunk, Row
from rekindle.core.page import NULL_PAGE
from rekindle.core.request.picture import coordinates_of
from rekindle.core.request.request import Request
from rekindle.core.scheduler.requests.lease import Lease
from rekindle.core.scheduler.requests.state import RequestState


def next_chunk(state: RequestState, slot: int, most: int) -> Chunk:
    """Return a chunk of at most `most` known tokens from `chunk_start` on."""
    assert state.lease is not None
    request, start, lease = state.request, state.chunk_start, state.lease
    end = min(state.prefill_end, start + most)
    if state.keeping is not None:
        end = state.keeping.end_of_chunk(start, end)
    last = end == state.prefill_end and not request.hold
    allowed = state.next_mask if last else None
    if last:
        state.pending += 1
    state.computed = end
    return Chunk(
        request_id=request.id,
        slot=slot,
        start=start,
        tokens=tuple(state.tokens[start:end]),
        pages=tuple(_written_page(lease, at) for at in range(start, end, QUERY_BLOCK)),
        table=tuple(lease.pages),
        completes=request if last else None,
        generated=tuple(state.tokens[len(request.prompt) :]) if last else (),
        scoring=state.observed.scoring(start, end),
        length=state.length,
        group=state.group,
        summing=state.observed.summing(start, end),
        allowed=allowed,
        adapter=_adapter_slot(request),
        changes=request.changes,
        following=state.tokens[end] if end < len(state.tokens) else 0,
        coordinates=coordinates_of(request.pictures, start, end),
    )


def next_row(state: RequestState, slot: int, most: int = 1) -> Row:
    """Return a row for at most the next `most` tokens."""
    assert state.lease is not None
    size, request, row = state.lease.page_size, state.request, state.last_row
    place, steps = state.computed // size, most if most == 1 else state.steps(most)
    end = (place + 1) * size
    page, next_page = state.lease.pages[place], NULL_PAGE
    if state.computed + steps > end:
        next_page = state.lease.pages[place + 1]
    elif not (state.masking.constrained or state.thinking or state.drafting) and state.rope_rule.long_from is None:
        state.same_row_until = min(end, state.final_length - 1)
    length, allowed = state.length, state.next_mask
    same = (slot, page, length, steps, next_page)
    if row is None or row.allowed is not allowed or (row.slot, row.page, row.length, row.steps, row.next_page) != same:
        state.last_row = row = Row(
            request.id, slot, page, request.params.logprobs, length, allowed, steps, next_page,
            adapter=_adapter_slot(request), changes=request.changes, shift=state.shift,
        )  # fmt: skip
    state.computed += steps
    state.pending += steps
    return row


def drafted_rows(state: RequestState, slot: int, tokens: Sequence[int]) -> list[Row]:
    """Return the row of the next token and those of drafted tokens."""
    assert state.drafting is not None
    rows = [next_row(state, slot)]
    for offset, token in enumerate(tokens, 1):
        row = replace(next_row(state, slot), offset=offset, draft=token)
        rows.append(replace(row, allowed=state.masking.draft_bits[offset - 1]) if state.masking.constrained else row)
    state.drafting.in_flight = len(tokens)
    return rows


def _adapter_slot(request: Request) -> int | None:
    return None if request.adapter is None else request.adapter.slot


def _written_page(lease: Lease, position: int) -> int:
    """Return the page to write at a position; published pages are never written again."""
    return NULL_PAGE if position < lease.published else lease.pages[position // lease.page_size]
