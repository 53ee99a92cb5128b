"""States of a render and the words of its record."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DECODING = "decoding"
    CHECKING = "checking"
    DONE = "done"
    REJECTED = "rejected"
    BLOCKED = "blocked"
    CANCELLED = "cancelled"
    FAILED = "failed"


TERMINAL = frozenset({State.DONE, State.REJECTED, State.BLOCKED, State.CANCELLED, State.FAILED})
