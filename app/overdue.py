"""Ends renders whose deadline passed while no worker looked at them."""

from __future__ import annotations

import logging
import threading

import redis

from core.clock import SteadyClock
from core.metrics import Metrics
from core.render import State
from final_engine.ends import reject
from shared_cache.connect import trouble
from shared_cache.renders import Renders

log = logging.getLogger(__name__)
LOOK_EVERY_S = 1.0
TOO_LATE = {"code": "deadline", "message": "its deadline passed while it waited; ask again with a later one"}


class Overdue:
    """One thread of the web process; several processes may do it side by side."""

    def __init__(self, renders: Renders, clock: SteadyClock, metrics: Metrics) -> None:
        self._renders = renders
        self._metrics = metrics
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="overdue", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def sweep(self) -> None:
        """Rejects what still waits; what runs is its worker's to judge, and what is being decoded comes late."""
        for record in self._renders.overdue(self._clock()):
            if record.state is State.QUEUED:
                reject(self._renders, self._metrics, record.id, record.attempt, TOO_LATE)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            try:
                self.sweep()
            except redis.RedisError as error:  # an outage; the next look sees all of them
                log.warning("cannot look for overdue renders: %s", trouble(error))
