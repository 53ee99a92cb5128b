"""Latents to pixels."""

from __future__ import annotations

import threading

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.errors import NonFinite
from sampling.model import Model, PoolName

MAX_DECODE_ROWS = 8  # on a GPU; a processor's cache holds one picture, and the first is shown sooner


class Decoder:
    """Decodes what a pool shows, in slices of at most max_rows, with a second try in fp32.

    Threads that share it take turns.
    """

    def __init__(self, model: Model, pool: PoolName = "final", max_rows: int | None = None) -> None:
        self._vae, self._device = model.decoder(pool), model.device
        self._dtype = self._vae.dtype
        self.max_rows = max_rows or (1 if model.device.type == "cpu" else MAX_DECODE_ROWS)
        self._lock = threading.Lock()  # the fp32 try changes the weights that others would decode with
        config = self._vae.config
        channels = (1, -1, 1, 1)
        self._std = torch.tensor(config.get("latents_std") or [1.0], device=model.device).view(channels)
        self._mean = torch.tensor(config.get("latents_mean") or [0.0], device=model.device).view(channels)
        self._scaling = float(config.scaling_factor)
        self._shift = float(config.get("shift_factor") or 0.0)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> NDArray[np.uint8]:
        """Pictures of x0 latents.

        Shapes: latents [n, C, h, w]; result uint8 [n, H, W, 3].
        Raises: NonFinite when latents or pixels are not finite, also after the fp32 try.
        """
        if not bool(torch.isfinite(latents).all()):
            raise NonFinite("latents are not finite; nothing was decoded")
        scaled = latents.to(self._device, torch.float32) * self._std / self._scaling + self._mean + self._shift
        with self._lock:
            pixels = torch.cat([self._pixels(part) for part in torch.split(scaled, self.max_rows)])
        levels = ((pixels / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
        array: NDArray[np.uint8] = levels.permute(0, 2, 3, 1).contiguous().cpu().numpy()
        return array

    def _pixels(self, scaled: Tensor) -> Tensor:
        """Shapes: [n, 3, H, W] fp32, about -1…1."""
        pixels: Tensor = self._vae.decode(scaled.to(self._dtype), return_dict=False)[0].float()
        if not bool(torch.isfinite(pixels).all()) and self._dtype is not torch.float32:
            pixels = self._pixels_in_float32(scaled)
        if not bool(torch.isfinite(pixels).all()):
            raise NonFinite("the decoder gave pixels that are not finite")
        return pixels

    def _pixels_in_float32(self, scaled: Tensor) -> Tensor:
        self._vae.float()
        try:
            pixels: Tensor = self._vae.decode(scaled, return_dict=False)[0]
            return pixels
        finally:
            self._vae.to(self._dtype)
