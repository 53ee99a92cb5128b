"""When what the app leans on is away: those who run it are told once, and once more when it is back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from core.errors import Unavailable

log = logging.getLogger(__name__)
PICTURES = ("pictures cannot be stored", "pictures can be stored")  # as Outage wants it said


@dataclass(frozen=True, slots=True)
class Fault:
    """cause and remedy are for those who run the app; state is what everybody may know."""

    cause: str
    remedy: str
    state: str = "cannot be reached"


class StoreAway(Unavailable):
    """Its message is for those who ask for pictures; fault is for those who run the app."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"the store of the pictures {fault.state}; try again later")
        self.fault = fault


class Outage:
    """One outage in the log: a line when it begins, one for each other remedy it needs meanwhile, one when it is over.

    away, back: what is said then. It is over when something works and nothing failed for quiet_s, so that a server
    which refuses some calls and answers others does not come and go. Safe for threads.
    """

    def __init__(self, away: str, back: str, quiet_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._away = away
        self._back = back
        self._quiet_s = quiet_s
        self._clock = clock
        self._lock = threading.Lock()
        self._told: set[str] = set()  # remedies; none while all is well
        self._began_s = self._failed_s = 0.0
        self._worked_s: float | None = None  # since when nothing fails any more

    def failed(self, fault: Fault) -> None:
        with self._lock:
            now_s = self._clock()
            if not self._told:
                self._began_s = now_s
            self._failed_s, self._worked_s = now_s, None
            new = fault.remedy not in self._told
            self._told.add(fault.remedy)
        if new:
            log.warning("%s: %s; what to do: %s", self._away, fault.cause, fault.remedy)

    def worked(self) -> None:
        if not self._told:
            return
        with self._lock:
            now_s = self._clock()
            if self._worked_s is None:
                self._worked_s = now_s
            if not self._told or now_s - self._failed_s < self._quiet_s:
                return
            lasted_s = self._worked_s - self._began_s
            self._told.clear()
        log.warning("%s again after %.0f s", self._back, lasted_s)
