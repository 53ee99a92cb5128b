"""Train a decoder, that of previews or that of finals, on scenes of every style; both share one latent space.

That of previews is the AutoencoderTiny's own, whose encoder stays as it is, since everything else learns from its
latents. That of finals is an AutoencoderKL that paints twice as large a side: the small autoencoder encodes a scene at
half size, the decoder paints it at full size from those latents, and its encoder learns to find the same latents in
the full-size scene. So a final is painted from the very grid of noise that its preview was.
"""

import argparse
import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from data import fetch, icons
from diffusers import AutoencoderKL, AutoencoderTiny
from family import BASE, DECODERS, PAINTED, load_family
from PIL import Image
from scenes import BUCKETS, draw_scene
from styling import STYLES
from torch import Tensor
from train_base import rate_at
from workers import run_workers

_CHECKPOINT_S = 180.0
Autoencoder = AutoencoderTiny | AutoencoderKL
_WIDTHS = (32, 48, 64, 96, 128)
_WINDOW = 8  # latents a side of a training crop
_LATENT_NOISE = 0.05  # of the latents' own spread: what a denoiser leaves behind
_EDGE_WEIGHT = 0.5
_LOG_VARIANCE = -12.0
_FRESH_EVERY = 2


@dataclass(frozen=True, slots=True)
class Budget:
    """A run ends at `steps` or after `minutes`; `whole_share` of it at the end looks at whole scenes, not crops."""

    steps: int
    minutes: float
    batch: int
    rate: float
    whole_share: float
    workers: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Shapes: `latents` (8, h, w), not scaled; `picture` (3, H, W) in [-1, 1], 8 or 16 pixels a latent."""

    latents: Tensor
    picture: Tensor


def autoencoder(scaling_factor: float) -> AutoencoderKL:
    """Return that of finals untrained: 16 pixels a latent, no attention, few norm groups so that flat colours live."""
    depth = len(_WIDTHS)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * depth,
        up_block_types=("UpDecoderBlock2D",) * depth,
        block_out_channels=_WIDTHS,
        layers_per_block=1,
        latent_channels=8,
        norm_num_groups=4,
        scaling_factor=scaling_factor,
        force_upcast=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    ).to(memory_format=torch.channels_last)


class Scenes:
    """Endless pairs of latents and scenes, of every size and style, `painted` pixels for each one encoded."""

    def __init__(self, vae: AutoencoderTiny, painted: int, seed: int) -> None:
        self._vae, self._painted = vae, painted
        self._icons = {style: icons(style) for style in STYLES}
        self._rng = Random(seed)
        self._held: list[Pair] = [self._fresh() for _ in range(64)]

    def _fresh(self) -> Pair:
        rng = self._rng
        size = BUCKETS[0] if rng.random() < 0.6 else rng.choice(BUCKETS[1:])
        style = STYLES[0] if rng.random() < 0.6 else rng.choice(STYLES[1:])
        scene = draw_scene(self._icons[style], (self._painted * size[0], self._painted * size[1]), rng, style)
        small = Image.fromarray(scene.picture).resize((size[1], size[0]), Image.Resampling.LANCZOS)
        with torch.no_grad():
            latents = self._vae.encode(_pixels(np.asarray(small))[None]).latents[0]
        return Pair(latents, _pixels(scene.picture))

    def renew(self) -> None:
        """Replace one of the held scenes."""
        self._held[self._rng.randrange(len(self._held))] = self._fresh()

    def crops(self, count: int) -> Pair:
        """Windows of held scenes as one batch."""
        parts = [self._crop(self._rng.choice(self._held)) for _ in range(count)]
        return Pair(torch.stack([p.latents for p in parts]), torch.stack([p.picture for p in parts]))

    def whole(self) -> Pair:
        """One whole scene as a batch."""
        held = self._rng.choice(self._held)
        return Pair(held.latents[None], held.picture[None])

    def _crop(self, pair: Pair) -> Pair:
        height, width = pair.latents.shape[1:]
        y, x = self._rng.randint(0, height - _WINDOW), self._rng.randint(0, width - _WINDOW)
        scale = pair.picture.shape[1] // height
        rows, columns = slice(y * scale, (y + _WINDOW) * scale), slice(x * scale, (x + _WINDOW) * scale)
        return Pair(pair.latents[:, y : y + _WINDOW, x : x + _WINDOW], pair.picture[:, rows, columns])


def _pixels(picture: np.ndarray) -> Tensor:
    """Shapes: (H, W, 3) uint8 to (3, H, W) in [-1, 1]."""
    return torch.from_numpy(picture.copy()).permute(2, 0, 1).float() / 127.5 - 1


def _edges(pictures: Tensor) -> tuple[Tensor, Tensor]:
    return pictures.diff(dim=2), pictures.diff(dim=3)


def loss_of(vae: Autoencoder, pair: Pair) -> tuple[Tensor, float]:
    """Return the loss and the decoder's plain L1: pixels and their differences, and a trained encoder's distance."""
    noise = _LATENT_NOISE * pair.latents.std() * torch.rand(len(pair.latents), 1, 1, 1)
    painted = vae.decode(pair.latents + noise * torch.randn_like(pair.latents), return_dict=False)[0]
    pixel = F.l1_loss(painted, pair.picture)
    edge = torch.stack([F.l1_loss(a, b) for a, b in zip(_edges(painted), _edges(pair.picture), strict=True)]).sum()
    loss = pixel + _EDGE_WEIGHT * edge
    return loss + 0.2 * _encoding_loss(vae, pair) if isinstance(vae, AutoencoderKL) else loss, pixel.item()


def _encoding_loss(vae: AutoencoderKL, pair: Pair) -> Tensor:
    mean, log_variance = vae.encoder(pair.picture).chunk(2, dim=1)
    return F.l1_loss(mean, pair.latents) + 0.01 * F.mse_loss(log_variance, torch.full_like(mean, _LOG_VARIANCE))


class Trainer:
    """Owns the optimiser and the moving average of one worker."""

    def __init__(self, vae: Autoencoder, output: Path, budget: Budget) -> None:
        self.vae, self.output, self.budget = vae, output, budget
        self.parameters = [p for p in vae.parameters() if p.requires_grad]
        self.average = [p.detach().clone() for p in self.parameters]
        self.optimiser = torch.optim.AdamW(
            self.parameters, budget.rate, betas=(0.9, 0.99), weight_decay=0.0, fused=True
        )
        self.step = self.steps_before = 0
        self._started = time.monotonic()

    @property
    def progress(self) -> float:
        """Share of the budget that is spent."""
        return max(self.step / self.budget.steps, (time.monotonic() - self._started) / 60 / self.budget.minutes)

    def update(self, loss: Tensor) -> None:
        """Take one optimiser step and move the average."""
        rate = rate_at(self.progress, self.step - self.steps_before, self.budget.rate)
        self.optimiser.param_groups[0]["lr"] = rate
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        decay = min(0.998, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - decay)
        self.step += 1

    def save(self) -> None:
        """Write the state to resume from, and the averaged weights as a diffusers folder."""
        live = [p.detach() for p in self.parameters]
        part = self._checkpoint.with_suffix(".part")
        torch.save({"step": self.step, "live": live, "average": self.average}, part)
        part.rename(self._checkpoint)
        still = copy.deepcopy(self.vae)
        with torch.no_grad():
            trained = [p for p in still.parameters() if p.requires_grad]
            for parameter, mean in zip(trained, self.average, strict=True):
                parameter.copy_(mean)
        still.save_pretrained(self.output)

    @property
    def _checkpoint(self) -> Path:
        return self.output.with_suffix(".pt")

    def resume(self) -> None:
        """Continue from the last checkpoint, if there is one; the optimiser warms up anew."""
        if not self._checkpoint.exists():
            return
        state = torch.load(self._checkpoint, weights_only=True)
        self.step = self.steps_before = state["step"]
        with torch.no_grad():
            for live, saved in zip(self.parameters, state["live"], strict=True):
                live.copy_(saved)
        self.average = state["average"]


def work(rank: int, vae: Autoencoder, small: AutoencoderTiny, painted: int, budget: Budget) -> None:
    """Run one worker; see train_base for why there are two. The leading one reports and saves."""
    torch.set_num_threads(1)
    trainer = Trainer(vae, DECODERS[painted], budget)
    trainer.resume()
    torch.manual_seed(40 + rank + trainer.step)
    scenes = Scenes(small, painted, seed=42 + 1000 * rank + trainer.step)
    saved, mean_l1 = time.monotonic(), 0.0
    while trainer.progress < 1:
        whole = trainer.progress > 1 - budget.whole_share
        loss, l1 = loss_of(vae, scenes.whole() if whole else scenes.crops(budget.batch))
        trainer.update(loss)
        mean_l1 += (l1 - mean_l1) * max(0.01, 1 / (trainer.step - trainer.steps_before))
        if trainer.step % _FRESH_EVERY == 0:
            scenes.renew()
        if rank == 0 and trainer.step % 50 == 0:
            print(f"{trainer.progress:6.1%} step {trainer.step} L1 {mean_l1:.4f}", flush=True)
        if rank == 0 and time.monotonic() - saved > _CHECKPOINT_S:
            trainer.save()
            saved = time.monotonic()
    if rank == 0:
        trainer.save()


def main() -> None:
    """Read the budget and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("which", choices=("previews", "finals"))
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--whole-share", type=float, default=0.15)
    parser.add_argument("--workers", type=int, default=2)
    options = vars(parser.parse_args())
    painted = 1 if options.pop("which") == "previews" else PAINTED
    budget = Budget(**options)
    torch.set_num_threads(1)
    torch.manual_seed(40)
    fetch()
    small = load_family(BASE).vae
    vae = autoencoder(float(small.config.scaling_factor)) if painted > 1 else copy.deepcopy(small)
    if isinstance(vae, AutoencoderTiny):
        vae.decoder.requires_grad_(True)
    count = sum(p.numel() for p in vae.parameters() if p.requires_grad)
    print(f"{count / 1e6:.1f} M parameters, {2 * count / 1e6:.0f} MB in fp16", flush=True)
    run_workers(work, (vae, small, painted, budget), (vae,), budget.workers)


if __name__ == "__main__":
    main()
