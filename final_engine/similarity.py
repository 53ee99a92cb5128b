"""How alike two pictures are, as a number that a person can be shown."""

from __future__ import annotations

import numpy as np
from PIL import Image
from skimage.metrics import structural_similarity

from sampling.picture import Pixels

SHORT_SIDE = 64
MAX_PSNR_DB = 60.0  # of equal pictures, in place of infinity


def similarity(preview: Pixels, final: Pixels) -> float:
    """SSIM in −1…1 of both pictures, area-resized to 64 pixels on the shorter side.

    Source: Wang et al. 2004, "Image quality assessment: from error visibility to structural similarity", with its
    Gaussian window (sigma 1.5) over RGB.
    """
    small = [np.asarray(_shrink(picture, final.shape)) for picture in (preview, final)]
    value = structural_similarity(
        small[0],
        small[1],
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        channel_axis=2,
        data_range=255,
    )
    return float(value)


def psnr(reference: Pixels, picture: Pixels) -> float:
    """Peak signal-to-noise ratio over RGB in decibels, at the size of the reference."""
    height, width = reference.shape[:2]
    same = np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BOX))
    if np.array_equal(same, reference):
        return MAX_PSNR_DB
    error = np.square(reference.astype(np.float64) - same).mean()
    return min(MAX_PSNR_DB, float(10 * np.log10(255**2 / error)))


def _shrink(picture: Pixels, like: tuple[int, ...]) -> Image.Image:
    height, width = like[:2]
    scale = SHORT_SIDE / min(width, height)
    size = (max(SHORT_SIDE, round(width * scale)), max(SHORT_SIDE, round(height * scale)))
    return Image.fromarray(picture).resize(size, Image.Resampling.BOX)
