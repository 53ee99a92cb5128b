"""Which workers live, what they do and whether they are ready."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import redis

from core.recipe import model_name
from shared_cache import keys
from shared_cache.members import TTL_S, Members

ANY_MODEL = frozenset({"finish"})  # roles that see pixels alone


def new_worker_id() -> str:
    """Names a worker of this process; another process, also one that gets our pid later, never has it."""
    return f"{_process(os.getpid())}{secrets.token_hex(3)}"


def _process(pid: int) -> str:
    return f"{os.uname().nodename}-{pid}-"


class Registry:
    """Workers announce themselves again and again; one that stops is gone after its ttl."""

    def __init__(self, client: redis.Redis, clock: Callable[[], float] = time.time) -> None:
        self._members = Members(client, keys.WORKERS, keys.WORKER_PREFIX)
        self._clock = clock

    def announce(self, worker_id: str, info: Mapping[str, Any], ttl_s: float = TTL_S) -> None:
        """Writes info (docs/api.md lists it); `ready` is a bool or the list of the roles that are."""
        self._members.say(worker_id, json.dumps({**info, "id": worker_id, "seen_s": self._clock()}), ttl_s)

    def withdraw(self, worker_id: str) -> None:
        self._members.leave(worker_id)

    def withdraw_process(self, pid: int) -> None:
        """Withdraws the workers of a process of this machine that ended without doing so itself."""
        for worker in self.workers():
            if worker["id"].startswith(_process(pid)):
                self.withdraw(worker["id"])

    def clear(self) -> None:
        """Forgets everybody, as after a restart; who lives announces itself again."""
        self._members.clear()

    def lost(self) -> list[str]:
        """The ids of workers that fell silent without leave; each is named once, to one of those who ask."""
        return self._members.lost()

    def workers(self) -> list[dict[str, Any]]:
        """What the living ones announced last, by id."""
        return [json.loads(body) for body in self._members.living().values()]

    def ready(self, role: str, model: str) -> list[dict[str, Any]]:
        """The living workers that are ready for work in this role that asks for this model."""
        return [worker for worker in self.workers() if role in ready_of(worker) and serves(worker, role, model)]

    def ready_counts(self, model: str) -> Counter[str]:
        """How many living workers are ready for work that asks for this model, by role."""
        return Counter(role for worker in self.workers() for role in ready_of(worker) if serves(worker, role, model))


def lacks(workers: Sequence[Mapping[str, Any]], role: str, model: str) -> bool:
    """Whether these workers have the role, and none of them for what asks for this model."""
    staff = [worker for worker in workers if role in worker.get("roles", ())]
    return bool(staff) and not any(serves(worker, role, model) for worker in staff)


def serves(worker: Mapping[str, Any], role: str, model: str) -> bool:
    """Whether what a worker does in this role is for what asks for this model."""
    return role in ANY_MODEL or model_name(worker.get("model", ""), worker.get("version", "")) == model


class ReadyWorkers:
    """The workers that are ready for a model's work in a role, looked up at most once in refresh_s; thread-safe."""

    def __init__(self, registry: Registry, role: str, model: str, refresh_s: float = 2.0) -> None:
        self._registry = registry
        self._role = role
        self._model = model
        self._refresh_s = refresh_s
        self._known: tuple[float, list[dict[str, Any]]] = (-refresh_s, [])  # when they were looked up, and they

    def count(self) -> int:
        return len(self._ready())

    def fused(self) -> frozenset[str]:
        """Styles, as core.recipe spells them, that a worker is dedicated to."""
        return frozenset(str(worker["fused"]) for worker in self._ready() if worker.get("fused"))

    def have(self, styles: Collection[str]) -> bool:
        """Whether one of them has all these styles."""
        return any(set(styles) <= installed for installed in self.installed())

    def installed(self) -> set[frozenset[str]]:
        """The styles that they have, each set of them once."""
        return {frozenset(worker.get("installed", ())) for worker in self._ready()}

    def _ready(self) -> list[dict[str, Any]]:
        now_s = time.monotonic()
        if now_s - self._known[0] > self._refresh_s:
            self._known = (now_s, self._registry.ready(self._role, self._model))
        return self._known[1]


def ready_of(worker: Mapping[str, Any]) -> Collection[str]:
    ready = worker.get("ready")
    if isinstance(ready, list):
        return ready
    return worker.get("roles", ()) if ready else ()
