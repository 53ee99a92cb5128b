"""What to do with a running preview when its session has typed on.

A preview that has begun is worth finishing when that is quick: it is newer than what the person sees, and dropping it
at every key would show nothing while they type. It is dropped when nothing was spent on it yet, or when finishing
would keep the newer text waiting longer than a person bears.
"""

from __future__ import annotations

PATIENCE_S = 0.75


def superseded(step_index: int, steps: int, step_s: float) -> bool:
    """Whether a row at step_index of steps gives way to a newer request of its session. Units: step_s in seconds."""
    return step_index == 0 or (steps - step_index) * step_s > PATIENCE_S
