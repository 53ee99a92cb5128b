"""The network as one contract: rows at any noise level in, their estimates of x0 out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from core.profile import Limits
from sampling.compiled import CompiledNetwork
from sampling.flow import FlowSchedule
from sampling.flux_forward import FluxForward, run_flux
from sampling.model import Model, PoolName
from sampling.rows import Row
from sampling.stepping import begin
from sampling.unet_forward import UNetForward, run_compiled


class Forward(Protocol):
    """How rows become one forward of a family's network, and its answer their x0 estimates."""

    compiled: CompiledNetwork | None

    def gather(self, rows: Sequence[Row], dtype: torch.dtype) -> Any:
        """What stays the same while these rows step together."""

    def estimate(self, rows: Sequence[Row], given: Any, dtype: torch.dtype) -> Tensor:
        """Shapes: [n, C, h, w] fp32, after guidance. given: what was gathered for these rows."""


class Denoiser:
    """Runs one pool's network; owned by one thread. backend: of the compiler, where the model is compiled."""

    def __init__(self, model: Model, pool: PoolName, backend: str = "inductor") -> None:
        self.network = model.network(pool)
        self.device, self.dtype = model.device, model.dtype
        self._forward: Forward = forward_of(model, pool, backend)
        self.compiled = self._forward.compiled
        self._model, self._pool = model, pool
        self._gathered: tuple[tuple[Row, ...], torch.dtype, Any] | None = None

    @property
    def unserved(self) -> int:
        """Steps since the warm-up for which nothing that was compiled fitted."""
        return 0 if self.compiled is None else self.compiled.unserved

    @property
    def limits(self) -> Limits:
        return self._model.profile.limits

    def prepare(self, row: Row) -> None:
        """Raises: InvalidInput for a schedule or latents that do not fit."""
        begin(row, self._model, self._pool)

    def __call__(self, rows: Sequence[Row]) -> Tensor:
        """x0 estimates after guidance. Shapes: [n, C, h, w] fp32."""
        return self._denoise(tuple(rows), self.dtype)

    def in_float32(self, row: Row) -> Tensor:
        """The same for one row with the network in fp32, for when a lower precision overflowed.

        Quantised weights and offloaded ones cannot be turned up: these rows get the same again.
        """
        if self._model.tuning.quantised or self._model.tuning.offload:
            return self._denoise((row,), self.dtype)
        self.network.float()
        try:
            return self._denoise((row,), torch.float32)
        finally:
            self.network.to(self.dtype)
            self._gathered = None

    @torch.no_grad()
    def _denoise(self, rows: tuple[Row, ...], dtype: torch.dtype) -> Tensor:
        """What rows have in common is gathered when they change, not every step."""
        if self._gathered is None or self._gathered[:2] != (rows, dtype):
            self._gathered = rows, dtype, self._forward.gather(rows, dtype)
        return self._forward.estimate(rows, self._gathered[2], dtype)


def forward_of(model: Model, pool: PoolName, backend: str) -> Forward:
    """The forward of the model's family, compiled where the model is to be."""
    network, schedule = model.network(pool), model.schedules[pool]
    run = run_flux if isinstance(schedule, FlowSchedule) else run_compiled
    compiled = CompiledNetwork(network, run, model, backend) if model.tuning.compiles else None
    if isinstance(schedule, FlowSchedule):
        return FluxForward(network, schedule, model.device, compiled)
    return UNetForward(network, schedule, model.device, compiled)
