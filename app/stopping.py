"""How a worker is told to end, and how long it may take."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType


class Stopping:
    """SIGTERM lets what is at work be done within grace_s; SIGINT, and a second signal, do not. While the model loads,
    either ends the process at once.

    Units: seconds.
    """

    def __init__(self, grace_s: float, loading: bool = False) -> None:
        self.asked = threading.Event()
        self.loading = loading  # nothing is at work yet
        self._grace_s = grace_s
        self._ends_s = float("inf")

    def listen(self) -> None:
        """From now on, signals are for us."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def ask(self, grace_s: float) -> None:
        self._ends_s = min(self._ends_s, time.monotonic() + grace_s)
        self.asked.set()

    @property
    def left_s(self) -> float:
        """Until what is not done has to be handed back."""
        return max(0.0, self._ends_s - time.monotonic())

    def over(self) -> bool:
        return self.left_s == 0.0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        patient = number == signal.SIGTERM and not self.asked.is_set()
        self.ask(self._grace_s if patient else 0.0)
        if self.loading:
            raise SystemExit(0)
