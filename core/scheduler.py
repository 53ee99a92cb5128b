"""What runs together: decided at every step boundary from the queue, the deadlines and the measured costs.

Pure: tasks, a cost table and a time in, a decision out. The engine and the simulator play the same policies.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import accumulate, islice
from operator import itemgetter
from typing import Protocol

from core.cost import CostTable

NO_DEADLINE = math.inf
PATIENCE = 2.0  # a task that waited this many times its own duration is not passed any more
LEAST_PATIENCE_S = 2.0
BORNE_S, BORNE = 20.0, 8.0  # how long a person bears to wait, and how many times the work's own duration
MAX_PASSED = 8  # tasks that others pass at one boundary; looking further costs more than it finds
BENEFIT_OF_DOUBT = 0.9  # of the predicted time is what a running task must be sure to miss its deadline by


@dataclass(frozen=True, slots=True)
class Task:
    """A render as a policy sees it: rows network rows, steps still to do; styles as core.recipe spells them.

    Units: arrived_s and due_s on the clock that decide is given.
    """

    id: str
    bucket: str
    rows: int
    steps: int
    images: int = 1
    arrived_s: float = 0.0
    due_s: float = NO_DEADLINE
    styles: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a waiting render will take of a device, and when it is wanted. Units: work_s at full batches."""

    id: str
    work_s: float
    due_s: float


def claim_of(render_id: str, work_s: float, arrived_s: float, due_s: float) -> Claim:
    """A render without a deadline is wanted in a time that a person bears; it is never refused or given up for it."""
    borne_s = arrived_s + BORNE_S + BORNE * work_s
    return Claim(render_id, work_s, borne_s if due_s == NO_DEADLINE else due_s)


def done_at_s(order: Sequence[Claim], start_s: float, devices: float = 1) -> dict[str, float]:
    """When each is done if they follow each other from start_s on."""
    return {claim.id: end_s for claim, end_s in zip(order, _ends_s(order, start_s, devices), strict=True)}


def late_in(order: Sequence[Claim], start_s: float, devices: float = 1) -> set[str]:
    """Those that are done after they are wanted."""
    ends_s = _ends_s(order, start_s, devices)
    return {claim.id for claim, end_s in zip(order, ends_s, strict=True) if end_s > claim.due_s}


def _ends_s(order: Sequence[Claim], start_s: float, devices: float) -> Iterator[float]:
    return islice(accumulate((claim.work_s / devices for claim in order), initial=start_s), 1, None)


def best_order(fair: Sequence[Claim], start_s: float, devices: int = 1) -> list[Claim]:
    """The fair order while it makes as few late as the order of deadlines does, else the order of deadlines.

    Source: Jackson 1955: if any order makes nobody late, the order of deadlines does.
    """
    first_due = by_deadline(fair)
    return first_due if len(late_in(first_due, start_s, devices)) < len(late_in(fair, start_s, devices)) else [*fair]


def by_deadline(claims: Iterable[Claim]) -> list[Claim]:
    return sorted(claims, key=lambda claim: claim.due_s)


@dataclass(frozen=True, slots=True)
class Decision:
    """Ids of waiting tasks that join now, and of waiting or running ones that cannot meet their deadline any more."""

    admit: tuple[str, ...] = ()
    doomed: tuple[str, ...] = ()


class Policy(Protocol):
    def decide(self, running: Sequence[Task], waiting: Sequence[Task], now_s: float) -> Decision:
        """waiting in the order in which they are due to start, as far as the policy needs to look."""


class BatchingMode(StrEnum):
    STEP = "step"
    COHORT = "cohort"


