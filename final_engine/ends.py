"""Renders that end before their pictures are done: given up, rejected or failed, each counted once."""

from __future__ import annotations

from collections.abc import Mapping

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


def reject(renders: Renders, metrics: Metrics, render_id: str, attempt: int, error: Mapping[str, str]) -> bool:
    """Ends a render that cannot meet its deadline any more; whether it was this call that ended it."""
    ended = renders.finish(render_id, attempt, State.REJECTED, error=error)
    if ended:
        metrics.ended(State.REJECTED)
        metrics.rejected("doomed")
    return ended


def fail(renders: Renders, metrics: Metrics, record: Record, error: Exception | None) -> None:
    """Ends a render with the code and the words of what went wrong."""
    body = {"code": getattr(error, "code", "failed"), "message": str(error) or type(error).__name__}
    if renders.finish(record.id, record.attempt, State.FAILED, error=body):
        metrics.ended(State.FAILED)
