"""A reference: the scores of a set that was painted before, and its pictures on one sheet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from core.cost import Identity
from core.errors import InvalidInput, StartupError
from final_engine.gate.cases import set_digest
from final_engine.gate.figures import Pace, Scores
from final_engine.similarity import psnr, similarity
from sampling.picture import Pixels

SCORES, SHEET = "reference.json", "reference.webp"
CELL = 128  # pixels a side that a picture has on the sheet at most
COLUMNS = 16
QUALITY = 88  # the sheet is a picture of the pictures; what it loses is in the reference's own scores as well
REMEDY = "write it anew with: firstlight eval --write-reference FOLDER --reason '...'"


@dataclass(frozen=True, slots=True)
class Reference:
    """scores and tiles by a picture's name, paces by pool. reason: why this became the reference."""

    identity: Identity
    option: str
    reason: str
    scores: Mapping[str, Scores]
    paces: Mapping[str, Pace]
    tiles: Mapping[str, Pixels]

    def compared(self, name: str, picture: Pixels | None, scores: Scores) -> Scores:
        """The scores with the likeness to this reference's picture."""
        tile = self.tiles.get(name)
        if picture is None or tile is None:
            return scores
        return replace(scores, ssim=round(similarity(tile, picture), 4), psnr=round(psnr(tile, picture), 2))


def write_reference(
    folder: Path,
    pictures: Mapping[str, Pixels],
    scores: Mapping[str, Scores],
    paces: Mapping[str, Pace],
    identity: Identity,
    option: str,
    reason: str,
) -> None:
    """Writes the sheet, and the scores with each picture's likeness to what the sheet keeps of it."""
    folder.mkdir(parents=True, exist_ok=True)
    small = {name: _small(picture) for name, picture in pictures.items()}
    sheet_of([*small.values()], CELL, COLUMNS).save(folder / SHEET, quality=QUALITY, method=6)
    sizes = {name: picture.shape[:2] for name, picture in small.items()}
    unscored = Reference(identity, option, reason, {}, paces, _cut(folder / SHEET, sizes))
    kept = {name: asdict(unscored.compared(name, pictures[name], scores[name])) for name in pictures}
    body = {
        "set": set_digest(),
        "option": option,
        "reason": reason,
        "identity": asdict(identity),
        "paces": {pool: asdict(pace) for pool, pace in paces.items()},
    }
    lines = [f'"{name}": {json.dumps([*sizes[name], one])}' for name, one in kept.items()]
    head = json.dumps(body, indent=1).removesuffix("\n}")
    text = head + ',\n "pictures": {\n  ' + ",\n  ".join(lines) + "\n }\n}\n"
    (folder / SCORES).write_text(text, encoding="utf-8")


def read_reference(folder: Path, model: str) -> Reference:
    """Raises: StartupError when it is missing or broken; InvalidInput when it is of another model or set."""
    path = folder / SCORES
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        reference = _reference(folder, body)
    except OSError as error:
        raise StartupError(f"{error.filename or path} cannot be read: {error.strerror or error}", REMEDY) from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StartupError(f"{path} is no reference: {error!r}", REMEDY) from error
    of = f"{reference.identity.model}@{reference.identity.version}"
    if of != model:
        raise InvalidInput("--against", f"{path} is of {of}, this is {model}; {REMEDY}")
    if body["set"] != set_digest():
        raise InvalidInput("--against", f"{path} is of another set of prompts; {REMEDY}")
    return reference


def sheet_of(pictures: Sequence[Pixels], cell: int, columns: int) -> Image.Image:
    """Pictures in a grid of square cells, each in the upper left corner of its own."""
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * cell, rows * cell), "white")
    for i, picture in enumerate(pictures):
        sheet.paste(Image.fromarray(picture), (i % columns * cell, i // columns * cell))
    return sheet


def _small(picture: Pixels) -> Pixels:
    image = Image.fromarray(picture)
    scale = min(1.0, CELL / max(image.size))
    size = (round(image.width * scale), round(image.height * scale))
    return np.asarray(image.resize(size, Image.Resampling.BOX))


def _cut(path: Path, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Pixels]:
    """Pictures off the sheet, in the order in which they were put there. Shapes: sizes as height and width."""
    with Image.open(path) as image:
        sheet = np.asarray(image.convert("RGB"))
    tiles = {}
    for i, (name, (height, width)) in enumerate(sizes.items()):
        top, left = i // COLUMNS * CELL, i % COLUMNS * CELL
        tiles[name] = sheet[top : top + height, left : left + width]
        if tiles[name].shape[:2] != (height, width):
            raise ValueError(f"the sheet has no place for {name}")
    return tiles


def _reference(folder: Path, body: dict[str, Any]) -> Reference:
    pictures = body["pictures"]
    return Reference(
        identity=Identity(**body["identity"]),
        option=str(body["option"]),
        reason=str(body["reason"]),
        scores={name: Scores(**entry[2]) for name, entry in pictures.items()},
        paces={pool: Pace(**pace) for pool, pace in body["paces"].items()},
        tiles=_cut(folder / SHEET, {name: (int(entry[0]), int(entry[1])) for name, entry in pictures.items()}),
    )
