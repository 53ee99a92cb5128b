"""Claiming an entry, and counting the renders that a claim gives up."""

from __future__ import annotations

from core.metrics import Metrics
from core.render import State
from shared_cache.renders import Record, Renders

GAVE_UP = "attempts"  # the error's code of a render that was tried too often


def claim(renders: Renders, metrics: Metrics, render_id: str, max_attempts: int, state: State) -> Record | None:
    """Renders.claim; where that failed the render for too many attempts, its end is counted."""
    record = renders.claim(render_id, max_attempts, state)
    if record is None:
        ended = renders.get(render_id)
        if ended is not None and ended.error is not None and ended.error["code"] == GAVE_UP:
            metrics.ended(State.FAILED)
    return record
