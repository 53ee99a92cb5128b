"""The network as one contract: rows at any noise level in, their estimates of x0 out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor

from core.profile import Limits
from sampling.compiled import CompiledUNet
from sampling.encoder import CHUNK_TOKENS, Embedding
from sampling.model import Model, PoolName
from sampling.packs import Layout
from sampling.rows import Row
from sampling.slots import Acting
from sampling.stepping import begin
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


class Denoiser:
    """Runs one pool's UNet; owned by one thread. backend: of the compiler, where the model is compiled.

    Shapes: x [n, C, h, w] in sigma space (x0 + sigma * noise), fp32.
    Source: Karras et al. 2022, preconditioning; diffusers' EulerDiscreteScheduler for v_prediction.
    """

    def __init__(self, model: Model, pool: PoolName, backend: str = "inductor") -> None:
        self.unet: UNet2DConditionModel = model.unet(pool)
        self.device, self.dtype = model.device, model.dtype
        self.compiled = CompiledUNet(self.unet, model, backend) if model.tuning.compiles else None
        self._network = self.compiled or TracedUNet(self.unet)
        self._replays = self.compiled is not None or can_trace(self.unet)
        self._layout = Layout()
        self._model, self._pool = model, pool
        self._predicts_v = model.schedules[pool].predicts_v
        self._rows: tuple[Row, ...] = ()
        self._conditioning: Conditioning | None = None

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
        self.unet.float()
        try:
            return self._denoise((row,), torch.float32)
        finally:
            self.unet.to(self.dtype)
            self._rows = ()

    @torch.no_grad()
    def _denoise(self, rows: tuple[Row, ...], dtype: torch.dtype) -> Tensor:
        given = self._condition(rows, dtype)
        x = torch.stack([row.latents for row in rows])
        sigma = self._column([row.sigma for row in rows])
        scale = (1 + sigma**2).sqrt()
        timesteps = torch.tensor([float(row.timesteps[row.step_index]) for row in rows], device=self.device)
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
        return torch.tensor(numbers, dtype=torch.float32, device=self.device).view(-1, 1, 1, 1)

    def _condition(self, rows: tuple[Row, ...], dtype: torch.dtype) -> Conditioning:
        """Gathered when the rows change, not every step."""
        if self._conditioning is None or self._rows != rows or self._conditioning.prompt_embeds.dtype != dtype:
            self._conditioning, self._rows = self._gather(rows, dtype), rows
        return self._conditioning

    def _gather(self, rows: tuple[Row, ...], dtype: torch.dtype) -> Conditioning:
        guided = [i for i, row in enumerate(rows) if row.guided]
        negatives = [row.negative for row in rows if row.guided and row.negative is not None]
        texts = [*negatives, *(row.embedding for row in rows)]
        chunks = max(row.chunks for row in rows)
        bucket = rows[0].bucket
        size = [float(side) for side in (bucket.height, bucket.width, 0, 0, bucket.height, bucket.width)]
        return Conditioning(
            prompt_embeds=torch.cat([_padded(text, chunks) for text in texts]).to(self.device, dtype),
            pooled=torch.cat([text.pooled for text in texts]).to(self.device, dtype),
            time_ids=torch.tensor([size] * len(texts), device=self.device, dtype=dtype),
            mask=_mask(texts, chunks, self.device),
            guided=torch.tensor(guided, dtype=torch.long, device=self.device),
            guidance=self._column([rows[i].guidance_scale for i in guided]),
            acting=self._acting([*(rows[i] for i in guided), *rows], dtype),
        )

    def _acting(self, network_rows: Sequence[Row], dtype: torch.dtype) -> Acting | None:
        """What the styles of each network row add; a row's negative prompt is painted in its styles too."""
        if all(row.placed is None for row in network_rows):
            return None
        return self._layout.gather([row.placed for row in network_rows], self.device, dtype)


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
