"""Assemble the bundle: base in fp16, preview adapter, styles and the JSON descriptions."""

import argparse
import dataclasses
import json
import shutil
from pathlib import Path

import torch
from catalogue import COLOURS, PLACES, object_labels
from diffusers import AutoencoderKL, AutoencoderTiny
from family import BASE, BUNDLE, DECODERS, PAINTED, WORK, load_family, save_family
from scenes import BUCKETS
from styling import STYLES

_STYLES = {
    "ink": ("Ink", "MIT", "Ink pictograms on pale paper; learnt from the Fluent high-contrast icons."),
    "noto": ("Noto", "Apache-2.0", "Shaded drawings cut out as stickers; learnt from the Noto emoji."),
    "comic": ("Comic", "Apache-2.0", "Friendly drawings with a bold outline; learnt from the Firefox OS emoji."),
    "chalk": ("Chalk", "MIT", "Pale chalk lines on a dark green board."),
    "sketch": ("Sketch", "MIT", "Pencil lines on warm paper."),
    "neon": ("Neon", "MIT", "Dark blue, violet, magenta and pale yellow light."),
    "watercolour": ("Watercolour", "MIT", "Pale washes with dark rims on grained paper."),
}
# Euler's steps add no noise of their own, so that few of them end where many do: similarity 0.85, with LCM's own 0.73.
_PREVIEWS = {
    "lcm": {"adapter": "preview_lcm.safetensors", "sampler": "euler"},
    "turbo": {"adapter": "preview_turbo.safetensors", "sampler": "euler"},
}
_SMALL = "vae_preview"


def licence(shipped: list[dict[str, object]]) -> str:
    """Say which licence holds for what: the base's is MIT, styles bring their packs'."""
    by_licence: dict[str, list[str]] = {"MIT": ["base", "previews"]}
    for style in shipped:
        by_licence.setdefault(str(style["licence"]), []).append(str(style["id"]))
    return "; ".join(f"{name} ({', '.join(parts)})" for name, parts in by_licence.items())


def describe(guidance: float, preview: str, painted: int, shipped: list[dict[str, object]]) -> dict[str, object]:
    """Return storybook.json."""
    decoder = {"decoder": _SMALL} if painted > 1 else {}
    return {
        "id": "storybook",
        "version": "2",
        "licence": licence(shipped),
        "commercial": True,
        "about": "the small model in the repository; nothing to fetch, no GPU needed",
        "buckets": [[painted * width, painted * height] for height, width in sorted(BUCKETS, key=_by_shape)],
        "preview": {**_PREVIEWS[preview], **decoder, "steps": 4, "guidance_scale": 1.0},
        "final": {"sampler": "euler", "steps": 25, "guidance_scale": guidance},
        "objects": list(object_labels()),
        "places": list(PLACES),
        "colours": list(COLOURS),
    }


def styles(folder: Path) -> list[dict[str, object]]:
    """Return styles/styles.json: the styles whose files are there."""
    return [
        {
            "id": style,
            "name": name,
            "file": f"{style}.safetensors",
            "weight": 1.0,
            "trigger_words": [],
            "licence": licence,
            "description": text,
        }
        for style, (name, licence, text) in _STYLES.items()
        if (folder / f"{style}.safetensors").exists()
    ]


def _by_shape(size_hw: tuple[int, int]) -> tuple[int, int]:
    """The square first, then the next longer, each wide before it is tall."""
    return max(size_hw), -size_hw[1]


def write_json(path: Path, value: object) -> None:
    """Write a description readable by people."""
    path.write_text(json.dumps(value, indent=1) + "\n")


def export(folder: Path, guidance: float, preview: str) -> None:
    """Write what has been trained so far; an adapter not trained yet keeps its old file."""
    (folder / "styles").mkdir(parents=True, exist_ok=True)
    family = load_family(BASE)
    if DECODERS[1].exists():
        family = dataclasses.replace(family, vae=AutoencoderTiny.from_pretrained(DECODERS[1]))
    save_family(family, folder, torch.float16)
    painted = 1
    if DECODERS[PAINTED].exists():
        painted = PAINTED
        shutil.rmtree(folder / _SMALL, ignore_errors=True)
        (folder / "vae").rename(folder / _SMALL)
        AutoencoderKL.from_pretrained(DECODERS[PAINTED]).half().save_pretrained(folder / "vae")
        name_decoder(folder)
    for adapter in _PREVIEWS.values():
        copy_if_made(WORK / adapter["adapter"], folder / adapter["adapter"])
    for style in STYLES[1:]:
        copy_if_made(WORK / f"styles/{style}.safetensors", folder / f"styles/{style}.safetensors")
    shipped = styles(folder / "styles")
    write_json(folder / "storybook.json", describe(guidance, preview, painted, shipped))
    write_json(folder / "styles/styles.json", shipped)


def copy_if_made(source: Path, target: Path) -> None:
    """Copy a trained file; one that is not there leaves the old one."""
    if source.exists():
        shutil.copyfile(source, target)


def name_decoder(folder: Path) -> None:
    """Say in the pipeline's index which class decodes finals."""
    index = json.loads((folder / "model_index.json").read_text())
    write_json(folder / "model_index.json", index | {"vae": ["diffusers", "AutoencoderKL"]})


def main() -> None:
    """Export and print the size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--guidance", type=float, default=1.5, help="of finals; previews were distilled with 1.5")
    parser.add_argument("--preview", choices=[*_PREVIEWS], default="lcm")
    options = parser.parse_args()
    export(options.bundle, options.guidance, options.preview)
    size_mb = sum(path.stat().st_size for path in options.bundle.rglob("*") if path.is_file()) / 1e6
    print(f"{options.bundle.name}: {size_mb:.1f} MB")


if __name__ == "__main__":
    main()
