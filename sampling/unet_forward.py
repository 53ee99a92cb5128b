"""SDXL's forward: guided rows run twice, prompts of several chunks are padded behind a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor

from sampling.compiled import CompiledUNet
from sampling.embedding import CHUNK_TOKENS, Embedding
from sampling.packs import Layout
from sampling.rows import Row
from sampling.schedule import Schedule
from sampling.slots import Acting
from sampling.traced import TracedUNet, can_trace


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
        self, unet: UNet2DConditionModel, schedule: Schedule, device: torch.device, compiled: CompiledUNet | None = None
    ) -> None:
        self._network = compiled or TracedUNet(unet)
        self._replays = compiled is not None or can_trace(unet)
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
        forward = self._network if self._replays else self._network.eager
        output = forward(
            torch.cat([sample[given.guided], sample]),
            torch.cat([timesteps[given.guided], timesteps]),
            given.prompt_embeds,
            given.pooled,
            given.time_ids,
            given.mask,
            given.acting,
        ).float()
        prediction = self._guide(output, given)
        if self._predicts_v:
            return x / scale**2 - prediction * (sigma / scale)
        return x - prediction * sigma

    def gather(self, rows: Sequence[Row], dtype: torch.dtype) -> Conditioning:
        """What stays the same while these rows step together."""
        guided = [i for i, row in enumerate(rows) if row.guided]
        negatives = [row.negative for row in rows if row.guided and row.negative is not None]
        texts = [*negatives, *(row.embedding for row in rows)]
        chunks = max(row.chunks for row in rows)
        bucket = rows[0].bucket
        size = [float(side) for side in (bucket.height, bucket.width, 0, 0, bucket.height, bucket.width)]
        return Conditioning(
            prompt_embeds=torch.cat([_padded(text, chunks) for text in texts]).to(self._device, dtype),
            pooled=torch.cat([text.pooled for text in texts]).to(self._device, dtype),
            time_ids=torch.tensor([size] * len(texts), device=self._device, dtype=dtype),
            mask=_mask(texts, chunks, self._device),
            guided=torch.tensor(guided, dtype=torch.long, device=self._device),
            guidance=self._column([rows[i].guidance_scale for i in guided]),
            acting=self._acting([*(rows[i] for i in guided), *rows], dtype),
        )

    def _acting(self, network_rows: Sequence[Row], dtype: torch.dtype) -> Acting | None:
        """What the styles of each network row add; a row's negative prompt is painted in its styles too."""
        if all(row.placed is None for row in network_rows):
            return None
        return self._layout.gather([row.placed for row in network_rows], self._device, dtype)

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
