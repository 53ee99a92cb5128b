"""The UNet without its Python: on a processor, a third of a small network's forward is spent between operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor

from sampling.embedding import CHUNK_TOKENS
from sampling.slots import Acting, OneThread, Place, install

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""What each row of SDXL's UNet is given: sample [n, C, h, w], timesteps [n], hidden [n, 77 * k, D], pooled [n, P] and
time_ids [n, 6]."""
INPUTS = 5
ODD = 13  # latents a side of the example: sizes that do not halve evenly take the branch that is right for all sizes


def can_trace(unet: UNet2DConditionModel) -> bool:
    """Whether a trace is right and pays: a network whose branches we know, in fp32 on a processor."""
    known = isinstance(unet, UNet2DConditionModel) and unet.device.type == "cpu"
    plain = (type(weight.data) is Tensor and weight.dtype is torch.float32 for weight in unet.parameters())
    return known and all(plain)


class TracedUNet:
    """Records the UNet's operations once and replays them: the same numbers, bit for bit, for every size and batch.

    Rows without styles replay the network as it is; with styles, what acts is an input of a second recording, which is
    made anew when styles act on layers that none acted on before. A trace shares the weights. Owned by one thread.
    Source: torch.jit.trace; what it cannot record are branches of Python, and here these depend on the mask, with
    which the network runs in Python, and on whether sizes halve evenly.
    """

    def __init__(self, unet: UNet2DConditionModel) -> None:
        self._unet = unet
        self._assignment = install(unet, OneThread())
        self._plain: Callable[..., Tensor] | None = None
        self._styled: Callable[..., Tensor] | None = None
        self._places: Mapping[str, Place] = {}

    def __call__(self, given: Inputs, mask: Tensor | None, acting: Acting | None = None) -> Tensor:
        """The network's output. The first call, and the first with styles, takes about a second longer.

        Shapes: mask [n, 77 * k] or None; result [n, C, h, w].
        """
        if mask is not None:
            return self.eager(given, mask, acting)
        if acting is None:
            self._plain = self._plain or self._record(given, None)
            return _replay(self._plain, *given)
        if self._styled is None or self._places is not acting.places:
            self._styled, self._places = self._record(given, acting), acting.places
        return _replay(self._styled, *given, acting.down, acting.up)

    def eager(self, given: Inputs, mask: Tensor | None, acting: Acting | None = None) -> Tensor:
        """The network's output, computed step by step in Python. Shapes: as a call's."""
        self._assignment.acting = acting
        try:
            return run_unet(self._unet, given, mask)
        finally:
            self._assignment.acting = None

    def _record(self, given: Inputs, acting: Acting | None) -> Callable[..., Tensor]:
        sample, _, hidden, pooled, time_ids = given
        example: tuple[Any, ...] = (
            torch.zeros(2, sample.shape[1], ODD, ODD),  # two rows stand for any number, one does not
            torch.tensor([1.0, 2.0]),
            torch.zeros(2, CHUNK_TOKENS, hidden.shape[2]),
            torch.zeros(2, pooled.shape[1]),
            torch.zeros(2, time_ids.shape[1]),
        )
        if acting is not None:
            example += tuple(
                tuple(torch.zeros(len(part), 2, *part.shape[2:]) for part in parts)
                for parts in (acting.down, acting.up)
            )
        places = {} if acting is None else acting.places

        def forward(*given: Any) -> Tensor:
            inputs, parts = given[:INPUTS], given[INPUTS:]
            return self.eager(inputs, None, Acting(places, *parts) if parts else None)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of asserts on sizes, which hold for every size
            traced: Callable[..., Tensor] = torch.jit.trace(forward, example, check_trace=False)  # type: ignore[no-untyped-call]
        return traced


def run_unet(unet: UNet2DConditionModel, given: Inputs, mask: Tensor | None) -> Tensor:
    """The network's output. Shapes: as a call of TracedUNet."""
    sample, timesteps, hidden, pooled, time_ids = given
    output: Tensor = unet(
        sample,
        timesteps,
        encoder_hidden_states=hidden,
        encoder_attention_mask=mask,
        added_cond_kwargs={"text_embeds": pooled, "time_ids": time_ids},
        return_dict=False,
    )[0]
    return output


def _replay(trace: Callable[..., Tensor], *given: Any) -> Tensor:
    """As it was recorded: the executor's optimising takes half a second or more and gains nothing here."""
    with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
        return trace(*given)
