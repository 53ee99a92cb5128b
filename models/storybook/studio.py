"""The bundle in the stock pipeline: draws prompts as previews or finals, with styles, and decodes them either way."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderTiny, LCMScheduler, StableDiffusionXLPipeline
from PIL import Image
from prompts import Prompt
from torch import Tensor

_BATCH = 10


@dataclass(frozen=True, slots=True)
class Mode:
    """How pictures are made: few-step preview or final, with which styles at which weights."""

    preview: bool
    steps: int
    guidance: float
    styles: tuple[tuple[str, float], ...] = ()


class Studio:
    """Owns the pipeline and switches its adapters and sampler."""

    def __init__(self, bundle: Path) -> None:
        self.profile = json.loads((bundle / "storybook.json").read_text())
        self.pipe = StableDiffusionXLPipeline.from_pretrained(bundle, torch_dtype=torch.float32)
        self.pipe.set_progress_bar_config(disable=True)
        self.styles = [entry["id"] for entry in json.loads((bundle / "styles/styles.json").read_text())]
        if self.profile["preview"].get("adapter"):
            self._load(bundle / self.profile["preview"]["adapter"], "preview")
        for style in self.styles:
            self._load(bundle / "styles" / f"{style}.safetensors", style)
        small = self.profile["preview"].get("decoder")
        self._small = AutoencoderTiny.from_pretrained(bundle / small) if small else self.pipe.vae
        self._samplers = {"euler": self.pipe.scheduler, "lcm": LCMScheduler.from_config(self.pipe.scheduler.config)}

    def _load(self, path: Path, name: str) -> None:
        self.pipe.load_lora_weights(path.parent, weight_name=path.name, adapter_name=name)

    def mode(self, pool: str, styles: tuple[tuple[str, float], ...] = ()) -> Mode:
        """Return how the profile says a pool draws."""
        fields = self.profile[pool]
        return Mode(pool == "preview", fields["steps"], fields["guidance_scale"], styles)

    def latents(self, prompts: Sequence[Prompt], mode: Mode, negative: str = "") -> list[Tensor]:
        """Return denoised latents (8, h, w), one a prompt, each from its own seed."""
        weights = dict(mode.styles) | ({"preview": 1.0} if mode.preview and self._has_adapter else {})
        if weights:
            self.pipe.enable_lora()
            self.pipe.set_adapters([*weights], [*weights.values()])
        else:
            self.pipe.disable_lora()
        self.pipe.scheduler = self._samplers[self.profile["preview" if mode.preview else "final"]["sampler"]]
        drawn: list[Tensor] = []
        for size_hw, group in groupby(prompts, key=lambda prompt: prompt.size_hw):
            alike = list(group)
            for at in range(0, len(alike), _BATCH):
                drawn += self._batch(alike[at : at + _BATCH], size_hw, mode, negative)
        return drawn

    @property
    def _has_adapter(self) -> bool:
        return bool(self.profile["preview"].get("adapter"))

    def _batch(self, part: list[Prompt], size_hw: tuple[int, int], mode: Mode, negative: str) -> list[Tensor]:
        painted = self.pipe.vae_scale_factor // 8  # the sizes of prompts are those of previews
        result = self.pipe(
            [prompt.text for prompt in part],
            negative_prompt=[negative] * len(part) if mode.guidance > 1 else None,
            height=painted * size_hw[0],
            width=painted * size_hw[1],
            num_inference_steps=mode.steps,
            guidance_scale=mode.guidance,
            generator=[torch.Generator().manual_seed(prompt.seed) for prompt in part],
            output_type="latent",
        ).images
        return [*result]

    @torch.no_grad()
    def decode(self, latents: Sequence[Tensor], small: bool) -> list[Image.Image]:
        """Return pictures of latents, from the decoder of previews or of finals."""
        vae = self._small if small else self.pipe.vae
        pictures = []
        for one in latents:
            pixels = vae.decode(one[None] / vae.config.scaling_factor, return_dict=False)[0][0]
            levels = ((pixels / 2 + 0.5).clamp(0, 1) * 255).round().byte().permute(1, 2, 0)
            pictures.append(Image.fromarray(np.ascontiguousarray(levels.numpy())))
        return pictures

    def draw(self, prompts: Sequence[Prompt], mode: Mode, negative: str = "") -> list[Image.Image]:
        """Return pictures as the pool shows them."""
        return self.decode(self.latents(prompts, mode, negative), small=mode.preview)