class Forecast:
    """When tasks that run together are done, if nothing joins.

    Tasks of one bucket share a forward of at most max_rows network rows; buckets take turns, so that every task moves
    one step in each round. devices: how many share the queue.
    """

    def __init__(self, table: CostTable, max_rows: int, devices: int = 1) -> None:
        self._table = table
        self._step_s = cache(table.step_s)
        self._after_s = cache(table.after_s)
        self._work_s = cache(table.work_s)
        self.max_rows = max_rows
        self.devices = devices

    def alone_s(self, task: Task) -> float:
        """Seconds from now until a task that runs alone is done."""
        return self._denoise_s(task) + self._after_s(task.bucket, task.images)

    def together_s(self, tasks: Sequence[Task]) -> dict[str, float]:
        """Seconds from now until each is done."""
        return self._run(tasks, None)

    def after_first_s(self, tasks: Sequence[Task], late: Task) -> dict[str, float]:
        """The same where late joins as soon as the first of the others has denoised."""
        return self._run(tasks, late)

    def work_s(self, task: Task) -> float:
        """Seconds of the device that the task's share of full batches takes."""
        return self._work_s(task.bucket, task.steps, task.rows, self.max_rows)

    def round_s(self, tasks: Iterable[Task]) -> float:
        """Seconds in which every task moves one step."""
        return self._round_s(_rows_by_bucket(tasks))

    def _denoise_s(self, task: Task) -> float:
        return task.steps * self._table.stretch * self._forwards_s(task.bucket, task.rows)

    def _run(self, tasks: Sequence[Task], late: Task | None) -> dict[str, float]:
        """A task is done after as many rounds as it has steps, counted from the round in which it joins."""
        ends = sorted(((task.steps, task) for task in tasks), key=itemgetter(0))
        if late is not None:
            insort(ends, (ends[0][0] + late.steps, late), key=itemgetter(0))
        rows = _rows_by_bucket(tasks)
        done: dict[str, float] = {}
        elapsed_s, rounds = 0.0, 0
        for end, task in ends:
            if end > rounds:
                elapsed_s += (end - rounds) * self._round_s(rows)
                rounds = end
                if late is not None:
                    rows[late.bucket] = rows.get(late.bucket, 0) + late.rows
                    late = None
            done[task.id] = elapsed_s + self._after_s(task.bucket, task.images)
            rows[task.bucket] -= task.rows
        return done

    def _round_s(self, rows: Mapping[str, int]) -> float:
        return self._table.stretch * sum(self._forwards_s(bucket, count) for bucket, count in rows.items())

    def _forwards_s(self, bucket: str, rows: int) -> float:
        full, rest = divmod(rows, self.max_rows)
        rest_s = self._step_s(bucket, rest) if rest else 0.0
        return full * self._step_s(bucket, self.max_rows) + rest_s if full else rest_s


