"""Train the base: both text encoders and the UNet, v-prediction, loss weighted inside the objects.

Two single-threaded workers change the same weights without locks (Hogwild): on two busy cores that is twice as fast
as one worker with two threads, whose every operation waits for the slower core. Runs differ a little for it.
"""

import argparse
import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from data import fetch, icons
from family import (
    BASE,
    BUNDLE,
    WORK,
    Condition,
    Family,
    alphas_cumprod,
    denoise,
    encode,
    load_family,
    save_family,
    signal_noise,
)
from pool import Batch, Pool
from torch import Tensor
from workers import run_workers

_EMPTY_SHARE = 0.1
_OBJECT_WEIGHT = 4.0
_SNR_CAP = 5.0
_CHECKPOINT = WORK / "base_training.pt"
_CHECKPOINT_S = 180.0
_WARMUP_STEPS = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run may vary; it ends at `steps` or after `minutes`, whichever comes first."""

    steps: int
    minutes: float
    batch: int
    rate: float
    ema: float
    start: Path
    workers: int


def trainable(family: Family) -> list[torch.nn.Parameter]:
    """Return what is trained: all but the autoencoder and the token embeddings."""
    for text in (family.text_1, family.text_2):
        text.get_input_embeddings().requires_grad_(False)
    modules = (family.unet, family.text_1, family.text_2)
    return [p for module in modules for p in module.parameters() if p.requires_grad]


def some_left_out(captions: list[str], rng: Random) -> list[str]:
    """Return captions, one in ten empty: what guidance is measured from."""
    return ["" if rng.random() < _EMPTY_SHARE else caption for caption in captions]


def loss_of(family: Family, batch: Batch, alphas: Tensor, rng: Random) -> Tensor:
    """Return the loss of one batch, more noise more often: there shapes are decided."""
    captions = some_left_out(batch.captions, rng)
    timesteps = (torch.rand(len(captions)).sqrt() * len(alphas)).long()
    return velocity_loss(family, batch, timesteps, encode(family, captions, batch.size_hw), alphas)


def velocity_loss(family: Family, batch: Batch, timesteps: Tensor, condition: Condition, alphas: Tensor) -> Tensor:
    """Return the v loss at some timesteps, weighted inside the objects.

    The SNR weight is min-SNR for v raised by one at high noise, where the caption decides what is drawn.
    """
    signal, noise_level = signal_noise(alphas, timesteps)
    noise = torch.randn_like(batch.latents)
    noisy = signal * batch.latents + noise_level * noise
    target = signal * noise - noise_level * batch.latents
    predicted = denoise(family.unet, noisy, timesteps, condition)
    snr = (signal / noise_level).square()
    weight = (snr.clamp(max=_SNR_CAP) + 1) / (snr + 1) * (1 + (_OBJECT_WEIGHT - 1) * batch.mask)
    return (weight * (predicted - target).square()).mean()


def rate_at(progress: float, step: int, peak: float) -> float:
    """Warm up over the first steps, hold, then fall along a half cosine to two per cent."""
    falling = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, (progress - 0.3) / 0.7))))
    return peak * min(1.0, (step + 1) / _WARMUP_STEPS) * falling


class Trainer:
    """Owns the optimiser, the moving average and the clock of one worker."""

    def __init__(self, family: Family, settings: Settings) -> None:
        self.family = family
        self.settings = settings
        self.parameters = trainable(family)
        self.average = [p.detach().clone() for p in self.parameters]
        self.optimiser = torch.optim.AdamW(self.parameters, settings.rate, betas=(0.9, 0.99), fused=True)
        self.step = 0
        self.steps_before = 0
        self.elapsed_s = 0.0

    @property
    def progress(self) -> float:
        """Fraction of the run that is done."""
        return max(self.step / self.settings.steps, self.elapsed_s / 60 / self.settings.minutes)

    def update(self, loss: Tensor) -> None:
        """Take one optimiser step and move the average."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate_at(self.progress, self.step - self.steps_before, self.settings.rate)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        decay = min(self.settings.ema, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - decay)
        self.step += 1

    def save(self) -> None:
        """Write the state to resume from, and the averaged weights as a pipeline folder."""
        live = [p.detach() for p in self.parameters]
        state = {"step": self.step, "elapsed_s": self.elapsed_s, "live": live, "average": self.average}
        torch.save(state, _CHECKPOINT.with_suffix(".part"))
        _CHECKPOINT.with_suffix(".part").rename(_CHECKPOINT)
        still = copy.deepcopy(self.family)  # the other workers go on changing the shared weights
        with torch.no_grad():
            for parameter, mean in zip(trainable(still), self.average, strict=True):
                parameter.copy_(mean)
        save_family(still, BASE)

    def resume(self) -> None:
        """Continue from the last checkpoint, if there is one; the optimiser warms up anew."""
        if not _CHECKPOINT.exists():
            return
        state = torch.load(_CHECKPOINT, weights_only=True)
        self.step = self.steps_before = state["step"]
        self.elapsed_s = state["elapsed_s"]
        with torch.no_grad():
            for live, saved in zip(self.parameters, state["live"], strict=True):
                live.copy_(saved)
        self.average = state["average"]


def run(trainer: Trainer, pool: Pool, rng: Random, leads: bool) -> None:
    """Train until the steps or the minutes are used up; one worker leads: it reports and saves."""
    alphas = alphas_cumprod()
    last, saved, mean_loss = time.monotonic(), time.monotonic(), 0.0
    while trainer.progress < 1:
        loss = loss_of(trainer.family, pool.draw(trainer.settings.batch), alphas, rng)
        trainer.update(loss)
        mean_loss += (loss.item() - mean_loss) * max(0.01, 1 / (trainer.step - trainer.steps_before))
        if trainer.step % 5 == 0:
            pool.renew(8)
        now = time.monotonic()
        trainer.elapsed_s += now - last
        last = now
        if leads and trainer.step % 50 == 0:
            print(f"{trainer.progress:6.1%} step {trainer.step} loss {mean_loss:.4f} {now:.0f} s", flush=True)
        if leads and now - saved > _CHECKPOINT_S:
            trainer.save()
            saved = time.monotonic()
    if leads:
        trainer.save()


def work(rank: int, family: Family, settings: Settings) -> None:
    """Run one worker: one thread, its own scenes and optimiser, weights shared with the others without locks."""
    torch.set_num_threads(1)
    trainer = Trainer(family, settings)
    trainer.resume()
    seed = 1000 * rank + trainer.step
    torch.manual_seed(seed + 1)
    pool = Pool(trainer.family, icons("flat"), capacity=1600, seed=seed + 2)
    run(trainer, pool, Random(seed + 3), leads=rank == 0)


def main() -> None:
    """Read the settings and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--ema", type=float, default=0.985)
    parser.add_argument("--start", type=Path, default=BUNDLE)
    parser.add_argument("--workers", type=int, default=2)
    settings = Settings(**vars(parser.parse_args()))
    torch.set_num_threads(1)
    fetch()
    family = load_family(settings.start)
    modules = (family.unet, family.text_1, family.text_2)
    run_workers(work, (family, settings), modules, settings.workers)


if __name__ == "__main__":
    main()
