"""The parts that one pool paints with, found in a published folder or a single file. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import StartupError
from sampling import kinds
from sampling.families import FLUX_FAMILY, SDXL_FAMILY, Family
from sampling.layout import (
    NETWORKS,
    PICKLES,
    REMEDY_PICKLE,
    SDXL,
    TEXTS,
    TOKENIZERS,
    Part,
    header_of,
    part_in,
    part_of,
    read_json,
    tokenizer_of,
)


@dataclass(frozen=True, slots=True)
class PoolParts:
    """network: what denoises. scheduler: its config. decoder: a smaller autoencoder of the same latents, for pictures
    shown on the way. adapter: a LoRA file that is fused into the network. zero_empty: an empty prompt is all zeros.
    """

    family: Family
    network: Part
    vae: Part
    text: tuple[Part, Part]
    tokenizers: tuple[Path, Path]
    scheduler: Mapping[str, Any]
    zero_empty: bool
    decoder: Part | None = None
    adapter: Path | None = None

    def parts(self) -> list[Part]:
        return [self.network, *self.text, self.vae, *([self.decoder] if self.decoder is not None else [])]

    @property
    def pixels_a_latent(self) -> int:
        """Pixels of a final picture per latent on a side."""
        return int(2 ** (len(self.vae.config["block_out_channels"]) - 1))

    @property
    def text_length(self) -> int | None:
        """How many tokens T5 reads; None where CLIP alone reads.

        Source: Black Forest Labs' own code: 512 for the networks that read guidance, else 256.
        """
        if self.family is not FLUX_FAMILY:
            return None
        return 512 if self.network.config.get("guidance_embeds") else 256

    @property
    def latents(self) -> tuple[object, ...]:
        """What two pools must share for one to follow the other's latents."""
        scaling = (self.vae.config.get(name) for name in ("scaling_factor", "shift_factor"))
        return self.family.name, self.network.config["in_channels"], self.pixels_a_latent, *scaling

    def check(self) -> None:
        """Raises: StartupError for a part of the wrong kind, missing or not whole."""
        check_networks, check_scheduler = kinds.CHECKS[self.family.name]
        check_networks(self.network, self.vae, self.text)
        for vae in (self.vae, self.decoder):
            if vae is not None:
                kinds.check_autoencoder(vae)
        if (
            self.decoder is not None
            and self.decoder.config.get("latent_channels", 4) != self.vae.config["latent_channels"]
        ):
            given, wanted = self.decoder.config.get("latent_channels", 4), self.vae.config["latent_channels"]
            where = self.decoder.files[0].parent
            raise StartupError(f"{where}: a decoder of {given} latent channels, the model has {wanted}", kinds.REMEDY)
        check_scheduler(self.network.files[0].parent.parent, self.scheduler)
        for path in dict.fromkeys(file for part in self.parts() for file in part.files):
            header_of(path)
        if self.adapter is not None:
            header_of(self.adapter)


def open_parts(
    place: Path, variant: str | None, vae: Path | None = None, decoder: Path | None = None, adapter: Path | None = None
) -> PoolParts:
    """The parts of a folder or a single file, of which vae may be another folder's.

    Raises: StartupError when one is missing or the model is of another kind.
    """
    other_vae = None if vae is None else part_of(vae, "vae", variant)
    shown = None if decoder is None else part_of(decoder, "decoder", variant)
    if place.is_file():
        return _from_file(place, SDXL, other_vae, shown, adapter)
    family = kinds.family_of(place)
    index = read_json(place / "model_index.json")
    network, *text = (part_of(place / name, name, variant) for name in (family.network, *TEXTS))
    first, second = (tokenizer_of(place / name) for name in TOKENIZERS)
    return PoolParts(
        family=family,
        network=network,
        vae=other_vae or part_of(place / "vae", "vae", variant),
        text=(text[0], text[1]),
        tokenizers=(first, second),
        scheduler=read_json(place / "scheduler" / "scheduler_config.json"),
        zero_empty=bool(index.get("force_zeros_for_empty_prompt", True)),
        decoder=shown,
        adapter=adapter,
    )


def _from_file(path: Path, configs: Path, vae: Part | None, decoder: Part | None, adapter: Path | None) -> PoolParts:
    """Configs and tokenizers are those of the published SDXL; the weights' shapes must be theirs."""
    if path.suffix in PICKLES:
        raise StartupError(f"{path} is a pickle by its name", REMEDY_PICKLE)
    header = header_of(path)
    kinds.check_original(path, header)
    unet, own_vae, first, second = (part_in(path, name, configs) for name in NETWORKS)
    return PoolParts(
        family=SDXL_FAMILY,
        network=unet,
        vae=vae or own_vae,
        text=(first, second),
        tokenizers=(configs / TOKENIZERS[0], configs / TOKENIZERS[1]),
        scheduler={**read_json(configs / "scheduler" / "scheduler_config.json"), **_trained(header)},
        zero_empty=True,
        decoder=decoder,
        adapter=adapter,
    )


def _trained(header: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of its training, by the empty tensors that trainers leave in it.

    Source: the keys `v_pred` and `ztsnr`, as the trainers of velocity models write them and others read them.
    """
    found: dict[str, Any] = {"prediction_type": "v_prediction"} if "v_pred" in header else {}
    return found | ({"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"} if "ztsnr" in header else {})
