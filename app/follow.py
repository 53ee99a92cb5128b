"""Server-sent events: of one render until it ends, and of all of an owner's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header
from redis.exceptions import RedisError
from sse_starlette import EventSourceResponse, ServerSentEvent

from app.records import owned
from app.renders import RenderId
from app.wants import Here, Owner
from core.render import TERMINAL
from shared_cache.events import READ_LIMIT, check_event_id

router = APIRouter(prefix="/api/v1")

PING_S = 15
LOOK_AGAIN_S = 5.0  # a pulse can be lost; nobody waits longer than this for a missed event

Events = list[tuple[str, dict[str, Any]]]
LastId = Annotated[str | None, Header(alias="Last-Event-ID")]


@router.get("/renders/{render_id}/events")
async def render_events(
    render_id: RenderId, context: Here, owner: Owner, last_event_id: LastId = None
) -> EventSourceResponse:
    """From the first event, or from the one after Last-Event-ID; ends with the render."""
    after = _event_id(last_event_id, "0")
    await asyncio.to_thread(owned, context, owner, render_id)

    def read(after: str) -> tuple[Events, bool]:
        record = context.renders.get(render_id)  # before the events: an end seen here has its event there
        ended = record is None or record.state in TERMINAL
        return context.events.read(render_id, after), ended

    async def stream() -> AsyncIterator[ServerSentEvent]:
        with context.pulses.follow(render_id) as pulse:
            async for event in _follow(read, after, pulse):
                yield event

    return EventSourceResponse(stream(), ping=PING_S)


@router.get("/events")
async def owner_events(context: Here, owner: Owner, last_event_id: LastId = None) -> EventSourceResponse:
    """Events of all the owner's renders, from now on or after Last-Event-ID."""
    after = _event_id(last_event_id, "")
    if after == "":
        after = await asyncio.to_thread(context.events.newest, owner)

    def read(after: str) -> tuple[Events, bool]:
        return context.events.feed(owner, after), False

    async def stream() -> AsyncIterator[ServerSentEvent]:
        with context.pulses.follow(owner) as pulse:
            async for event in _follow(read, after, pulse):
                yield event

    return EventSourceResponse(stream(), ping=PING_S)


async def _follow(
    read: Callable[[str], tuple[Events, bool]], after: str, pulse: asyncio.Event
) -> AsyncIterator[ServerSentEvent]:
    yield ServerSentEvent(id=after)  # no event, only where to go on from should the stream break before its first one
    while True:
        pulse.clear()
        try:
            events, ended = await asyncio.to_thread(read, after)
        except RedisError:  # an outage; what happened meanwhile is read after it
            events, ended = [], False
        for after, fields in events:
            yield ServerSentEvent(json.dumps(fields), id=after)
        if len(events) == READ_LIMIT:  # there may be more, and the end among them
            continue
        if ended:
            return
        try:
            await asyncio.wait_for(pulse.wait(), LOOK_AGAIN_S)
        except TimeoutError:
            continue


def _event_id(given: str | None, default: str) -> str:
    if given is None or given == "":
        return default
    check_event_id(given)
    return given
