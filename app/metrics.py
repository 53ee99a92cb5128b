"""GET /metrics: this process, every other one that lives, and what waits in the queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge
from redis.exceptions import RedisError

from app.context import Context
from app.roles import ROLES
from app.wants import Here
from core.metrics import merged, text_of
from shared_cache.metrics import Look
from shared_cache.registry import ready_of

router = APIRouter()

LOOK_S = 2.0
PUBLISH_S = 3.0


@router.get("/metrics")
async def metrics(context: Here) -> Response:
    """Any web process answers for all processes, so that one of them is scraped."""
    try:
        look, workers = await asyncio.wait_for(asyncio.to_thread(_look, context), LOOK_S)
    except (RedisError, TimeoutError):  # this process alone, which says that the queue is away
        look, workers = None, []
    published = look.texts if look is not None else {}
    processes = merged({**published, context.process_id: context.metrics.text()})
    return Response(processes + text_of(shared_metrics(look, workers)), media_type=CONTENT_TYPE_LATEST)


async def publish(context: Context) -> None:
    """Hangs out this process's metrics for the other web processes, again and again."""
    while True:
        with suppress(RedisError):
            await asyncio.to_thread(context.board.publish, context.process_id, context.metrics.text())
        await asyncio.sleep(PUBLISH_S)


def _look(context: Context) -> tuple[Look, list[dict[str, Any]]]:
    return context.board.look(context.profile.final.buckets, context.profile.model), context.registry.workers()


def shared_metrics(look: Look | None, workers: list[dict[str, Any]]) -> CollectorRegistry:
    """What belongs to no process: the queue's depths and who is ready."""
    to = CollectorRegistry()
    Gauge("firstlight_redis_up", "Whether the queue answers.", registry=to).set(look is not None)
    if look is None:
        return to
    depth = Gauge("firstlight_lane_depth", "Entries of a lane.", ("pool", "lane", "state"), registry=to)
    age = Gauge("firstlight_lane_age_seconds", "Wait of a lane's oldest waiting entry.", ("pool", "lane"), registry=to)
    for lane in look.depths:
        depth.labels(lane.pool, lane.lane, "waiting").set(lane.waiting)
        depth.labels(lane.pool, lane.lane, "held").set(lane.held)
        age.labels(lane.pool, lane.lane).set(lane.oldest_s)
    Gauge("firstlight_renders_open", "Renders that have not ended.", registry=to).set(look.open_renders)
    ready = Gauge("firstlight_workers_ready", "Workers that are ready for a role.", ("role",), registry=to)
    counts = Counter(role for worker in workers for role in ready_of(worker))
    for role in ROLES:
        ready.labels(role).set(counts[role])
    return to
