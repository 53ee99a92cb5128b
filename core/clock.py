"""Wall-clock time that does not jump."""

from __future__ import annotations

from time import monotonic, time


class SteadyClock:
    """Seconds since the epoch, carried on by the monotonic clock: setting the machine's clock moves no deadline.

    origin_s: the time now, from a clock that several machines share; this machine's when left out.
    """

    def __init__(self, origin_s: float | None = None) -> None:
        self._offset_s = (time() if origin_s is None else origin_s) - monotonic()

    def __call__(self) -> float:
        return self._offset_s + monotonic()
