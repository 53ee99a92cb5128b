"""FLUX's forward: one pass a row, whose timestep and guidance are inputs; latents go in packed two by two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from torch import Tensor

from sampling.compiled import CompiledNetwork, Given
from sampling.flow import FlowSchedule
from sampling.packs import Layout
from sampling.rows import Row
from sampling.slots import Acting, OneThread, install

TRAIN_STEPS = 1000


@dataclass(frozen=True, slots=True)
class FluxInputs:
    """What stays the same while the same rows step together.

    guidance is None where the network takes none; acting is what the rows' styles add, None where no row has any.
    Shapes: prompt_embeds [n, T, D]; pooled [n, P]; guidance [n]; text_ids [T, 3]; image_ids [tokens, 3].
    """

    prompt_embeds: Tensor
    pooled: Tensor
    guidance: Tensor | None
    text_ids: Tensor
    image_ids: Tensor
    acting: Acting | None


class FluxForward:
    """Owned by one thread. compiled: the network as the compiler made it, where it is compiled.

    Source: diffusers' FluxPipeline; the network answers with the velocity noise - x0.
    """

    def __init__(
        self,
        transformer: FluxTransformer2DModel,
        schedule: FlowSchedule,
        device: torch.device,
        compiled: CompiledNetwork | None,
    ) -> None:
        self.compiled = compiled
        self._transformer = transformer
        self._assignment = install(transformer, OneThread()) if compiled is None else None
        self._layout = Layout()
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
            acting=self._layout.acting([row.placed for row in rows], self._device, dtype),
        )

    def estimate(self, rows: Sequence[Row], given: FluxInputs, dtype: torch.dtype) -> Tensor:
        """x0 estimates. Shapes: [n, C, h, w] fp32."""
        x = torch.stack([row.latents for row in rows])
        sigma = torch.tensor([row.sigma for row in rows], dtype=torch.float32, device=self._device)
        timesteps = torch.tensor([row.timesteps[row.step_index] for row in rows], device=self._device)
        tokens, times = packed(x, self._patch).to(dtype), timesteps.to(dtype) / TRAIN_STEPS
        guidance = () if given.guidance is None else (given.guidance,)
        answer = self._run(
            (tokens, times, given.prompt_embeds, given.pooled, *guidance),
            (given.text_ids, given.image_ids),
            given.acting,
        )
        height, width = x.shape[-2:]
        return x - unpacked(answer.float(), self._patch, height, width) * sigma.view(-1, 1, 1, 1)

    def _run(self, given: Given, shared: Given, acting: Acting | None) -> Tensor:
        if self.compiled is not None:
            return self.compiled(given, shared, acting)
        assert self._assignment is not None  # where nothing is compiled
        self._assignment.acting = acting
        try:
            return run_flux(self._transformer, given, shared)
        finally:
            self._assignment.acting = None


def run_flux(transformer: FluxTransformer2DModel, given: Given, shared: Given) -> Tensor:
    """The network's output.

    Shapes: given are tokens [n, T', C], timesteps [n], prompt_embeds [n, T, D], pooled [n, P] and, where the network
    reads it, guidance [n]; shared are text_ids [T, 3] and image_ids [T', 3]; result [n, T', C].
    """
    tokens, timesteps, embeds, pooled, *guidance = given
    answer: Tensor = transformer(
        hidden_states=tokens,
        timestep=timesteps,
        guidance=guidance[0] if guidance else None,
        pooled_projections=pooled,
        encoder_hidden_states=embeds,
        txt_ids=shared[0],
        img_ids=shared[1],
        return_dict=False,
    )[0]
    return answer


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
