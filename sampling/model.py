"""A loaded model: the parts of a pipeline, each in the room that uses it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from diffusers.schedulers.scheduling_euler_discrete import EulerDiscreteScheduler
from transformers import CLIPTokenizer, T5Tokenizer

from core.errors import InvalidInput, StartupError
from core.profile import ModelProfile
from sampling import lora
from sampling.device import PRECISIONS, device_of, settled
from sampling.families import FLUX_FAMILY, Family
from sampling.flow import FlowSchedule
from sampling.layout import REMEDY, Part, fingerprint, same, texts_of
from sampling.lora import Networks
from sampling.memory import check_memory, free_bytes
from sampling.plan import Plan, plan_of
from sampling.pool_parts import PoolParts
from sampling.schedule import Schedule, Spacing
from sampling.text import Text, TextTower
from sampling.tuned import tune
from sampling.tuning import Tuning
from sampling.weights import Autoencoder, open_part, quieten_libraries, sensible, twin_of

PoolName = Literal["preview", "final"]
POOLS: tuple[PoolName, PoolName] = ("final", "preview")
M = TypeVar("M", bound=torch.nn.Module)


@dataclass(frozen=True, slots=True)
class Model:
    """What load_model read; a part that no asked role needs is None, or not in its mapping.

    network_final and network_preview denoise, and are of the family's class. vae paints finals, vae_preview what is
    shown on the way; where the model has one for both, it is the same object.
    tuning: how it runs, with nothing left to the device. Units: vae_scale is pixels of a final per latent on a side.
    """

    profile: ModelProfile
    family: Family
    device: torch.device
    dtype: torch.dtype
    texts: Mapping[PoolName, Text]
    schedules: Mapping[PoolName, Schedule | FlowSchedule]
    network_preview: torch.nn.Module | None
    network_final: torch.nn.Module | None
    vae: Autoencoder | None
    vae_preview: Autoencoder | None
    latent_channels: int
    vae_scale: int
    tuning: Tuning = field(default_factory=Tuning)

    def network(self, pool: PoolName) -> Any:
        """What denoises in a pool. Raises: StartupError when the model was loaded without that role."""
        network = self.network_preview if pool == "preview" else self.network_final
        if network is None:
            raise StartupError(f"the model was loaded without role {pool}", f"add {pool} to --roles")
        return network

    def text(self, pool: PoolName | None = None) -> Text:
        """A pool's, or that of the first that is here.

        Raises: StartupError when the model was loaded without a role that denoises.
        """
        if pool is None and self.texts:
            return next(iter(self.texts.values()))
        if pool is None or pool not in self.texts:
            raise StartupError(
                "the model was loaded without text encoders", f"add {pool or 'preview or final'} to --roles"
            )
        return self.texts[pool]

    def networks(self, pool: PoolName | None = None) -> Networks:
        """What a style of this model may act on in a pool, or in the first that is here.

        Raises: StartupError when the model was loaded without a role that denoises.
        """
        if pool is None:
            pool = "final" if self.network_final is not None else "preview"
        return Networks.of(self.network(pool), [tower.encoder for tower in self.texts[pool].towers])

    def decoder(self, pool: PoolName) -> Autoencoder:
        """Raises: StartupError when the model was loaded without a role that shows such pictures."""
        vae = self.vae_preview if pool == "preview" else self.vae
        if vae is None:
            needed = "preview or final" if pool == "preview" else "decode"
            raise StartupError(f"the model was loaded without the decoder of {pool}s", f"add {needed} to --roles")
        return vae


def load_model(
    model: str | Path,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    roles: Collection[str] = ("preview", "final", "decode"),
    tuning: Tuning | None = None,
) -> Model:
    """Reads the parts of what FIRSTLIGHT_MODEL may name that the roles need; parts that are equal are read once.

    device: as FIRSTLIGHT_DEVICE. dtype: what is computed in, before the profile's; large matrices may be held in less,
    and layers turn them up as they compute. tuning: in place of the profile's.

    Raises: StartupError naming what is missing, broken, not of a kind we can run, too large, or not to be had here.
    """
    plan = plan_of(model)
    quieten_libraries()
    place = device_of(device)
    wanted = plan.tuning if tuning is None else tuning
    if dtype is not None:
        wanted = replace(wanted, dtype=str(dtype).removeprefix("torch."))
    chosen = settled(wanted, place, plan.final.family)
    assert chosen.dtype is not None  # settled
    free = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" and not chosen.offload else free_bytes()
    check_memory(plan, roles, chosen.weights or chosen.dtype, free)
    return _Loader(plan, place, chosen).load(roles)


class _Loader:
    """Opens the parts of a plan, each once."""

    def __init__(self, plan: Plan, device: torch.device, tuning: Tuning) -> None:
        self._plan = plan
        self._device = device
        self._tuning = tuning
        self._dtype = PRECISIONS[str(tuning.dtype)]
        self._held = PRECISIONS.get(str(tuning.weights), self._dtype)
        self._texts: list[tuple[PoolParts, Text]] = []
        self._vaes: list[tuple[Part, Autoencoder]] = []

    def load(self, roles: Collection[str]) -> Model:
        pools = {"final": self._plan.final, "preview": self._plan.preview}
        asked = [pool for pool in POOLS if pool in roles]
        final, preview = self._networks(asked)
        vae, vae_preview = self._decoders(roles)
        return Model(
            profile=self._plan.profile,
            family=self._plan.final.family,
            device=self._device,
            dtype=self._dtype,
            texts={pool: self._text(pools[pool]) for pool in asked},
            schedules={pool: self._schedule(pools[pool]) for pool in POOLS},
            network_preview=preview,
            network_final=final,
            vae=vae,
            vae_preview=vae_preview,
            latent_channels=int(self._plan.final.vae.config["latent_channels"]),
            vae_scale=self._plan.final.pixels_a_latent,
            tuning=self._tuning,
        )

    def _networks(self, asked: Collection[PoolName]) -> tuple[torch.nn.Module | None, torch.nn.Module | None]:
        """The final and the preview network; each pool has its own, since adapters are fused and act on it, but where
        both come from the same files they share the memory of all weights that the preview adapter leaves alone."""
        final = self._settled(self._open(self._plan.final.network), self._home) if "final" in asked else None
        if "preview" not in asked:
            return self._tuned(final), None
        parts = self._plan.preview
        shares = final is not None and same(parts.network, self._plan.final.network)
        preview = self._settled(twin_of(final) if shares else self._open(parts.network), self._home)
        if parts.adapter is not None:
            try:
                lora.fuse(preview, parts.adapter)
            except InvalidInput as error:
                raise StartupError(f"preview adapter: {error.message}", REMEDY) from error
        return self._tuned(final), self._tuned(preview)

    @property
    def _home(self) -> torch.device:
        """Where networks lie between their steps."""
        return torch.device("cpu") if self._tuning.offload else self._device

    def _tuned(self, network: torch.nn.Module | None) -> torch.nn.Module | None:
        if network is not None:
            tune(network, self._tuning, self._device)
        return network

    def _text(self, parts: PoolParts) -> Text:
        version = text_version(parts) + ("" if self._held is self._dtype else f"-{self._held}")
        length = parts.text_length
        for known, text in self._texts:
            if text.version == version and all(same(a, b) for a, b in zip(known.text, parts.text, strict=True)):
                break
        else:
            first, second = (self._tower(*one) for one in zip(parts.tokenizers, parts.text, strict=True))
            text = Text((first, second), version, parts.zero_empty)
            self._texts.append((parts, text))
        return text if length is None else replace(text, version=f"{version}-{length}", length=length)

    def _tower(self, folder: Path, part: Part) -> TextTower:
        kind = T5Tokenizer if part.config.get("model_type") == "t5" else CLIPTokenizer
        with sensible(folder):
            tokenizer = kind.from_pretrained(folder, local_files_only=True)
        return TextTower(tokenizer, self._settled(self._open(part)))

    @staticmethod
    def _schedule(parts: PoolParts) -> Schedule | FlowSchedule:
        with sensible("the scheduler's config"):
            return schedule_of(parts.scheduler, parts.family)

    def _decoders(self, roles: Collection[str]) -> tuple[Autoencoder | None, Autoencoder | None]:
        """The decoders of finals and of previews; the second also serves the glimpses of the final role."""
        shows = "preview" in roles or "final" in roles
        shown = self._plan.preview.decoder or self._plan.preview.vae
        both = shows and same(shown, self._plan.final.vae)
        finals = self._vae(self._plan.final.vae) if "decode" in roles or both else None
        return finals, self._vae(shown) if shows else None

    def _vae(self, part: Part) -> Autoencoder:
        for known, vae in self._vaes:
            if same(known, part):
                return vae
        dtype = torch.float32 if self._dtype is torch.float16 and _overflows(part) else self._dtype
        made: Autoencoder = self._settled(open_part(part, dtype, dtype))
        if self._tuning.vae_tiling:
            made.enable_tiling()
        if self._tuning.vae_slicing:
            made.enable_slicing()
        self._vaes.append((part, made))
        return made

    def _open(self, part: Part) -> Any:
        """A network whose layers compute in the precision of what they are given."""
        return open_part(part, self._dtype, self._held)

    def _settled(self, module: M, home: torch.device | None = None) -> M:
        """Onto the device, convolution weights channels last, which takes a third off a forward on a processor."""
        if self._tuning.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub leaves it out
        return module.to(home or self._device).eval().requires_grad_(False)


def _overflows(part: Part) -> bool:
    """Whether an autoencoder says of itself that half precision overflows in it, as SDXL's own does."""
    return part.config["_class_name"] == "AutoencoderKL" and bool(part.config.get("force_upcast", True))


def text_version(parts: PoolParts) -> str:
    """A name for tokenizers and text encoders: other ones have another."""
    texts = [path for folder in parts.tokenizers for path in texts_of(folder)]
    return fingerprint(parts.text, texts) + ("" if parts.zero_empty else "-")


def schedule_of(config: Mapping[str, Any], family: Family) -> Schedule | FlowSchedule:
    """The training schedule that a scheduler's config describes, whichever scheduler it is of."""
    if family is FLUX_FAMILY:
        return FlowSchedule(config, FLUX_FAMILY.patch)
    scheduler = EulerDiscreteScheduler.from_config(dict(config))
    return Schedule(
        alphas_cumprod=tuple(scheduler.alphas_cumprod.double().tolist()),
        predicts_v=scheduler.config.prediction_type == "v_prediction",
        spacing=Spacing(scheduler.config.timestep_spacing),
        offset=int(scheduler.config.steps_offset),
    )
