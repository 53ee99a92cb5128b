"""A small classifier of object, background and style, trained on composed scenes only.

It never sees a generated picture before it judges one. Blur, noise and shifts in its training stand for what an
autoencoder does to a picture.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from catalogue import COLOURS, PLACES, object_labels
from data import icons
from family import BUNDLE, WORK
from PIL import Image
from scenes import BUCKETS, compose
from styling import STYLES
from torch import Tensor

from sampling.judge import SIDE, JudgeNetwork, save_judge, shrink

BACKGROUNDS = (*COLOURS, *PLACES)
OBJECTS = tuple(object_labels())
PATH = WORK / "judge.pt"
CLASSES = {"object": OBJECTS, "background": BACKGROUNDS, "style": STYLES}


@dataclass(frozen=True, slots=True)
class Labelled:
    """Shapes: `pictures` (N, 3, 128, 128) uint8; the labels (N,) int64."""

    pictures: Tensor
    objects: Tensor
    backgrounds: Tensor
    styles: Tensor


def labelled_scenes(count: int, seed: int) -> Labelled:
    """Compose single-object scenes of all styles, objects and backgrounds, half of them flat."""
    rng = Random(seed)
    drawn = {style: icons(style) for style in STYLES}
    pictures, objects, backgrounds, styles = [], [], [], []
    for i in range(count):
        style = STYLES[0] if rng.random() < 0.5 else rng.choice(STYLES[1:])
        name, background = OBJECTS[i % len(OBJECTS)], rng.choice(BACKGROUNDS)
        if name not in drawn[style]:  # not every pack has every object
            style = STYLES[0]
        size = BUCKETS[0] if rng.random() < 0.7 else rng.choice(BUCKETS[1:])
        scene = compose(drawn[style], (name,), background, size, rng, style)
        pictures.append(shrink(Image.fromarray(scene.picture)))
        objects.append(OBJECTS.index(name))
        backgrounds.append(BACKGROUNDS.index(background))
        styles.append(STYLES.index(style))
    return Labelled(torch.stack(pictures), torch.tensor(objects), torch.tensor(backgrounds), torch.tensor(styles))


def roughen(pictures: Tensor) -> Tensor:
    """Shift, blur and add noise; returns pixels in [-1, 1]."""
    pixels = pictures.float() / 127.5 - 1
    dy, dx = (int(v) for v in torch.randint(-10, 11, (2,)))
    pixels = torch.roll(F.pad(pixels, (10,) * 4, mode="replicate"), (dy, dx), (2, 3))[:, :, 10:-10, 10:-10]
    side = int(torch.randint(48, SIDE + 1, ()))  # reduce and enlarge: the softness of a decoder
    pixels = F.interpolate(F.interpolate(pixels, side, mode="area"), SIDE, mode="bilinear", align_corners=False)
    return pixels + torch.randn_like(pixels) * float(torch.rand(())) * 0.12


def train(scenes: int, epochs: int) -> JudgeNetwork:
    """Train on composed scenes with a one-cycle rate."""
    held = labelled_scenes(scenes, seed=11)
    judge, batch = new(), 64
    steps = epochs * (scenes // batch)
    optimiser = torch.optim.AdamW(judge.parameters(), 2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    for step in range(steps):
        rows = torch.randint(0, scenes, (batch,))
        scores = judge(roughen(held.pictures[rows]))
        labels = (held.objects[rows], held.backgrounds[rows], held.styles[rows])
        weights = (1.0, 0.3, 0.2)
        losses = [w * F.cross_entropy(s, t) for w, s, t in zip(weights, scores, labels, strict=True)]
        loss = torch.stack(losses).sum()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
        if step % 100 == 0:
            print(f"{step / steps:6.1%} loss {loss.item():.3f}", flush=True)
    return judge.eval()


@torch.no_grad()
def verdicts(judge: JudgeNetwork, pictures: list[Image.Image]) -> tuple[Tensor, Tensor, Tensor]:
    """Return object, background and style scores of pictures of any size."""
    pixels = torch.stack([shrink(picture) for picture in pictures]).float() / 127.5 - 1
    objects, backgrounds, styles = judge(pixels)
    return objects, backgrounds, styles


def hits(scores: Tensor, labels: Tensor, within: int) -> float:
    """Return the share of rows whose label is among the `within` best scores."""
    best = scores.topk(within, dim=1).indices
    return float((best == labels.unsqueeze(1)).any(dim=1).float().mean())


@torch.no_grad()
def own_accuracy(judge: JudgeNetwork, count: int = 1075) -> dict[str, float]:
    """Judge fresh composed scenes, none of them in its training set."""
    fresh = labelled_scenes(count, seed=12)
    objects, backgrounds, styles = judge(fresh.pictures.float() / 127.5 - 1)
    return {
        "judge_object_top1": hits(objects, fresh.objects, 1),
        "judge_object_top5": hits(objects, fresh.objects, 5),
        "judge_background_top1": hits(backgrounds, fresh.backgrounds, 1),
        "judge_style_top1": hits(styles, fresh.styles, 1),
    }


def new() -> JudgeNetwork:
    """Return an untrained judge of everything that storybook knows."""
    return JudgeNetwork(*(len(names) for names in CLASSES.values()))


def load(path: Path = PATH) -> JudgeNetwork:
    """Load the trained judge."""
    judge = new()
    judge.load_state_dict(torch.load(path, weights_only=True))
    return judge.eval()


def main() -> None:
    """Train, unless it is trained, write the gate's copy, and report the accuracy on held-out scenes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=40 * len(OBJECTS))
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--bundle", type=Path, default=BUNDLE, help="where the gate's copy of the judge is written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(10)
    if not PATH.exists():
        torch.save(train(options.scenes, options.epochs).state_dict(), PATH)
    print(save_judge(load(), CLASSES, options.bundle))
    print({key: round(value, 3) for key, value in own_accuracy(load()).items()}, f"chance {1 / len(OBJECTS):.3f}")


if __name__ == "__main__":
    main()