def _rows_by_bucket(tasks: Iterable[Task]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for task in tasks:
        rows[task.bucket] = rows.get(task.bucket, 0) + task.rows
    return rows


class StepBatching:
    """Tasks join at any step boundary, when joining now brings people their pictures sooner than waiting does.

    A task joins what runs if that makes nobody late, and if the sum of the times until all are done is no larger than
    when it waits for the first to finish; or if waiting would make it late itself. So batches grow where a larger one
    costs little more, short tasks pass long ones, and on a device that larger ones slow in proportion they stay small.
    """

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast

    def decide(self, running: Sequence[Task], waiting: Sequence[Task], now_s: float) -> Decision:
        doomed = _doomed(self._forecast, running, waiting, now_s)
        chosen = [task for task in running if task.id not in doomed]
        admitted: list[str] = []
        passed: list[Task] = []
        alone_s = self._forecast.together_s(chosen)
        for task in self._in_order([task for task in waiting if task.id not in doomed], chosen, now_s):
            if self._joins(chosen, alone_s, task, now_s) and self._may_pass(passed, task, chosen, now_s):
                chosen.append(task)
                admitted.append(task.id)
                alone_s = self._forecast.together_s(chosen)
                continue
            passed.append(task)
            if len(passed) == MAX_PASSED or self._waited_enough(task, now_s):
                break
        return Decision(tuple(admitted), tuple(sorted(doomed)))

    def _may_pass(self, passed: Sequence[Task], task: Task, chosen: Sequence[Task], now_s: float) -> bool:
        """Whether those that wait before it can be in time all the same."""
        claims = [self._claim(other) for other in passed]
        start_s = now_s + sum(self._forecast.work_s(other) for other in chosen)
        later_s = start_s + self._forecast.work_s(task) / self._forecast.devices
        return late_in(claims, later_s, self._forecast.devices) <= late_in(claims, start_s, self._forecast.devices)

    def _claim(self, task: Task) -> Claim:
        """What follows denoising is taken off the deadline."""
        work_s = self._forecast.work_s(task)
        return claim_of(task.id, work_s, task.arrived_s, task.due_s - max(0.0, self._forecast.alone_s(task) - work_s))

    def _in_order(self, waiting: Sequence[Task], chosen: Sequence[Task], now_s: float) -> list[Task]:
        """As the queue has them, unless the order of deadlines makes fewer late. Who waited long enough stays first."""
        patient = [task for task in waiting if not self._waited_enough(task, now_s)]
        tasks = {task.id: task for task in patient}
        claims = [self._claim(task) for task in patient]
        start_s = now_s + sum(self._forecast.work_s(task) for task in chosen)
        first = [task for task in waiting if task.id not in tasks]
        return first + [tasks[claim.id] for claim in best_order(claims, start_s, self._forecast.devices)]

    def _joins(self, chosen: Sequence[Task], alone_s: Mapping[str, float], task: Task, now_s: float) -> bool:
        """alone_s: until each of the chosen is done without the task."""
        if not chosen:
            return True
        if sum(other.rows for other in chosen) + task.rows > self._forecast.max_rows:
            return False
        together = self._forecast.together_s([*chosen, task])
        if any(now_s + alone_s[other.id] <= other.due_s < now_s + together[other.id] for other in chosen):
            return False
        apart = self._forecast.after_first_s(chosen, task)
        if now_s + together[task.id] <= task.due_s < now_s + apart[task.id]:
            return True
        return sum(together.values()) <= sum(apart.values())

    def _waited_enough(self, task: Task, now_s: float) -> bool:
        return now_s - task.arrived_s > max(LEAST_PATIENCE_S, PATIENCE * self._forecast.alone_s(task))


class CohortBatching:
    """Tasks of one bucket start together, and nothing joins until all of them are done: what most servers do."""

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast

    def decide(self, running: Sequence[Task], waiting: Sequence[Task], now_s: float) -> Decision:
        doomed = _doomed(self._forecast, running, waiting, now_s)
        able = [task for task in waiting if task.id not in doomed]
        cohort: list[Task] = []
        if able and not any(task.id not in doomed for task in running):
            for task in able:
                fits = sum(other.rows for other in cohort) + task.rows <= self._forecast.max_rows
                if not cohort or (task.bucket == cohort[0].bucket and fits):
                    cohort.append(task)
        return Decision(tuple(task.id for task in cohort), tuple(sorted(doomed)))


def policy_of(mode: BatchingMode, table: CostTable, max_rows: int, devices: int = 1) -> Policy:
    """A policy over the newest costs; cheap to make anew at every boundary."""
    forecast = Forecast(table, max_rows, max(1, devices))
    return CohortBatching(forecast) if mode is BatchingMode.COHORT else StepBatching(forecast)


def _doomed(forecast: Forecast, running: Sequence[Task], waiting: Sequence[Task], now_s: float) -> set[str]:
    """Those that would be late even if they ran alone from now on; what has begun is given up less readily."""
    late = {task.id for task in waiting if now_s + forecast.alone_s(task) > task.due_s}
    return late | {task.id for task in running if now_s + BENEFIT_OF_DOUBT * forecast.alone_s(task) > task.due_s}
