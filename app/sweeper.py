"""Ends renders that no worker will: overdue while they waited, or asked of a model that no worker has any more.

It also tells of workers that fell silent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis

from core.errors import Unavailable
from core.metrics import Metrics
from core.render import State
from final_engine.ends import fail, reject
from shared_cache.members import TTL_S
from shared_cache.registry import Registry, lacks
from shared_cache.renders import Record, Renders

log = logging.getLogger(__name__)
LOOK_EVERY_S = 1.0
SECOND_THOUGHT_S = 5.0  # a worker that only paused, or could not reach the queue, has spoken by then
MODEL_PATIENCE_S = 900.0  # below the time that latents are kept
OLDEST = 20  # renders that are looked at a time; who waits in vain is soon among these
ROLE = {State.QUEUED: "final", State.RUNNING: "final", State.DECODING: "decode", State.CHECKING: "finish"}
TOO_LATE = {"code": "deadline", "message": "its deadline passed while it waited; ask again with a later one"}


class Sweeper:
    """One thread of the web process; several processes may do it side by side. clock: as the records' deadlines."""

    def __init__(self, renders: Renders, registry: Registry, clock: Callable[[], float], metrics: Metrics) -> None:
        self._renders = renders
        self._registry = registry
        self._metrics = metrics
        self._clock = clock
        self._silent_s: dict[str, float] = {}  # since when a worker is not heard of any more
        self._missed_s: dict[tuple[str, str], float] = {}  # since when nobody has this role for this model
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def sweep(self) -> None:
        workers = self._registry.workers()
        self._tell_lost({worker["id"] for worker in workers})
        self._end_overdue()
        self._end_stranded(workers)

    def _tell_lost(self, living: Collection[str]) -> None:
        """Workers that were killed, or hang; who ends as it should takes leave."""
        now_s = self._clock()
        self._silent_s.update(dict.fromkeys(self._registry.lost(), now_s))
        for worker_id, since_s in list(self._silent_s.items()):
            if worker_id in living:
                del self._silent_s[worker_id]
            elif now_s - since_s >= SECOND_THOUGHT_S:
                del self._silent_s[worker_id]
                silent_s = TTL_S + now_s - since_s
                log.warning("worker %s was not heard of for %.0f s; its renders go to others", worker_id, silent_s)

    def _end_overdue(self) -> None:
        """Rejects what still waits; what runs is its worker's to judge, and what is being decoded comes late."""
        for record in self._renders.overdue(self._clock()):
            if record.state is State.QUEUED:
                reject(self._renders, self._metrics, record.id, record.attempt, TOO_LATE)

    def _end_stranded(self, workers: Sequence[Mapping[str, Any]]) -> None:
        """Fails what only a model can go on with that no worker has had for a while.

        Where a role has no worker at all they may come back, and are waited for.
        """
        now_s = self._clock()
        waiting = [record for record in self._renders.unfinished(OLDEST) if record.state in ROLE]  # some end meanwhile
        stranded = [record for record in waiting if lacks(workers, *_need(record))]
        self._missed_s = {_need(record): self._missed_s.get(_need(record), now_s) for record in stranded}
        for record in stranded:
            role, model = _need(record)
            if now_s - self._missed_s[role, model] > MODEL_PATIENCE_S:
                log.warning("render %s fails: no worker with the role %s has %s any more", record.id, role, model)
                fail(self._renders, self._metrics, record, Unavailable(f"{model} is not served any more; ask again"))

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            with suppress(redis.RedisError):  # an outage; the next look sees all of them
                self.sweep()


def _need(record: Record) -> tuple[str, str]:
    return ROLE[record.state], record.recipe.model
