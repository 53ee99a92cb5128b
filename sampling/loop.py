"""The step loop: rows join and leave at step boundaries, rows of one key share a forward wherever they stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.errors import NonFinite
from core.profile import Bucket
from sampling.bank import Bank
from sampling.denoiser import Denoiser
from sampling.rows import Row
from sampling.stepping import advance

BATCH_TOLERANCE = 8e-5  # largest difference of a row's fp32 CPU latents between running alone and in any batch
Failure = tuple[Row, Exception]


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did; rows that finished or failed have left the loop.

    Units: seconds of wall time. batch_size and network_rows are 0 and bucket None when no row was ready; rows whose
    styles cannot be had may have failed all the same.
    """

    finished: list[Row] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    stepped: list[Row] = field(default_factory=list)
    batch_size: int = 0
    network_rows: int = 0
    bucket: Bucket | None = None
    seconds: float = 0.0


class StepLoop:
    """Owned by one thread; holds no lock."""

    def __init__(self, denoiser: Denoiser, bank: Bank, max_network_rows: int, clock: Callable[[], float]) -> None:
        self._denoiser = denoiser
        self._bank = bank
        self._max_network_rows = max_network_rows
        self._clock = clock
        self._rows: dict[str, Row] = {}  # in the order in which they are due: a row that stepped goes to the end

    @property
    def denoiser(self) -> Denoiser:
        return self._denoiser

    @property
    def max_network_rows(self) -> int:
        return self._max_network_rows

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def join(self, row: Row) -> None:
        """Takes a row from the next step on.

        Raises: InvalidInput when its schedule or latents do not fit; ValueError when its id is here already.
        """
        if row.id in self._rows:
            raise ValueError(f"row {row.id} is in the loop already")
        self._denoiser.prepare(row)
        self._rows[row.id] = row
        self._bank.enter(row)

    def leave(self, row_id: str) -> bool:
        """Drops a row; False when it is not here (any more)."""
        self._bank.leave(row_id)
        return self._rows.pop(row_id, None) is not None

    def step(self) -> StepReport:
        """Settle, pick, denoise, advance, retire: one step of the group that waited longest.

        Rows whose styles are not at hand yet are left out; where there are no others, nothing is done.
        """
        started_s = self._clock()
        refused = self._bank.settle()
        self._retire([], [row for row, _ in refused])
        group = self._pick()
        if not group and not refused:
            return StepReport()
        denoised, failed = self._denoise(group)
        stepped = list(denoised)
        advance(stepped, [denoised[row] for row in stepped])
        finished = [row for row in stepped if row.done]
        self._retire(stepped, [*finished, *(row for row, _ in failed)])
        return StepReport(
            finished=finished,
            failed=[*refused, *failed],
            stepped=stepped,
            batch_size=len(group),
            network_rows=sum(row.network_rows for row in group),
            bucket=group[0].bucket if group else None,
            seconds=self._clock() - started_s,
        )

    def _pick(self) -> list[Row]:
        """The ready row that is due first, then those that can share its forward, up to the network rows allowed."""
        group: list[Row] = []
        room = self._max_network_rows
        for row in self._rows.values():
            if not row.ready:
                continue
            fits = not group or (row.network_rows <= room and row.batch_key == group[0].batch_key)
            if fits:
                group.append(row)
                room -= row.network_rows
        return group

    def _retire(self, stepped: Sequence[Row], leaving: Sequence[Row]) -> None:
        for row in leaving:
            self.leave(row.id)
        for row in stepped:
            if row.id in self._rows:
                self._rows[row.id] = self._rows.pop(row.id)

    def _denoise(self, group: Sequence[Row]) -> tuple[dict[Row, Tensor], list[Failure]]:
        """x0 estimates of the rows that gave a finite one; the rest with why."""
        if not group:
            return {}, []
        denoised: dict[Row, Tensor] = {}
        failed: list[Failure] = []
        for row, outcome in self._forward(group):
            if isinstance(outcome, Exception):
                failed.append((row, outcome))
            else:
                denoised[row] = outcome
        return denoised, failed

    def _forward(self, group: Sequence[Row]) -> list[tuple[Row, Tensor | Exception]]:
        """One forward for all; where it raises, one for each, so that a row takes down no other."""
        try:
            estimates = self._denoiser(group)
            finite = torch.isfinite(estimates).flatten(1).all(dim=1).tolist()
        except Exception as error:
            if len(group) == 1:
                return [(group[0], error)]
            return [outcome for row in group for outcome in self._forward([row])]
        return [
            (row, estimate if good else self._retry(row))
            for row, estimate, good in zip(group, estimates, finite, strict=True)
        ]

    def _retry(self, row: Row) -> Tensor | Exception:
        """A row that is not finite gets one more chance, in fp32."""
        if self._denoiser.dtype is not torch.float32 and bool(torch.isfinite(row.latents).all()):
            try:
                estimate = self._denoiser.in_float32(row)[0]
            except Exception as error:
                return error
            if bool(torch.isfinite(estimate).all()):
                return estimate
        return NonFinite.of(f"step {row.step_index + 1} of {row.steps} gave values that are not finite", row.styles)
