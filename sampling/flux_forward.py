"""FLUX's forward: one pass a row, whose timestep and guidance are inputs; latents go in packed two by two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from torch import Tensor

from sampling.flow import FlowSchedule
from sampling.rows import Row
from sampling.slots import OneThread, install

TRAIN_STEPS = 1000


@dataclass(frozen=True, slots=True)
class FluxInputs:
    """What stays the same while the same rows step together.

    guidance is None where the network takes none.
    Shapes: prompt_embeds [n, T, D]; pooled [n, P]; guidance [n]; text_ids [T, 3]; image_ids [tokens, 3].
    """

    prompt_embeds: Tensor
    pooled: Tensor
    guidance: Tensor | None
    text_ids: Tensor
    image_ids: Tensor


class FluxForward:
    """Owned by one thread.

    Source: diffusers' FluxPipeline; the network answers with the velocity noise - x0.
    """

    def __init__(self, transformer: FluxTransformer2DModel, schedule: FlowSchedule, device: torch.device) -> None:
        self._transformer = transformer
        install(transformer, OneThread())  # layers that turn up weights held in less than they compute in
        self._patch = schedule.patch
        self._guided = bool(transformer.config.guidance_embeds)
        self._device = device

    def gather(self, rows: Sequence[Row], dtype: torch.dtype) -> FluxInputs:
        """What stays the same while these rows step together."""
        texts = [row.embedding for row in rows]
        embeds = torch.cat([text.prompt_embeds for text in texts]).to(self._device, dtype)
        scales = torch.tensor([row.guidance_scale for row in rows], dtype=torch.float32, device=self._device)
        height, width = (side // self._patch for side in rows[0].latents.shape[-2:])
        return FluxInputs(
            prompt_embeds=embeds,
            pooled=torch.cat([text.pooled for text in texts]).to(self._device, dtype),
            guidance=scales if self._guided else None,
            text_ids=torch.zeros(embeds.shape[1], 3, device=self._device, dtype=dtype),
            image_ids=_places(height, width).to(self._device, dtype),
        )

    def estimate(self, rows: Sequence[Row], given: FluxInputs, dtype: torch.dtype) -> Tensor:
        """x0 estimates. Shapes: [n, C, h, w] fp32."""
        x = torch.stack([row.latents for row in rows])
        sigma = torch.tensor([row.sigma for row in rows], dtype=torch.float32, device=self._device)
        timesteps = torch.tensor([row.timesteps[row.step_index] for row in rows], device=self._device)
        answer = self._transformer(
            hidden_states=packed(x, self._patch).to(dtype),
            timestep=timesteps.to(dtype) / TRAIN_STEPS,
            guidance=given.guidance,
            pooled_projections=given.pooled,
            encoder_hidden_states=given.prompt_embeds,
            txt_ids=given.text_ids,
            img_ids=given.image_ids,
            return_dict=False,
        )[0]
        height, width = x.shape[-2:]
        return x - unpacked(answer.float(), self._patch, height, width) * sigma.view(-1, 1, 1, 1)


def packed(latents: Tensor, patch: int) -> Tensor:
    """Patches as tokens. Shapes: [n, C, h, w] to [n, (h / p) * (w / p), C * p * p]."""
    count, channels, height, width = latents.shape
    split = latents.view(count, channels, height // patch, patch, width // patch, patch)
    return split.permute(0, 2, 4, 1, 3, 5).reshape(count, -1, channels * patch**2)


def unpacked(tokens: Tensor, patch: int, height: int, width: int) -> Tensor:
    """The way back. Shapes: [n, (h / p) * (w / p), C * p * p] to [n, C, h, w]."""
    count, _, numbers = tokens.shape
    split = tokens.view(count, height // patch, width // patch, numbers // patch**2, patch, patch)
    return split.permute(0, 3, 1, 4, 2, 5).reshape(count, -1, height, width)


def _places(height: int, width: int) -> Tensor:
    """Where each token lies: 0, its row, its column. Shapes: [height * width, 3] fp32."""
    axes = (torch.zeros(1), torch.arange(height, dtype=torch.float32), torch.arange(width, dtype=torch.float32))
    return torch.cartesian_prod(*axes)
