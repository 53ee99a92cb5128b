"""Measured costs, shared so that the web process can predict what a worker will take."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Callable, Collection
from time import monotonic, time
from typing import cast

import redis

from core.cost import ANY, CostMeter, CostTable, Part, Seconds
from shared_cache import keys

log = logging.getLogger(__name__)
FRESH_S = 3600.0
SAVE_EVERY_S = 1.0


class Costs:
    """One table a worker role and device; each holds the parts that were measured there."""

    def __init__(self, client: redis.Redis, model_version: str, clock: Callable[[], float] = time) -> None:
        self._redis = client
        self._key = keys.costs(model_version)
        self._clock = clock

    def load(self) -> CostTable:
        """Each part of the slowest that measures it; a guess where nothing was measured.

        A promise has to hold on whichever worker takes the render.
        """
        tables = self._tables()
        if not tables:
            return CostTable()
        seconds = {part: _slowest([table.seconds for table in tables], part) for part in Part}
        known = {part: shapes for part, shapes in seconds.items() if shapes}
        caution = statistics.median([table.caution for table in tables if Part.STEP in table.seconds] or [1.0])
        return CostTable(known, max(table.stretch for table in tables), caution)

    def save(self, name: str, table: CostTable) -> None:
        self._redis.hset(self._key, name, json.dumps({"at": self._clock(), **table.to_dict()}))

    def _tables(self) -> list[CostTable]:
        """Those written in the hour before the newest."""
        read = [_read(text) for text in cast(list[bytes], self._redis.hvals(self._key))]
        dated = [found for found in read if found is not None]
        newest_s = max((at for at, _ in dated), default=0.0)
        return [table for at, table in dated if at > newest_s - FRESH_S]


class LiveCosts:
    """A role's own measurements, kept up to date for everybody. Owned by the role's thread.

    parts: those that the role measures; of the others it knows what was stored, and tells nobody.
    """

    def __init__(
        self,
        costs: Costs,
        name: str,
        stored: CostTable,
        parts: Collection[Part] = tuple(Part),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._costs = costs
        self._name = name
        self._parts = parts
        self._meter = CostMeter(stored)
        self._clock = clock
        self._saved_s = -SAVE_EVERY_S
        self.table = stored
        if stored.only(parts).seconds:
            self._refresh()  # promises are made before the first render was measured

    def observe(self, part: Part, seconds: float, count: int = 1, bucket: str = ANY) -> None:
        self._meter.observe(part, seconds, count, bucket)
        self._refresh()

    def observe_stretch(self, ratio: float) -> None:
        self._meter.observe_stretch(ratio)

    def observe_promise(self, kept: bool) -> None:
        self._meter.observe_promise(kept)

    def step_drift(self, bucket: str, rows: int) -> float | None:
        """See CostMeter.step_drift."""
        return self._meter.step_drift(bucket, rows)

    def _refresh(self) -> None:
        now_s = self._clock()
        if now_s - self._saved_s > SAVE_EVERY_S:
            self._saved_s = now_s
            self.table = self._meter.table()
            self._costs.save(self._name, self.table.only(self._parts))


def _read(text: bytes) -> tuple[float, CostTable] | None:
    try:
        return float(json.loads(text)["at"]), CostTable.from_json(text)
    except (ValueError, KeyError, TypeError) as error:
        log.error("a table of costs cannot be read: %r", error)
        return None


def _slowest(tables: list[Seconds], part: Part) -> dict[str, dict[int, float]]:
    known = [shapes for table in tables if (shapes := table.get(part))]
    if not known:
        return {}

    def mean_s(shapes: object) -> float:
        assert isinstance(shapes, dict)
        return statistics.fmean(s / n for counts in shapes.values() for n, s in counts.items())

    return cast(dict[str, dict[int, float]], max(known, key=mean_s))
