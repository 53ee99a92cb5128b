"""The gate's table: a row for each option and pool, held against a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.cost import Identity
from core.errors import InvalidInput
from core.settings import Settings
from final_engine.calibrate import identity_of
from final_engine.gate.cases import POOLS, Case, gate_set
from final_engine.gate.figures import Figures, Pace, Regression, figures_of, regressions, slowdowns
from final_engine.gate.painting import Gate, Made, pace_of
from final_engine.gate.reference import Reference, write_reference
from sampling.judge import load_judge
from sampling.options import Option, known_options
from sampling.picture import Pixels
from sampling.plan import folder_of
from sampling.safety import ImageClassifier
from sampling.threads import use_threads
from styles.catalogue import open_catalogue

SECONDS_AN_HOUR = 3600
REFERENCE = "gate"  # the folder of a model that holds its own


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table. pictures: how many were asked for. least_alike: the one farthest from the reference's."""

    option: str
    pool: str
    pictures: int
    figures: Figures
    pace: Pace
    regressions: tuple[Regression, ...] = ()
    least_alike: str | None = None

    def cost(self, price_per_hour: float) -> float | None:
        """What a picture costs, in the money of the price."""
        seconds = self.pace.device_s
        return None if seconds is None else price_per_hour * seconds / SECONDS_AN_HOUR

    def as_dict(self, price_per_hour: float | None) -> dict[str, Any]:
        cost = {} if price_per_hour is None else {"cost_per_picture": self.cost(price_per_hour)}
        row = {"option": self.option, "pool": self.pool, "pictures": self.pictures}
        regressed = [asdict(one) for one in self.regressions]
        compared = {} if self.least_alike is None else {"least_alike": self.least_alike}
        return {**row, **self.figures, **asdict(self.pace), **cost, **compared, "regressions": regressed}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one option painted, and its two rows."""

    option: str
    identity: Identity
    made: tuple[Made, ...]
    lines: tuple[Line, ...]

    @property
    def pictures(self) -> dict[str, Pixels]:
        """Those that could be painted, by name."""
        return {one.name: one.picture for one in self.made if one.picture is not None}


def chosen_options(names: Sequence[str]) -> list[Option]:
    """The named ones; the one that workers use where none is named; every one for "all".

    Raises: InvalidInput for a name that this machine does not know.
    """
    known = known_options()
    if not names:
        return [next(iter(known.values()))]
    if "all" in names:
        return list(known.values())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput("--option", f"{', '.join(unknown)} is not known here; known are {', '.join(known)}, all")
    return [known[name] for name in dict.fromkeys(names)]


def cases_of(settings: Settings, short: bool) -> tuple[Case, ...]:
    return gate_set(open_catalogue(settings).ids(), short)


def evaluate(
    settings: Settings,
    option: Option,
    cases: Sequence[Case],
    reference: Reference | None,
    told: Callable[[], object],
    time_tolerance: float | None = None,
) -> Outcome:
    """Loads the model as the option runs it, paints and scores the cases; told is called after each picture.

    Raises: InvalidInput when times are to be compared with those of another machine.
    """
    use_threads(settings.torch_threads)  # as a worker does
    model = option.load(settings.model)
    identity = identity_of(model)
    if time_tolerance is not None and reference is not None and reference.identity != identity:
        raise InvalidInput("--time-tolerance", f"the reference was timed with {reference.identity}, this is {identity}")
    paths = open_catalogue(settings).paths()
    classifier = ImageClassifier(settings.nsfw_threshold)
    gate = Gate(model, paths, load_judge(folder_of(settings.model)), classifier, settings.max_final_rows)
    made = gate.paint(cases, told)
    lines = [
        _line(option.name, pool, [one for one in made if one.pool == pool], reference, time_tolerance) for pool in POOLS
    ]
    return Outcome(option.name, identity, tuple(made), tuple(lines))


def keep(outcome: Outcome, folder: Path, reason: str) -> None:
    """Makes an outcome the reference.

    Raises: InvalidInput when a picture could not be painted, or is withheld.
    """
    failed = [one.name for one in outcome.made if not one.scores.allowed]
    if failed:
        raise InvalidInput("--write-reference", f"{', '.join(failed)} could not be shown; nothing was written")
    scores = {one.name: one.scores for one in outcome.made}
    paces = {line.pool: line.pace for line in outcome.lines}
    write_reference(folder, outcome.pictures, scores, paces, outcome.identity, outcome.option, reason)


def _line(
    option: str, pool: str, made: Sequence[Made], reference: Reference | None, time_tolerance: float | None
) -> Line:
    pace = pace_of(made)
    if reference is None:
        return Line(option, pool, len(made), figures_of([one.scores for one in made]), pace)
    compared = [reference.compared(one.name, one.picture, one.scores) for one in made]
    now = figures_of(compared)
    before = figures_of([reference.scores[one.name] for one in made if one.name in reference.scores])
    worse = regressions(pool, now, before)
    if time_tolerance is not None:
        worse += slowdowns(pool, pace, reference.paces[pool], time_tolerance)
    alike = [
        (score.ssim, f"{one.name} {one.case.prompt}") for one, score in zip(made, compared, strict=True) if score.ssim
    ]
    return Line(option, pool, len(made), now, pace, tuple(worse), min(alike)[1] if alike else None)
