"""The UNet without its Python: on a processor, a third of a small network's forward is spent between operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor

Forward = Callable[..., Tensor]
SETTLING_CALLS = 2  # the executor profiles a trace first and optimises it then


def can_trace(unet: UNet2DConditionModel) -> bool:
    """Whether a trace is right and pays: a network whose branches we know, in fp32 on a processor."""
    known = isinstance(unet, UNet2DConditionModel)
    return known and unet.device.type == "cpu" and unet.dtype is torch.float32


class TracedUNet:
    """Records the UNet's operations once a latent size and replays them: the same numbers, bit for bit.

    A trace shares the weights, and stays right where adapters are added and switched off again. It must not be used
    while they act: they are not in it. Owned by one thread.
    Source: torch.jit.trace; what it cannot record are branches of Python, and here these depend on `_key` alone.
    """

    def __init__(self, unet: UNet2DConditionModel) -> None:
        self._unet = unet
        self._traces: dict[tuple[int, int, bool], Forward] = {}

    def __call__(
        self, sample: Tensor, timesteps: Tensor, hidden: Tensor, pooled: Tensor, time_ids: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The network's output. The first call of a size takes about a second longer.

        Shapes: as `eager`.
        """
        given = (
            (sample, timesteps, hidden, pooled, time_ids)
            if mask is None
            else (sample, timesteps, hidden, pooled, time_ids, mask)
        )
        key = (sample.shape[2], sample.shape[3], mask is None)
        if key not in self._traces:
            self._traces[key] = self._trace(given)
        return self._traces[key](*given)

    def eager(
        self, sample: Tensor, timesteps: Tensor, hidden: Tensor, pooled: Tensor, time_ids: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The network's output, computed step by step in Python; acts with the adapters that are on.

        Shapes: sample [n, C, h, w]; timesteps [n]; hidden [n, 77 * k, D]; pooled [n, P]; time_ids [n, 6];
        mask [n, 77 * k] or None; result [n, C, h, w].
        """
        output: Tensor = self._unet(
            sample,
            timesteps,
            encoder_hidden_states=hidden,
            encoder_attention_mask=mask,
            added_cond_kwargs={"text_embeds": pooled, "time_ids": time_ids},
            return_dict=False,
        )[0]
        return output

    def _trace(self, given: tuple[Tensor, ...]) -> Forward:
        def forward(
            sample: Tensor, timesteps: Tensor, hidden: Tensor, pooled: Tensor, time_ids: Tensor, *mask: Tensor
        ) -> Tensor:
            return self.eager(sample, timesteps, hidden, pooled, time_ids, mask[0] if mask else None)

        example = tuple(torch.cat((part, part)) for part in given)  # two rows stand for any number, one does not
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of asserts on sizes, which are right for every call of this key
            traced: Forward = torch.jit.trace(forward, example, check_trace=False)  # type: ignore[no-untyped-call]
        for _ in range(SETTLING_CALLS):
            traced(*example)
        return traced
