"""Which waiting renders a worker is for: a worker may be dedicated to one hot style, which is then in its weights."""

from __future__ import annotations

from collections.abc import Collection

from core.errors import StartupError
from core.recipe import Recipe, StyleUse, spelled, styles_of
from core.scheduler import Task
from core.settings import Settings
from shared_cache.registry import ReadyWorkers
from styles.catalogue import open_catalogue

LEFT_TO_OTHERS_S = 3.0  # a render that waited longer is everybody's
OTHERS_START_S = 60.0  # in which a worker that has a style may still be starting


class Routes:
    """A dedicated worker takes renders of its style alone; the others leave those to it for a while.

    installed: the styles that this worker has. Renders of others are left to who has them; what nobody has after a
    while is taken all the same, and fails with that reason.
    """

    def __init__(self, fused: StyleUse | None, ready: ReadyWorkers, installed: Collection[str]) -> None:
        self._fused = fused
        self._ready = ready
        self._installed = frozenset(installed)

    def mine(self, task: Task, now_s: float) -> bool:
        """Units: now_s on the clock of the task's arrival."""
        if self._fused is not None:
            return task.styles == str(self._fused)
        if not self.able(task.styles, task.arrived_s, now_s):
            return False
        return now_s - task.arrived_s > LEFT_TO_OTHERS_S or task.styles not in self._ready.fused()

    def able(self, styles: str, arrived_s: float, now_s: float) -> bool:
        """Whether this worker has these styles, spelled as core.recipe does, or nobody will ever have them."""
        lacking = styles_of(styles) - self._installed
        return not lacking or (now_s - arrived_s > OTHERS_START_S and not self._ready.have(lacking))

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
