"""A loaded model: the parts of a stock SDXL pipeline folder, each in the room that uses it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.autoencoders.autoencoder_tiny import AutoencoderTiny
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from diffusers.schedulers.scheduling_euler_discrete import EulerDiscreteScheduler
from diffusers.utils import logging as diffusers_logging
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer
from transformers.utils import logging as transformers_logging

from core.errors import InvalidInput, StartupError
from core.profile import ModelProfile
from sampling import lora
from sampling.lora import Networks
from sampling.profile import REMEDY, TOKENIZERS, load_profile

PoolName = Literal["preview", "final"]
Autoencoder: TypeAlias = AutoencoderTiny | AutoencoderKL
M = TypeVar("M", bound=torch.nn.Module)


@dataclass(frozen=True, slots=True)
class TextTower:
    """One tokenizer with its text encoder; SDXL has two towers."""

    tokenizer: CLIPTokenizer
    encoder: CLIPTextModel | CLIPTextModelWithProjection


@dataclass(frozen=True, slots=True)
class Model:
    """What load_model read; a part that no asked role needs is None.

    vae paints finals, vae_preview what is shown on the way; where the model has one for both, it is the same object.
    Units: vae_scale is pixels of a final per latent on a side.
    """

    profile: ModelProfile
    folder: Path
    device: torch.device
    dtype: torch.dtype
    towers: tuple[TextTower, TextTower] | None
    unet_preview: UNet2DConditionModel | None
    unet_final: UNet2DConditionModel | None
    vae: Autoencoder | None
    vae_preview: Autoencoder | None
    alphas_cumprod: tuple[float, ...]
    prediction_type: str
    latent_channels: int
    vae_scale: int
    force_zeros_for_empty_prompt: bool
    tokenizer_version: str

    def unet(self, pool: PoolName) -> UNet2DConditionModel:
        """Raises: StartupError when the model was loaded without that role."""
        unet = self.unet_preview if pool == "preview" else self.unet_final
        if unet is None:
            raise StartupError(f"the model was loaded without role {pool}", f"add {pool} to --roles")
        return unet

    def networks(self) -> Networks:
        """What a style of this model may act on.

        Raises: StartupError when the model was loaded without a role that denoises.
        """
        unet = self.unet_final if self.unet_final is not None else self.unet("preview")
        return Networks.of(unet, [tower.encoder for tower in self.towers or ()])

    def decoder(self, pool: PoolName) -> Autoencoder:
        """Raises: StartupError when the model was loaded without a role that shows such pictures."""
        vae = self.vae_preview if pool == "preview" else self.vae
        if vae is None:
            needed = "preview or final" if pool == "preview" else "decode"
            raise StartupError(f"the model was loaded without the decoder of {pool}s", f"add {needed} to --roles")
        return vae


def load_model(
    folder: Path,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    roles: Collection[str] = ("preview", "final", "decode"),
) -> Model:
    """Reads the parts that the roles need.

    Raises: StartupError naming what is missing, broken or not of a kind we can run.
    """
    profile = load_profile(folder)
    _quieten_libraries()
    scheduler = EulerDiscreteScheduler.from_config(_config(folder / "scheduler" / "scheduler_config.json"))
    if scheduler.config.prediction_type not in ("epsilon", "v_prediction"):
        raise StartupError(f"prediction_type {scheduler.config.prediction_type!r} is unknown", REMEDY)
    index, vae_config = _config(folder / "model_index.json"), _config(folder / "vae" / "config.json")
    final, preview = _load_unets(folder, profile, dtype, roles)
    denoises = "preview" in roles or "final" in roles
    place = torch.device(device)
    vae, vae_preview = _load_vaes(folder, profile, dtype, place, roles)
    return Model(
        profile=profile,
        folder=folder,
        device=place,
        dtype=dtype,
        towers=_load_towers(folder, dtype, place) if denoises else None,
        unet_preview=None if preview is None else _settle(preview, place),
        unet_final=None if final is None else _settle(final, place),
        vae=vae,
        vae_preview=vae_preview,
        alphas_cumprod=tuple(scheduler.alphas_cumprod.double().tolist()),
        prediction_type=str(scheduler.config.prediction_type),
        latent_channels=int(vae_config["latent_channels"]),
        vae_scale=2 ** (len(vae_config["block_out_channels"]) - 1),
        force_zeros_for_empty_prompt=bool(index.get("force_zeros_for_empty_prompt", True)),
        tokenizer_version=_digest_tokenizers(folder),
    )


def _quieten_libraries() -> None:
    """Their progress bars and notices are not for the person who starts the app; what matters is raised."""
    diffusers_logging.set_verbosity_error()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def _load_unets(
    folder: Path, profile: ModelProfile, dtype: torch.dtype, roles: Collection[str]
) -> tuple[UNet2DConditionModel | None, UNet2DConditionModel | None]:
    """The final and the preview UNet; each pool has its own copy, since adapters are switched on it."""
    if "preview" not in roles and "final" not in roles:
        return None, None
    base = _load_part(UNet2DConditionModel, folder / "unet", dtype)
    if "preview" not in roles:
        return base, None
    preview = copy.deepcopy(base) if "final" in roles else base
    if profile.preview.adapter is not None:
        try:
            lora.fuse(preview, folder / profile.preview.adapter)
        except InvalidInput as error:
            raise StartupError(f"preview adapter: {error.message}", REMEDY) from error
    return base if "final" in roles else None, preview


def _load_towers(folder: Path, dtype: torch.dtype, device: torch.device) -> tuple[TextTower, TextTower]:
    first = _load_part(CLIPTextModel, folder / "text_encoder", dtype)
    second = _load_part(CLIPTextModelWithProjection, folder / "text_encoder_2", dtype)
    tokenizers = [CLIPTokenizer.from_pretrained(folder / part, local_files_only=True) for part in TOKENIZERS]
    return TextTower(tokenizers[0], _settle(first, device)), TextTower(tokenizers[1], _settle(second, device))


def _load_vaes(
    folder: Path, profile: ModelProfile, dtype: torch.dtype, device: torch.device, roles: Collection[str]
) -> tuple[Autoencoder | None, Autoencoder | None]:
    """The decoders of finals and of previews; the second also serves the glimpses of the final role."""
    small = profile.preview.decoder
    shows = "preview" in roles or "final" in roles
    finals = _load_vae(folder / "vae", dtype, device) if "decode" in roles or (shows and small is None) else None
    if not shows:
        return finals, None
    return finals, finals if small is None else _load_vae(folder / small, dtype, device)


def _load_vae(folder: Path, dtype: torch.dtype, device: torch.device) -> Autoencoder:
    kinds = {"AutoencoderTiny": AutoencoderTiny, "AutoencoderKL": AutoencoderKL}
    class_name = str(_config(folder / "config.json")["_class_name"])
    if class_name not in kinds:
        raise StartupError(f"autoencoder {class_name!r} is unknown; known are {', '.join(kinds)}", REMEDY)
    return _settle(_load_part(kinds[class_name], folder, dtype), device)


def _load_part(kind: Any, folder: Path, dtype: torch.dtype) -> Any:
    """Raises: StartupError when weights are missing; the libraries would fill them with noise and carry on."""
    part, info = kind.from_pretrained(folder, torch_dtype=dtype, local_files_only=True, output_loading_info=True)
    missing = sorted(info["missing_keys"])
    if missing:
        raise StartupError(f"{folder} lacks {len(missing)} weights of {kind.__name__}, the first {missing[0]}", REMEDY)
    return part


def _settle(module: M, device: torch.device) -> M:
    """Onto the device, convolution weights channels last, which takes a third off a forward on a processor."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub leaves it out
    return module.to(device).eval().requires_grad_(False)


def _config(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return fields


def _digest_tokenizers(folder: Path) -> str:
    digest = hashlib.sha256()
    for part in TOKENIZERS:
        for path in sorted((folder / part).iterdir()):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
