"""How the workers stand: ready, loading, not there, or unknown while the queue is away; with words for people."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from redis.exceptions import RedisError

from app.roles import ROLES
from shared_cache.registry import Registry, lacks, ready_of, serves


class Stand(Enum):
    """READY: a warm worker for every role. LOADING: all are announced, not all are warm. WAITING: a role has nobody who
    is not about to end."""

    READY = "ready"
    LOADING = "loading"
    WAITING = "waiting"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class Standing:
    """workers: how many are ready for each role; reason: what is being waited for, "" when all is ready."""

    stand: Stand
    workers: Mapping[str, int]
    reason: str = ""


def standing(registry: Registry, model: str, roles: Collection[str] = ROLES) -> Standing:
    """How the workers that can work for this model stand in these roles."""
    try:
        workers = registry.workers()
    except RedisError:
        return Standing(Stand.AWAY, dict.fromkeys(roles, 0), "the queue cannot be reached")
    staying = [worker for worker in workers if not worker.get("draining")]
    able = {
        role: [one for one in staying if role in one.get("roles", ()) and serves(one, role, model)] for role in roles
    }
    counts = {role: sum(role in ready_of(worker) for worker in able[role]) for role in roles}
    nobody = [role for role in roles if not able[role]]
    if nobody:
        others = [role for role in nobody if lacks(workers, role, model)]
        kind = f" with {model}" if others == nobody else ""
        return Standing(Stand.WAITING, counts, f"waiting for a worker{kind}: there is none for {', '.join(nobody)}")
    if not all(counts.values()):
        return Standing(Stand.LOADING, counts, "warming up: the model is loading")
    return Standing(Stand.READY, counts)
