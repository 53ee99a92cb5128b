"""What a picture shows, as a small classifier that comes with a model reads it: object, background and style."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from core.errors import InvalidInput, StartupError
from sampling.layout import REMEDY, header_of
from sampling.picture import Pixels

FILE = Path("gate") / "judge.safetensors"  # in a model's folder
HEADS = ("object", "background", "style")
SIDE = 128
WIDTHS = (3, 24, 48, 96, 128, 160)


class JudgeNetwork(nn.Module):
    """Strided convolutions and a linear head each for objects, backgrounds and styles."""

    def __init__(self, *classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise(WIDTHS):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3))
        features = WIDTHS[-1] * (SIDE // 2 ** (len(WIDTHS) - 1)) ** 2
        self.heads = nn.ModuleList(nn.Linear(features, count) for count in classes)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Scores of each head. Shapes: pixels [n, 3, 128, 128] in −1…1; results [n, classes]."""
        features = self.body(pixels)
        return tuple(head(features) for head in self.heads)


@dataclass(frozen=True, slots=True)
class Mark:
    """How likely the judge finds what was asked for, 0…1, and whether that is its first guess."""

    score: float
    right: bool


class Judge:
    """Reads pictures; one thread at a time. classes: the names behind each head's scores."""

    def __init__(self, network: JudgeNetwork, classes: Mapping[str, tuple[str, ...]]) -> None:
        self._network = network.eval().requires_grad_(False)
        self.classes = classes

    @torch.no_grad()
    def mark(self, picture: Pixels, asked: Mapping[str, str]) -> dict[str, Mark]:
        """A mark for each head that something is asked of. Shapes: picture [H, W, 3].

        Raises: InvalidInput for a name that the judge was not taught.
        """
        pixels = shrink(Image.fromarray(picture))[None].float() / 127.5 - 1
        scores = dict(zip(HEADS, self._network(pixels), strict=True))
        return {head: self._mark(head, scores[head][0], name) for head, name in asked.items()}

    def _mark(self, head: str, scores: Tensor, name: str) -> Mark:
        names = self.classes[head]
        if name not in names:
            raise InvalidInput(head, f'the judge does not know "{name}"')
        place = names.index(name)
        return Mark(float(scores.softmax(dim=0)[place]), int(scores.argmax()) == place)


def load_judge(model_dir: Path) -> Judge | None:
    """The judge that comes with a model; None where it has none.

    Raises: StartupError for a file that is broken or is no judge.
    """
    path = model_dir / FILE
    if not path.exists():
        return None
    header_of(path)
    with safe_open(path, "pt") as file:
        described = file.metadata() or {}
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    try:
        classes = {head: tuple(json.loads(described[head])) for head in HEADS}
        network = JudgeNetwork(*(len(names) for names in classes.values()))
        network.load_state_dict({name: weight.float() for name, weight in weights.items()})
    except (KeyError, ValueError, RuntimeError) as error:
        raise StartupError(f"{path} is no judge: {error!r}", REMEDY) from error
    return Judge(network, classes)


def save_judge(network: nn.Module, classes: Mapping[str, tuple[str, ...]], model_dir: Path) -> Path:
    """Writes weights in half precision and the names of the classes as one file."""
    path = model_dir / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {
        name: weight.half() if weight.is_floating_point() else weight for name, weight in network.state_dict().items()
    }
    save_file(weights, path, {head: json.dumps(classes[head]) for head in HEADS})
    path.chmod(0o644)
    return path


def shrink(picture: Image.Image) -> Tensor:
    """What the judge sees of a picture of any size. Shapes: uint8 [3, 128, 128]."""
    small = picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
    return torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1)
