"""Pictures after decoding: fitting to the asked size, JPEG, PNG with metadata. No torch."""

from __future__ import annotations

import io
import json

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from core.recipe import Recipe
from core.validate import PoolName

Pixels = NDArray[np.uint8]
JPEG_QUALITY = 92


def fit(picture: Pixels, width: int, height: int) -> Pixels:
    """The centre of the picture in the asked aspect ratio, scaled to exactly the asked size.

    Shapes: [H,W,3] to [height,width,3].
    """
    have_height, have_width = picture.shape[:2]
    if (have_width, have_height) == (width, height):
        return picture
    scale = min(have_width / width, have_height / height)
    crop_width, crop_height = min(width * scale, have_width), min(height * scale, have_height)
    left, top = (have_width - crop_width) / 2, (have_height - crop_height) / 2
    box = (left, top, left + crop_width, top + crop_height)
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS, box=box))


def to_jpeg(picture: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()


def from_bytes(data: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def to_png(picture: Pixels, recipe: Recipe, pool: PoolName = "final") -> bytes:
    """PNG that carries A1111's `parameters` text and our recipe as JSON in an iTXt chunk named `firstlight`.

    A preview's JSON also names its pool, since its steps, guidance and sampler say nothing about a render.
    """
    fields = recipe.as_dict() if pool == "final" else {**recipe.as_dict(), "pool": pool}
    info = PngInfo()
    info.add_itxt("parameters", parameters_text(recipe))
    info.add_itxt("firstlight", json.dumps(fields, ensure_ascii=False))
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG", pnginfo=info)
    return buffer.getvalue()


def parameters_text(recipe: Recipe) -> str:
    """Generation parameters as stable-diffusion-webui writes them (modules/processing.py, create_infotext)."""
    lines = [recipe.prompt]
    if recipe.negative_prompt:
        lines.append(f"Negative prompt: {recipe.negative_prompt}")
    fields = {
        "Steps": recipe.steps,
        "Sampler": recipe.sampler.value,
        "CFG scale": f"{recipe.guidance_scale:g}",
        "Seed": recipe.seed,
        "Size": f"{recipe.width}x{recipe.height}",
        "Model": recipe.model_id,
    }
    if recipe.styles:
        fields["Styles"] = " ".join(f"{use.id}:{use.weight:g}" for use in recipe.styles)
    lines.append(", ".join(f"{name}: {value}" for name, value in fields.items()))
    return "\n".join(lines)
