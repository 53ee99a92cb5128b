"""The storybook networks and the few lines of mathematics every trainer shares."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderTiny, EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

HERE = Path(__file__).parent
WORK = HERE / "work"
BUNDLE = HERE / "bundle"
BASE = WORK / "base"
TOKENS = 77
PAINTED = 2  # pixels a side that finals are painted at, for each pixel a side of the pictures that are learned from
DECODERS = {1: WORK / "vae_preview", PAINTED: WORK / "vae"}


@dataclass(frozen=True, slots=True)
class Family:
    """The loaded networks; `unet`, `text_1` and `text_2` are what training changes."""

    tokenizer: CLIPTokenizer
    text_1: CLIPTextModel
    text_2: CLIPTextModelWithProjection
    unet: UNet2DConditionModel
    vae: AutoencoderTiny


@dataclass(frozen=True, slots=True)
class Condition:
    """Encoded captions.

    Shapes: `hidden` (N, 77, 256), `pooled` (N, 128), `time_ids` (N, 6).
    """

    hidden: Tensor
    pooled: Tensor
    time_ids: Tensor


def load_family(folder: Path) -> Family:
    """Load the networks in fp32 from a pipeline folder."""
    unet = UNet2DConditionModel.from_pretrained(folder / "unet", torch_dtype=torch.float32)
    small = folder / "vae_preview"  # where finals have a larger one of their own
    vae = AutoencoderTiny.from_pretrained(small if small.exists() else folder / "vae", torch_dtype=torch.float32)
    return Family(
        tokenizer=CLIPTokenizer.from_pretrained(folder / "tokenizer"),
        text_1=CLIPTextModel.from_pretrained(folder / "text_encoder", dtype=torch.float32).eval(),
        text_2=CLIPTextModelWithProjection.from_pretrained(folder / "text_encoder_2", dtype=torch.float32).eval(),
        unet=unet.to(memory_format=torch.channels_last),
        vae=vae.to(memory_format=torch.channels_last).eval().requires_grad_(False),
    )


def save_family(family: Family, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write a folder that the stock SDXL pipeline loads."""
    pipe = StableDiffusionXLPipeline(
        vae=copy.deepcopy(family.vae).to(dtype),
        text_encoder=copy.deepcopy(family.text_1).to(dtype),
        text_encoder_2=copy.deepcopy(family.text_2).to(dtype),
        tokenizer=family.tokenizer,
        tokenizer_2=family.tokenizer,
        unet=copy.deepcopy(family.unet).to(dtype),
        scheduler=scheduler(),
        force_zeros_for_empty_prompt=False,
        add_watermarker=False,
    )
    pipe.save_pretrained(folder, safe_serialization=True)
    for config in (folder / "unet/config.json", folder / "vae/config.json"):
        described = json.loads(config.read_text())
        config.write_text(json.dumps(described | {"_name_or_path": "storybook"}, indent=2) + "\n")
    for spelling in folder.glob("tokenizer*/tokenizer.json"):
        spelling.write_text(json.dumps(json.loads(spelling.read_text()), ensure_ascii=False))  # half as long
    for weights in folder.rglob("*.safetensors"):
        weights.chmod(0o644)


def scheduler() -> EulerDiscreteScheduler:
    """Return the noise schedule storybook is trained with."""
    return EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
    )


def alphas_cumprod() -> Tensor:
    """Return the 1000 cumulative signal powers of the schedule."""
    alphas: Tensor = scheduler().alphas_cumprod
    return alphas.float()


def encode(family: Family, captions: list[str], size_hw: tuple[int, int]) -> Condition:
    """Encode captions as the stock pipeline does, with a size as micro-conditioning (height first).

    By chance that of either decoder, so that the networks paint the same for both.
    """
    tokens = family.tokenizer(captions, padding="max_length", max_length=TOKENS, truncation=True, return_tensors="pt")
    first = family.text_1(tokens.input_ids, output_hidden_states=True)
    second = family.text_2(tokens.input_ids, output_hidden_states=True)
    hidden = torch.cat((first.hidden_states[-2], second.hidden_states[-2]), dim=-1)
    scale = int(torch.randint(1, PAINTED + 1, ()))
    painted = [scale * side for side in size_hw]
    time_ids = torch.tensor([[*painted, 0, 0, *painted]], dtype=torch.float32).expand(len(captions), 6)
    return Condition(hidden, second.text_embeds, time_ids)


def denoise(unet: nn.Module, latents: Tensor, timesteps: Tensor, condition: Condition) -> Tensor:
    """Return the network's v for a batch."""
    added = {"text_embeds": condition.pooled, "time_ids": condition.time_ids}
    result = unet(
        latents.contiguous(memory_format=torch.channels_last),
        timesteps,
        encoder_hidden_states=condition.hidden,
        added_cond_kwargs=added,
    )
    sample: Tensor = result.sample
    return sample


def signal_noise(alphas: Tensor, timesteps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the signal and noise amplitudes, shaped to broadcast over latents."""
    power = alphas[timesteps].view(-1, 1, 1, 1)
    return power.sqrt(), (1 - power).sqrt()


def encode_pictures(family: Family, pictures: Tensor) -> Tensor:
    """Encode uint8 (N, H, W, 3) pictures to scaled latents (N, 8, H/8, W/8)."""
    pixels = (pictures.permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():  # eight at a time stay in the processor's cache: three times faster than 32
        parts = [family.vae.encode(part).latents for part in torch.split(pixels, 8)]
    return torch.cat(parts).contiguous() * float(family.vae.config.scaling_factor)
