"""What a model promises: both pools, their sizes and limits; its files are checked on the way. No torch."""

from __future__ import annotations

from pathlib import Path

from core.profile import ModelProfile
from sampling.plan import plan_of


def load_profile(model: str | Path) -> ModelProfile:
    """The profile of what FIRSTLIGHT_MODEL may name, whose files were checked.

    Raises: StartupError as plan_of.
    """
    return plan_of(model).profile
