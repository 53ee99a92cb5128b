"""The UNet without its Python: on a processor, a third of a small network's forward is spent between operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor

from sampling.encoder import CHUNK_TOKENS

SETTLING_CALLS = 2  # the executor profiles a trace first and optimises it then
ODD = 13  # latents a side of the example: sizes that do not halve evenly take the branch that is right for all sizes


def can_trace(unet: UNet2DConditionModel) -> bool:
    """Whether a trace is right and pays: a network whose branches we know, in fp32 on a processor."""
    known = isinstance(unet, UNet2DConditionModel)
    return known and unet.device.type == "cpu" and unet.dtype is torch.float32


class TracedUNet:
    """Records the UNet's operations once and replays them: the same numbers, bit for bit, for every size and batch.

    A trace shares the weights, and stays right where adapters are added and switched off again. It must not be used
    while they act: they are not in it. Owned by one thread.
    Source: torch.jit.trace; what it cannot record are branches of Python, and here these depend on the mask, with
    which the network runs in Python, and on whether sizes halve evenly.
    """

    def __init__(self, unet: UNet2DConditionModel) -> None:
        self._unet = unet
        self._trace: Callable[..., Tensor] | None = None

    def __call__(
        self, sample: Tensor, timesteps: Tensor, hidden: Tensor, pooled: Tensor, time_ids: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The network's output. The first call takes about a second longer.

        Shapes: as `eager`.
        """
        if mask is not None:
            return self.eager(sample, timesteps, hidden, pooled, time_ids, mask)
        if self._trace is None:
            self._trace = self._record(sample, hidden, pooled, time_ids)
        return self._trace(sample, timesteps, hidden, pooled, time_ids)

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

    def _record(self, sample: Tensor, hidden: Tensor, pooled: Tensor, time_ids: Tensor) -> Callable[..., Tensor]:
        def forward(sample: Tensor, timesteps: Tensor, hidden: Tensor, pooled: Tensor, time_ids: Tensor) -> Tensor:
            return self.eager(sample, timesteps, hidden, pooled, time_ids, None)

        example = (
            torch.zeros(2, sample.shape[1], ODD, ODD),  # two rows stand for any number, one does not
            torch.tensor([1.0, 2.0]),
            torch.zeros(2, CHUNK_TOKENS, hidden.shape[2]),
            torch.zeros(2, pooled.shape[1]),
            torch.zeros(2, time_ids.shape[1]),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of asserts on sizes, which hold for every size
            traced: Callable[..., Tensor] = torch.jit.trace(forward, example, check_trace=False)  # type: ignore[no-untyped-call]
        for _ in range(SETTLING_CALLS):
            traced(*example)
        return traced
