"""Paints the set through both pools as the engines paint, and has every picture judged."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from core.errors import NonFinite
from core.profile import Bucket
from core.prompt_rules import check_prompt
from core.validate import check_recipe
from final_engine.gate.cases import POOLS, Case, PoolName
from final_engine.gate.figures import Pace, Scores
from final_engine.handoff import start_of
from final_engine.similarity import similarity
from sampling.encoder import Encoder
from sampling.judge import Judge
from sampling.model import Model
from sampling.painter import Painted, Painter, Wish
from sampling.picture import Pixels
from sampling.safety import ImageClassifier
from shared_cache.embeddings import ByteLRU


@dataclass(frozen=True, slots=True)
class Made:
    """One picture of the set, None where it could not be painted.

    Units: wall_s and device_s in seconds, its own where it was painted alone, else its share of what all took.
    """

    case: Case
    pool: PoolName
    picture: Pixels | None
    scores: Scores
    wall_s: float
    device_s: float

    @property
    def name(self) -> str:
        return f"{self.pool}/{self.case.seed}"


class Gate:
    """A model with all that looks at its pictures. paths: style id to LoRA file."""

    def __init__(
        self, model: Model, paths: Mapping[str, Path], judge: Judge | None, classifier: ImageClassifier, rows: int
    ) -> None:
        self._model, self._paths, self._judge, self._classifier = model, paths, judge, classifier
        self._rows = rows
        self._previews: dict[int, Painted] = {}  # by seed

    def paint(self, cases: Sequence[Case], told: Callable[[], object]) -> list[Made]:
        """Every case in both pools; told is called after each picture."""
        encoder = Encoder(self._model, ByteLRU(2**26), self._paths)
        made = []
        for pool in POOLS:
            with Painter(self._model, pool, encoder, self._paths, self._rows) as painter:
                painter.warm()
                made += self._paint_pool(painter, pool, cases, told)
        return made

    def _paint_pool(
        self, painter: Painter, pool: PoolName, cases: Sequence[Case], told: Callable[[], object]
    ) -> list[Made]:
        """Some cases one by one, then the others together, those of a size after each other."""
        sizes = self._model.profile.final.buckets
        together = sorted((case for case in cases if not case.alone), key=lambda case: sizes.index(self._size(case)))
        made = [one for case in cases if case.alone for one in self._paint_group(painter, pool, [case], told)]
        return made + (self._paint_group(painter, pool, together, told) if together else [])

    def _size(self, case: Case) -> Bucket:
        return self._model.profile.final.nearest_bucket(*case.shape)

    def _paint_group(
        self, painter: Painter, pool: PoolName, cases: Sequence[Case], told: Callable[[], object]
    ) -> list[Made]:
        started_s, busy_s = perf_counter(), painter.busy_s
        ended: dict[str, tuple[Painted, bool]] = {}
        for painted in painter.paint([self._wish(case, pool) for case in cases]):
            ended[painted.id] = painted, painted.picture is not None and self._classifier.allows(painted.picture)
            told()
        wall_s = (perf_counter() - started_s) / len(cases)
        device_s = (painter.busy_s - busy_s) / len(cases)
        if pool == "preview":
            self._previews |= {case.seed: ended[str(case.seed)][0] for case in cases}
        made = []
        for case in cases:
            painted, allowed = ended[str(case.seed)]
            made.append(Made(case, pool, painted.picture, self._score(case, pool, painted, allowed), wall_s, device_s))
        return made

    def _wish(self, case: Case, pool: PoolName) -> Wish:
        recipe = case.recipe(self._model.profile, pool)
        check_recipe(recipe, self._model.profile, self._paths, pool)
        check_prompt(recipe.prompt)
        if pool == "preview":
            return Wish(str(case.seed), recipe)
        size, scale = self._size(case), self._model.vae_scale
        latents = self._previews[case.seed].latents
        start = start_of(recipe.handoff, latents, (size.height // scale, size.width // scale))
        return Wish(str(case.seed), recipe, start.strength, start.init_latents)

    def _score(self, case: Case, pool: PoolName, painted: Painted, allowed: bool) -> Scores:
        """Raises: what the painting raised, where the picture's numbers are not to blame."""
        if painted.picture is None:
            if isinstance(painted.error, NonFinite):
                return Scores(finite=False, allowed=False)
            assert painted.error is not None
            raise painted.error
        marks = {} if self._judge is None else self._judge.mark(painted.picture, case.asked)
        found = {head: round(mark.score, 4) for head, mark in marks.items()}
        right = float(marks["object"].right) if marks else None
        follows, preview = None, self._previews.get(case.seed)
        if pool == "final" and case.follows and preview is not None and preview.picture is not None:
            follows = round(similarity(preview.picture, painted.picture), 4)
        return Scores(True, allowed, right=right, follows=follows, **found)


def pace_of(made: Sequence[Made]) -> Pace:
    """Of the pictures of one pool."""
    alone = sorted(one.wall_s for one in made if one.case.alone)
    together = [one for one in made if not one.case.alone]
    cuts = statistics.quantiles(alone, n=20, method="inclusive") if len(alone) > 1 else alone * 19
    return Pace(
        p50_s=round(cuts[9], 4) if alone else None,
        p95_s=round(cuts[18], 4) if alone else None,
        pictures_per_s=round(1 / statistics.fmean(one.wall_s for one in together), 4) if together else None,
        device_s=round(statistics.fmean(one.device_s for one in together), 4) if together else None,
    )
