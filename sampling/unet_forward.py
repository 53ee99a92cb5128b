"""SDXL's forward: guided rows run twice, prompts of several chunks are padded behind a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor

from sampling.compiled import CompiledNetwork, Given
from sampling.embedding import CHUNK_TOKENS, Embedding
from sampling.packs import Layout
from sampling.rows import Row
from sampling.schedule import Schedule
from sampling.slots import Acting
from sampling.traced import Inputs, TracedUNet, can_trace, run_unet


@dataclass(frozen=True, slots=True)
class Conditioning:
    """What stays the same while the same rows step together; negatives of the guided rows come first.

    Shapes: m guided of n rows; prompt_embeds [m + n, 77 * k, D]; pooled [m + n, P]; time_ids [m + n, 6];
    mask [m + n, 77 * k] or None where no row needs padding; guided [m]; guidance [m, 1, 1, 1]. acting is what the rows'
    styles add, None where no row has any.
    """

    prompt_embeds: Tensor
    pooled: Tensor
    time_ids: Tensor
    mask: Tensor | None
    guided: Tensor
    guidance: Tensor
    acting: Acting | None


class UNetForward:
    """Owned by one thread. compiled: the network as the compiler made it, where it is compiled.

    Source: Karras et al. 2022, preconditioning; diffusers' EulerDiscreteScheduler for v_prediction.
    """

    def __init__(
        self, unet: UNet2DConditionModel, schedule: Schedule, device: torch.device, compiled: CompiledNetwork | None
    ) -> None:
        self.compiled = compiled
        self._traced = TracedUNet(unet) if compiled is None else None
        self._replays = can_trace(unet)
        self._layout = Layout()
        self._device = device
        self._predicts_v = schedule.predicts_v

    def estimate(self, rows: Sequence[Row], given: Conditioning, dtype: torch.dtype) -> Tensor:
        """x0 estimates after guidance. Shapes: [n, C, h, w] fp32."""
        x = torch.stack([row.latents for row in rows])
        sigma = self._column([row.sigma for row in rows])
        scale = (1 + sigma**2).sqrt()
        timesteps = torch.tensor([float(row.timesteps[row.step_index]) for row in rows], device=self._device)
        sample = (x / scale).to(dtype)
        samples, times = (torch.cat([part[given.guided], part]) for part in (sample, timesteps))
        inputs = (samples, times, given.prompt_embeds, given.pooled, given.time_ids)
        output = self._run(inputs, given.mask, given.acting)
        prediction = self._guide(output.float(), given)
        if self._predicts_v:
            return x / scale**2 - prediction * (sigma / scale)
        return x - prediction * sigma

    def _run(self, given: Inputs, mask: Tensor | None, acting: Acting | None) -> Tensor:
        if self.compiled is not None:
            return self.compiled(given, () if mask is None else (mask,), acting)
        assert self._traced is not None  # one of the two
        return (self._traced if self._replays else self._traced.eager)(given, mask, acting)

    def gather(self, rows: Sequence[Row], dtype: torch.dtype) -> Conditioning:
        """What stays the same while these rows step together."""
        guided = [i for i, row in enumerate(rows) if row.guided]
        negatives = [row.negative for row in rows if row.guided and row.negative is not None]
        texts = [*negatives, *(row.embedding for row in rows)]
        chunks = max(row.chunks for row in rows)
        bucket = rows[0].bucket
        placed = [row.placed for row in (*(rows[i] for i in guided), *rows)]  # negatives too are painted in the styles
        size = [float(side) for side in (bucket.height, bucket.width, 0, 0, bucket.height, bucket.width)]
        return Conditioning(
            prompt_embeds=torch.cat([_padded(text, chunks) for text in texts]).to(self._device, dtype),
            pooled=torch.cat([text.pooled for text in texts]).to(self._device, dtype),
            time_ids=torch.tensor([size] * len(texts), device=self._device, dtype=dtype),
            mask=_mask(texts, chunks, self._device),
            guided=torch.tensor(guided, dtype=torch.long, device=self._device),
            guidance=self._column([rows[i].guidance_scale for i in guided]),
            acting=self._layout.acting(placed, self._device, dtype),
        )

    def _guide(self, output: Tensor, given: Conditioning) -> Tensor:
        """Classifier-free guidance for the rows that ask for it."""
        count = len(given.guided)
        if count == 0:
            return output
        negative, positive = output[:count], output[count:]
        guided = negative + given.guidance * (positive[given.guided] - negative)
        return guided if count == len(positive) else positive.index_copy(0, given.guided, guided)

    def _column(self, numbers: Sequence[float]) -> Tensor:
        """One number a row. Shapes: [n, 1, 1, 1] fp32."""
        return torch.tensor(numbers, dtype=torch.float32, device=self._device).view(-1, 1, 1, 1)


def run_compiled(unet: UNet2DConditionModel, given: Given, shared: Given) -> Tensor:
    """The network's output. Shapes: given as Inputs; shared holds the mask where there is one."""
    sample, timesteps, hidden, pooled, time_ids = given
    return run_unet(unet, (sample, timesteps, hidden, pooled, time_ids), shared[0] if shared else None)


def _padded(text: Embedding, chunks: int) -> Tensor:
    """Shapes: [1, 77 * chunks, D]."""
    missing = (chunks - text.chunks) * CHUNK_TOKENS
    return torch.nn.functional.pad(text.prompt_embeds, (0, 0, 0, missing)) if missing else text.prompt_embeds


def _mask(texts: Sequence[Embedding], chunks: int, device: torch.device) -> Tensor | None:
    """Hides the padding from attention: padding that is seen changes the picture.

    Shapes: bool [len(texts), 77 * chunks].
    """
    if all(text.chunks == chunks for text in texts):
        return None
    lengths = torch.tensor([[text.chunks * CHUNK_TOKENS] for text in texts], device=device)
    return torch.arange(chunks * CHUNK_TOKENS, device=device)[None] < lengths
