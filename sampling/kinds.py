"""Refuses a model of the wrong kind, from configs and shapes alone: says what was found and what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import StartupError
from sampling.families import FLUX_FAMILY, SDXL_FAMILY, Family
from sampling.layout import ORIGINAL, Part, read_json
from sampling.schedule import TRAIN_STEPS

EXPECTED = "a text-to-image model of the SDXL architecture (UNet with two text encoders), or of FLUX"
REMEDY = "choose such a model with FIRSTLIGHT_MODEL; docs/models.md says which kinds run"
FLUX_NETWORK = "FluxTransformer2DModel"
TRANSFORMERS = {"SD3Transformer2DModel": "Stable Diffusion 3"}
TEXT_WIDTHS = {768: "Stable Diffusion 1.x", 1024: "Stable Diffusion 2.x", 1280: "the SDXL refiner"}
FLUX_REMEDY = "FLUX is read from its folder, with its two text encoders: `firstlight models pull flux`"
FLOW = "FlowMatchEulerDiscreteScheduler"
ODD_FLOWS = ("invert_sigmas", "stochastic_sampling")
AUTOENCODERS = ("AutoencoderKL", "AutoencoderTiny")
PREDICTIONS = ("epsilon", "v_prediction")


def refuse(where: object, found: str, remedy: str = REMEDY) -> StartupError:
    return StartupError(f"{where} is {found}; expected is {EXPECTED}", remedy)


def family_of(folder: Path) -> Family:
    """Which networks a published folder holds.

    Raises: StartupError for a folder whose parts are those of another kind of pipeline.
    """
    if (folder / "transformer").is_dir():
        name = str(read_json(folder / "transformer" / "config.json").get("_class_name", "unknown"))
        if name == FLUX_NETWORK:
            return FLUX_FAMILY
        found = TRANSFORMERS.get(name, f"a model with a transformer ({name})")
        raise refuse(folder, f"{found}, whose network is a transformer")
    if (folder / "unet").is_dir() and not (folder / "text_encoder_2").is_dir():
        unet = read_json(folder / "unet" / "config.json")
        raise refuse(folder, f"{_maker(unet)} without text_encoder_2")
    return SDXL_FAMILY


def check_original(path: Path, header: Mapping[str, Any]) -> None:
    """Raises: StartupError for a single file that holds another kind of network, or not all parts of one."""
    names = [name.removeprefix("model.diffusion_model.") for name in header]
    if any(name.startswith("double_blocks.") for name in names):
        raise refuse(path, "FLUX, whose network is a transformer", FLUX_REMEDY)
    if any(name.startswith("joint_blocks.") for name in names):
        raise refuse(path, "Stable Diffusion 3, whose network is a transformer")
    if any("lora_" in name for name in names):
        raise refuse(path, "a LoRA, which is a style and no model")
    if any(name.startswith("cond_stage_model.") for name in names):
        raise refuse(path, "Stable Diffusion 1.x or 2.x, with one text encoder")
    if any(name.startswith("conditioner.embedders.0.model.") for name in names):
        raise refuse(path, "the SDXL refiner, with one text encoder")
    lacking = [part for part, prefix in ORIGINAL.items() if not any(name.startswith(prefix) for name in header)]
    if lacking:
        raise refuse(
            path, f"a file without {', '.join(lacking)}", "get the checkpoint that holds all parts of the model"
        )


def check_networks(unet: Part, vae: Part, text: tuple[Part, Part]) -> None:
    """Raises: StartupError where the parts' configs are not those of one SDXL network, or do not fit each other."""
    where, config = unet.files[0].parent, unet.config
    width, channels = config.get("cross_attention_dim"), config.get("in_channels")
    if config.get("addition_embed_type") != "text_time":
        raise refuse(where, f"{_maker(config)} (addition_embed_type {config.get('addition_embed_type')})")
    widths = [int(part.config.get("hidden_size", 0)) for part in text]
    if width != sum(widths):
        raise refuse(where, f"{_maker(config)}: it reads text {width} wide, the text encoders give {sum(widths)}")
    latents = vae.config.get("latent_channels")
    if channels != latents or config.get("out_channels") != latents:
        raise refuse(where, f"{_channels(channels, latents)}: its vae has {latents} latent channels")
    pooled, ids = text[1].config.get("projection_dim", 0), 6 * int(config.get("addition_time_embed_dim") or 0)
    wanted = config.get("projection_class_embeddings_input_dim")
    if pooled + ids != wanted:
        raise refuse(
            where, f"a UNet that is told {wanted} numbers of size and text, where SDXL's is told {pooled + ids}"
        )
    if config.get("time_cond_proj_dim") is not None:
        found = f"a UNet that takes guidance as an input (time_cond_proj_dim {config['time_cond_proj_dim']})"
        raise refuse(where, found, "use the base model with the LCM adapter: profile sdxl-lcm")


