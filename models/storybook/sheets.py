"""Draw the contact sheets of the model card."""

import argparse
from pathlib import Path

import torch
from data import contact_sheet
from family import BUNDLE
from PIL import Image
from prompts import Prompt
from studio import Studio

_SHOWN = (
    "a cat on the beach", "a dog on the grass", "a car in the desert", "a castle at sunset", "a boat on the sea",
    "a tree in the snow", "a house in the forest", "a rocket in space", "an owl at night", "a balloon in the sky",
    "a panda on a white background", "a horse on the grass", "an apple on a white background",
    "a pizza on a yellow background", "a guitar on a teal background", "a penguin in the snow",
    "a frog on a pink background", "a fish on a blue background", "a crown on a purple background",
    "a bus on a green background", "a kitten", "a lion in the desert", "a cat and a dog on the grass",
    "a small bee on a red background",
)  # fmt: skip


def draw(studio: Studio, folder: Path) -> None:
    """Write one sheet for finals, one for previews and one for styles (finals, then previews)."""
    shown = [Prompt(text, (), "", seed) for seed, text in enumerate(_SHOWN)]
    contact_sheet(studio.draw(shown, studio.mode("final")), 6, folder / "contact_base.jpg")
    contact_sheet(studio.draw(shown, studio.mode("preview")), 6, folder / "contact_preview.jpg")
    rows: list[Image.Image] = []
    for pool in ("final", "preview"):
        for style in studio.styles:
            rows += studio.decode(studio.latents(shown[:12], studio.mode(pool, ((style, 1.0),))), small=True)
    contact_sheet(rows, 6, folder / "contact_styles.jpg")


def main() -> None:
    """Write the sheets into the bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    draw(Studio(options.bundle), options.bundle)


if __name__ == "__main__":
    main()
