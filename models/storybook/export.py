"""Assemble the bundle: base in fp16, preview adapter, styles and the JSON descriptions."""

import argparse
import json
import shutil
from pathlib import Path

import torch
from catalogue import COLOURS, PLACES, object_labels
from distil_lcm import OUTPUT as PREVIEW
from family import BASE, BUNDLE, WORK, load_family, save_family
from scenes import BUCKETS
from styling import STYLES

_STYLES = {
    "ink": {
        "name": "Ink",
        "licence": "MIT",
        "description": "Ink pictograms on pale paper; learnt from the Fluent high-contrast icons.",
    },
    "noto": {
        "name": "Noto",
        "licence": "Apache-2.0",
        "description": "Rounder drawings with more shading; learnt from the Noto emoji.",
    },
}


def describe(guidance: float) -> dict[str, object]:
    """Return storybook.json."""
    return {
        "id": "storybook",
        "version": "0",
        "licence": "MIT (base, preview, ink); Apache-2.0 (noto)",
        "buckets": [list(size) for size in BUCKETS],
        "preview": {"adapter": "preview_lcm.safetensors", "sampler": "lcm", "steps": 4, "guidance_scale": 1.0},
        "final": {"sampler": "euler", "steps": 25, "guidance_scale": guidance},
        "objects": list(object_labels()),
        "places": list(PLACES),
        "colours": list(COLOURS),
    }


def styles() -> list[dict[str, object]]:
    """Return styles/styles.json."""
    return [
        {"id": style, "file": f"{style}.safetensors", "weight": 1.0, "trigger_words": [], **_STYLES[style]}
        for style in STYLES[1:]
    ]


def write_json(path: Path, value: object) -> None:
    """Write a description readable by people."""
    path.write_text(json.dumps(value, indent=1) + "\n")


def export(folder: Path, guidance: float) -> None:
    """Write what has been trained so far; an adapter not trained yet keeps its old file."""
    (folder / "styles").mkdir(parents=True, exist_ok=True)
    save_family(load_family(BASE), folder, torch.float16)
    write_json(folder / "storybook.json", describe(guidance))
    write_json(folder / "styles/styles.json", styles())
    adapters = [(PREVIEW, folder / PREVIEW.name)]
    adapters += [(WORK / f"styles/{style}.safetensors", folder / f"styles/{style}.safetensors") for style in STYLES[1:]]
    for source, target in adapters:
        if source.exists():
            shutil.copyfile(source, target)


def main() -> None:
    """Export and print the size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--guidance", type=float, default=3.0)
    options = parser.parse_args()
    export(options.bundle, options.guidance)
    size_mb = sum(path.stat().st_size for path in options.bundle.rglob("*") if path.is_file()) / 1e6
    print(f"{options.bundle.name}: {size_mb:.1f} MB")


if __name__ == "__main__":
    main()