def check_flux(transformer: Part, vae: Part, text: tuple[Part, Part]) -> None:
    """Raises: StartupError where the parts' configs are not those of one FLUX network, or do not fit each other."""
    where, config = transformer.files[0].parent, transformer.config
    if text[1].config.get("model_type") != "t5":
        raise _misfit(where, f"a second text encoder of {text[1].config.get('model_type')}", "T5")
    tokens = FLUX_FAMILY.patch**2 * int(vae.config.get("latent_channels", 0))
    if config.get("in_channels") != tokens or config.get("out_channels") not in (None, tokens):
        numbers = f"{config.get('in_channels')} numbers a token in"
        raise _misfit(where, f"a FLUX network of {numbers}, as those that edit or fill have", f"{tokens} of its vae")
    widths = (("joint_attention_dim", text[1], "d_model"), ("pooled_projection_dim", text[0], "hidden_size"))
    for name, part, given in widths:
        if config.get(name) != part.config.get(given):
            raise _misfit(where, f"{name} {config.get(name)}", f"{part.config.get(given)} of {part.name}")


def _misfit(where: object, found: str, expected: str) -> StartupError:
    return StartupError(f"{where}: found is {found}; expected is {expected}", REMEDY)


def check_autoencoder(vae: Part) -> None:
    """Raises: StartupError for a decoder that we do not know."""
    name = vae.config.get("_class_name")
    if name not in AUTOENCODERS:
        cause = f"{vae.files[0].parent}: autoencoder {name!r} is unknown; known are {', '.join(AUTOENCODERS)}"
        raise StartupError(cause, REMEDY)


def check_scheduler(where: object, config: Mapping[str, Any]) -> None:
    """Raises: StartupError for a schedule that is not one of 1000 discrete betas with noise or velocity predicted."""
    betas = config.get("trained_betas")
    if "beta_start" not in config and betas is None:
        found = config.get("_class_name", "a scheduler")
        raise StartupError(f"{where}: {found} has no betas; flow matching and EDM models are not run", REMEDY)
    steps = len(betas) if isinstance(betas, list) else config.get("num_train_timesteps", TRAIN_STEPS)
    if steps != TRAIN_STEPS:
        raise StartupError(f"{where}: a schedule of {steps!r} training steps, {TRAIN_STEPS} are expected", REMEDY)
    prediction = config.get("prediction_type", "epsilon")
    if prediction not in PREDICTIONS:
        raise StartupError(f"{where}: prediction_type {prediction!r} is none of {', '.join(PREDICTIONS)}", REMEDY)


def check_flow(where: object, config: Mapping[str, Any]) -> None:
    """Raises: StartupError for a schedule that is not one of flow matching, or samples it in another way."""
    name, odd = config.get("_class_name"), [option for option in ODD_FLOWS if config.get(option)]
    if name != FLOW or odd:
        raise _misfit(where, f"the scheduler {name} {' '.join(odd)}".rstrip(), f"{FLOW} as FLUX has it")


CHECKS = {SDXL_FAMILY.name: (check_networks, check_scheduler), FLUX_FAMILY.name: (check_flux, check_flow)}


def _maker(unet: Mapping[str, Any]) -> str:
    width = unet.get("cross_attention_dim")
    known = TEXT_WIDTHS.get(width) if isinstance(width, int) else None
    return known or f"a UNet of another kind (cross_attention_dim {width})"


def _channels(given: object, latents: object) -> str:
    if isinstance(given, int) and isinstance(latents, int):
        if given == 2 * latents + 1:
            return f"an inpainting UNet (in_channels {given})"
        if given == 2 * latents:
            return f"a UNet for editing pictures (in_channels {given})"
    return f"a UNet of {given} channels"
