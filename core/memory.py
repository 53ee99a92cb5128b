"""How many network rows the memory of a device has room for, from two measured peaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

HEADROOM = 0.15  # of the memory, for what was not measured: fragments, other styles, other work on the machine
GUIDED_ROWS = 2  # below this nothing with guidance can be painted


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that was in use while so many network rows of the largest size and the longest prompt ran."""

    rows: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory on a line over the rows. rows: how many fit, at most what was asked for.

    Units: bytes; base_bytes is what is in use before the first row, row_bytes what each adds, budget_bytes what may be
    used. missing_bytes is what the rows of one guided picture lack, 0 where they fit.
    """

    base_bytes: int
    row_bytes: int
    budget_bytes: int
    rows: int

    @property
    def missing_bytes(self) -> int:
        return max(0, self.base_bytes + GUIDED_ROWS * self.row_bytes - self.budget_bytes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> MemoryPlan:
        """Raises: KeyError, TypeError or ValueError where they are no plan."""
        return cls(**{name: int(fields[name]) for name in cls.__dataclass_fields__})


def plan_rows(few: Peak, many: Peak, memory_bytes: int, headroom: float = HEADROOM) -> MemoryPlan:
    """Rows that fit into the memory less its headroom (a share of it).

    Raises: ValueError for peaks of one number of rows.
    """
    if many.rows <= few.rows:
        raise ValueError("two peaks of different rows are needed")
    row_bytes = max(0, many.peak_bytes - few.peak_bytes) // (many.rows - few.rows)
    base_bytes = max(0, few.peak_bytes - few.rows * row_bytes)
    budget_bytes = int(memory_bytes * (1 - headroom))
    room = budget_bytes - base_bytes
    fits = many.rows if row_bytes == 0 and room >= 0 else max(0, room) // max(1, row_bytes)
    return MemoryPlan(base_bytes, row_bytes, budget_bytes, min(many.rows, fits))
