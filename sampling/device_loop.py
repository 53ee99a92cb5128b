"""One device, several engines: the first in line goes first, the last is not starved."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

import redis

from core.metrics import Metrics

MAX_WAIT_S = 1.0
IDLE_WAIT_S = 0.1
OUTAGE_WAIT_S = 1.0

log = logging.getLogger(__name__)


class Engine(Protocol):
    """Work that comes in short turns."""

    def tick(self) -> bool:
        """Does one turn (at most one denoising step); False when there was nothing to do."""

    def stop_taking(self) -> None:
        """From now on ticks only go on with what is at work."""

    def idle(self) -> bool:
        """True when nothing is at work."""

    def hand_back(self) -> None:
        """Gives what is not done to others."""


class DeviceLoop:
    """Engines by pool, in order of priority. One that was not asked for max_wait_s is asked before all others."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        wait: Callable[[float], object],
        clock: Callable[[], float],
        metrics: Metrics,
        max_wait_s: float = MAX_WAIT_S,
        idle_wait_s: float = IDLE_WAIT_S,
    ) -> None:
        if not engines:
            raise ValueError("a device loop needs an engine")
        self._pools = list(engines)
        self._engines = list(engines.values())
        self._wait = wait
        self._clock = clock
        self._metrics = metrics
        self._max_wait_s = max_wait_s
        self._idle_wait_s = idle_wait_s
        self._asked_s = [clock()] * len(self._engines)
        self._troubled = False  # an engine could not do its turn, and will not be able to at once
        for pool in self._pools:
            metrics.busy(pool, 0.0)  # one that never worked is known to be idle

    def run(self, stop: threading.Event) -> None:
        """Turns until stop is set; when nobody has work, waits for work to arrive, at most idle_wait_s."""
        while not stop.is_set():
            if not self.turn():
                self._rest(stop)

    def drain(self, over: Callable[[], bool]) -> None:
        """Turns until what was at work is done, or that is over; then the rest is handed back."""
        for engine in self._engines:
            engine.stop_taking()
        never = threading.Event()
        while not over() and not all(engine.idle() for engine in self._engines):
            if not self.turn():
                self._rest(never)
        for engine in self._engines:
            try:
                engine.hand_back()
            except redis.RedisError:  # an outage; leases run out, and others take over what is ours
                log.warning("engine %s could not hand back what it had", type(engine).__name__)
            except Exception:
                log.exception("engine %s could not hand back what it had", type(engine).__name__)

    def _rest(self, stop: threading.Event) -> None:
        if self._troubled:
            self._troubled = False
            stop.wait(OUTAGE_WAIT_S)
            return
        try:
            self._wait(self._idle_wait_s)
        except (redis.RedisError, OSError):  # an outage of what wakes us must not end the loop
            stop.wait(OUTAGE_WAIT_S)

    def turn(self) -> bool:
        """Lets the first engine that has work do one turn of it; False when none has."""
        return any(self._ask(i) for i in self._order())

    def _order(self) -> list[int]:
        now_s = self._clock()
        aged = [i for i, asked_s in enumerate(self._asked_s) if now_s - asked_s >= self._max_wait_s]
        aged.sort(key=lambda i: self._asked_s[i])
        return [*aged, *(i for i in range(len(self._engines)) if i not in aged)]

    def _ask(self, i: int) -> bool:
        began_s = self._clock()
        try:
            stepped = self._engines[i].tick()
        except redis.RedisError:
            self._troubled, stepped = True, False
        except Exception:
            log.exception("engine %s failed a turn", type(self._engines[i]).__name__)
            stepped = False
        self._asked_s[i] = self._clock()
        if stepped:
            self._metrics.busy(self._pools[i], self._asked_s[i] - began_s)
        return stepped
