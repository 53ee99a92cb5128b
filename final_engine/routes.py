"""Which waiting renders a worker is for: a worker may be dedicated to one hot style, which is then in its weights."""

from __future__ import annotations

from core.errors import StartupError
from core.recipe import Recipe, StyleUse, spelled
from core.scheduler import Task
from core.settings import Settings
from shared_cache.registry import ReadyWorkers
from styles.catalogue import open_catalogue

LEFT_TO_OTHERS_S = 3.0  # a render that waited longer is everybody's


class Routes:
    """A dedicated worker takes renders of its style alone; the others leave those to it for a while."""

    def __init__(self, fused: StyleUse | None, ready: ReadyWorkers) -> None:
        self._fused = fused
        self._ready = ready

    def mine(self, task: Task, now_s: float) -> bool:
        """Units: now_s on the clock of the task's arrival."""
        if self._fused is not None:
            return task.styles == str(self._fused)
        return now_s - task.arrived_s > LEFT_TO_OTHERS_S or task.styles not in self._ready.fused()

    def workers(self) -> int:
        """How many share the queue."""
        return self._ready.count()

    def styles(self, recipe: Recipe) -> tuple[StyleUse, ...]:
        """What the slot bank has to add for a recipe: nothing for the style that is in the weights."""
        fused = self._fused is not None and spelled(recipe.styles) == str(self._fused)
        return () if fused else recipe.styles


def fused_of(settings: Settings) -> StyleUse | None:
    """Raises: StartupError when the style is not in the model's catalogue, or its weight is no number."""
    if settings.fuse is None:
        return None
    catalogue = open_catalogue(settings)
    try:
        use = StyleUse.parse(settings.fuse)
    except ValueError:
        raise StartupError(f"fuse: {settings.fuse!r} has no number as weight", "write it as ink or ink:0.8") from None
    style = catalogue.get(use.id)
    if style is None:
        known = ", ".join(sorted(catalogue.ids())) or "none"
        raise StartupError(f"fuse: there is no style {use.id!r}", f"use one of {known}")
    return use if ":" in settings.fuse else StyleUse(use.id, style.weight)
