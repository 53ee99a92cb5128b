"""When pictures cannot be stored: what those who run the app are told, and what those who ask for pictures are."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from core.errors import Unavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fault:
    """cause and remedy are for those who run the app; state is what everybody may know of the store."""

    cause: str
    remedy: str
    state: str = "cannot be reached"


class StoreAway(Unavailable):
    """Its message is for those who ask for pictures; fault is for those who run the app."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"the store of the pictures {fault.state}; try again later")
        self.fault = fault


class Outage:
    """Tells of one store's outage in the log: once when it begins, and once when it is over. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lasts = False

    def failed(self, fault: Fault) -> StoreAway:
        """The error to raise."""
        if self._turn(True):
            log.warning("pictures cannot be stored: %s; what to do: %s", fault.cause, fault.remedy)
        return StoreAway(fault)

    def worked(self) -> None:
        if self._turn(False):
            log.info("pictures can be stored again")

    def _turn(self, lasts: bool) -> bool:
        with self._lock:
            turned, self._lasts = self._lasts != lasts, lasts
        return turned
