"""Measure the bundle with the judge: objects, backgrounds, styles and speed; a table, then one JSON line."""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import judge
import torch
from catalogue import PLACES, article, object_labels
from data import contact_sheet
from diffusers import LCMScheduler, StableDiffusionXLPipeline
from family import BUNDLE
from PIL import Image
from styling import STYLES

MACHINE = "2 cores AMD EPYC, no GPU"
_BATCH = 10
_SHOWN = (
    "a cat on the beach", "a dog on the grass", "a car in the desert", "a castle at sunset", "a boat on the sea",
    "a tree in the snow", "a house in the forest", "a rocket in space", "an owl at night", "a balloon in the sky",
    "a panda on a white background", "a horse on the grass", "an apple on a white background",
    "a pizza on a yellow background", "a guitar on a teal background", "a penguin in the snow",
    "a frog on a pink background", "a fish on a blue background", "a crown on a purple background",
    "a bus on a green background", "a kitten", "a lion in the desert", "a cat and a dog on the grass",
    "a small bee on a red background",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prompt:
    """A caption and what the judge should see in it."""

    text: str
    thing: str
    background: str


@dataclass(frozen=True, slots=True)
class Mode:
    """How pictures are made: few-step preview or final, with or without a style."""

    preview: bool
    steps: int
    guidance: float
    style: str | None = None


class Studio:
    """Owns the pipeline and switches its adapters and sampler."""

    def __init__(self, bundle: Path) -> None:
        self.pipe = StableDiffusionXLPipeline.from_pretrained(bundle, torch_dtype=torch.float32)
        self.pipe.set_progress_bar_config(disable=True)
        self.pipe.load_lora_weights(bundle, weight_name="preview_lcm.safetensors", adapter_name="preview")
        for entry in json.loads((bundle / "styles/styles.json").read_text()):
            self.pipe.load_lora_weights(bundle / "styles", weight_name=entry["file"], adapter_name=entry["id"])
        self._final = self.pipe.scheduler
        self._preview = LCMScheduler.from_config(self.pipe.scheduler.config)

    def draw(self, texts: list[str], mode: Mode, size_hw: tuple[int, int] = (128, 128)) -> list[Image.Image]:
        """Draw the prompts, each with its place in the list as its seed."""
        active = [name for name in (mode.style, "preview" if mode.preview else None) if name]
        self.pipe.enable_lora()
        self.pipe.set_adapters(active) if active else self.pipe.disable_lora()
        self.pipe.scheduler = self._preview if mode.preview else self._final
        pictures: list[Image.Image] = []
        for at in range(0, len(texts), _BATCH):
            part = texts[at : at + _BATCH]
            pictures += self.pipe(
                part,
                height=size_hw[0],
                width=size_hw[1],
                num_inference_steps=mode.steps,
                guidance_scale=mode.guidance,
                generator=[torch.Generator().manual_seed(at + i) for i in range(len(part))],
            ).images
        return pictures


def white_prompts(count: int) -> list[Prompt]:
    """Ask for `count` objects on white, each trained object as often as the others."""
    trained = Random(41).sample([*object_labels()], len(object_labels()))
    things = [trained[i % len(trained)] for i in range(count)]
    return [Prompt(f"{article(thing)} on a white background", thing, "white") for thing in things]


def background_prompts(each: int) -> list[Prompt]:
    """Ask for every place and colour `each` times, with different objects."""
    rng, prompts = Random(42), []
    for background in judge.BACKGROUNDS:
        setting = PLACES[background][0] if background in PLACES else f"on {article(background)} background"
        for thing in rng.sample([*object_labels()], each):
            prompts.append(Prompt(f"{article(thing)} {setting}", thing, background))
    return prompts


def score(studio: Studio, judged: judge.Judge, prompts: list[Prompt], mode: Mode) -> dict[str, float]:
    """Draw prompts and return what the judge says of them."""
    began = time.perf_counter()
    pictures = studio.draw([prompt.text for prompt in prompts], mode)
    seconds = (time.perf_counter() - began) / len(prompts)
    objects, backgrounds, styles = judge.verdicts(judged, pictures)
    things = torch.tensor([judge.OBJECTS.index(prompt.thing) for prompt in prompts])
    places = torch.tensor([judge.BACKGROUNDS.index(prompt.background) for prompt in prompts])
    asked = torch.full((len(prompts),), STYLES.index(mode.style or "flat"))
    return {
        "object_top1": judge.hits(objects, things, 1),
        "object_top5": judge.hits(objects, things, 5),
        "background": judge.hits(backgrounds, places, 1),
        "style": judge.hits(styles, asked, 1),
        "s_per_picture": seconds,
    }


def measure(studio: Studio, judged: judge.Judge, modes: dict[str, Mode], share: float) -> dict[str, dict[str, float]]:
    """Run every measurement; `share` below one takes fewer prompts."""
    white, places = white_prompts(round(100 * share)), background_prompts(max(1, round(2 * share)))
    figures = {}
    for name, mode in modes.items():
        figures[f"{name}_white"] = score(studio, judged, white, mode)
        figures[f"{name}_places"] = score(studio, judged, places, mode)
        for style in STYLES[1:]:
            styled = Mode(mode.preview, mode.steps, mode.guidance, style)
            figures[f"{name}_{style}"] = score(studio, judged, white[: round(30 * share)], styled)
    return figures


def sheets(studio: Studio, final: Mode, preview: Mode, folder: Path) -> None:
    """Write the contact sheets of the model card."""
    texts = list(_SHOWN)
    contact_sheet(studio.draw(texts, final), 6, folder / "contact_base.jpg")
    contact_sheet(studio.draw(texts, preview), 6, folder / "contact_preview.jpg")
    rows: list[Image.Image] = []
    for mode in (final, preview):
        for style in STYLES[1:]:
            rows += studio.draw(texts[:12], Mode(mode.preview, mode.steps, mode.guidance, style))
    contact_sheet(rows, 6, folder / "contact_styles.jpg")


def report(figures: dict[str, dict[str, float]], config: dict[str, object], path: Path | None) -> None:
    """Print the table and the JSON line; append the line to a file if one is given."""
    columns = list(next(iter(figures.values())))
    print(f"{'':16}" + "".join(f"{column:>15}" for column in columns))
    for name, row in figures.items():
        print(f"{name:16}" + "".join(f"{row[column]:15.3f}" for column in columns))
    rounded = {name: {k: round(v, 3) for k, v in row.items()} for name, row in figures.items()}
    line = json.dumps({"machine": MACHINE, "config": config, "figures": rounded})
    print(line)
    if path:
        with path.open("a") as results:
            results.write(line + "\n")


def main() -> None:
    """Evaluate a bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--share", type=float, default=1.0, help="fraction of the prompts to draw")
    parser.add_argument("--pool", choices=("final", "preview"), help="measure one pool only")
    parser.add_argument("--sheets", action="store_true", help="write the contact sheets into the bundle")
    parser.add_argument("--results", type=Path, default=None, help="file to append the JSON line to")
    options = parser.parse_args()
    torch.set_num_threads(2)
    settings = json.loads((options.bundle / "storybook.json").read_text())
    final = Mode(False, settings["final"]["steps"], settings["final"]["guidance_scale"])
    preview = Mode(True, settings["preview"]["steps"], settings["preview"]["guidance_scale"])
    studio, judged = Studio(options.bundle), judge.load()
    modes = {"final": final, "preview": preview}
    chosen = {name: mode for name, mode in modes.items() if options.pool in (None, name)}
    figures = measure(studio, judged, chosen, options.share)
    figures_of_judge = {key: round(value, 3) for key, value in judge.own_accuracy(judged).items()}
    config = {"final": settings["final"], "preview": settings["preview"], "share": options.share, **figures_of_judge}
    report(figures, config, options.results)
    if options.sheets:
        sheets(studio, final, preview, options.bundle)


if __name__ == "__main__":
    main()
