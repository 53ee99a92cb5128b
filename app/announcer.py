"""The thread in which a worker says who it is, what it is ready for and what it measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import redis

from core.metrics import Metrics
from shared_cache.metrics import Board
from shared_cache.registry import Registry
from shared_cache.renders import Renders

ANNOUNCE_S = 3.0
REPAIR_EVERY_S = 1.0  # by one of all workers


class Announcer:
    """Speaks every few seconds, and at once when told that something changed; who falls silent is forgotten.

    describe: what the registry tells of this worker. measure: brings the metrics up to date; called in this thread.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        registry: Registry,
        board: Board,
        renders: Renders,
        metrics: Metrics,
        describe: Callable[[], Mapping[str, Any]],
        measure: Callable[[], None],
    ) -> None:
        self._id = worker_id
        self._registry = registry
        self._board = board
        self._renders = renders
        self._metrics = metrics
        self._describe = describe
        self._measure = measure
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="announce", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def changed(self) -> None:
        """Says it now rather than at the next turn."""
        self._changed.set()

    def close(self) -> None:
        """Falls silent, and takes back what was said."""
        self._closing.set()
        self._changed.set()
        self._thread.join()
        with suppress(redis.RedisError):  # who cannot take leave is forgotten in a few seconds
            self._registry.withdraw(self._id)
            self._board.withdraw(self._id)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._changed.clear()
            self._say()
            self._changed.wait(ANNOUNCE_S)

    def _say(self) -> None:
        self._measure()
        with suppress(redis.RedisError):  # said again at the next turn
            self._registry.announce(self._id, self._describe())
            self._board.publish(self._id, self._metrics.text())
            self._renders.repair(every_s=REPAIR_EVERY_S)
