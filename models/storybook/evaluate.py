"""Measure the bundle with the judge, part by part; a table, then one JSON line.

Every figure is a share of pictures unless its name says otherwise. Prompts and seeds are always the same.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import judge
import numpy as np
import prompts
import torch
from family import BUNDLE
from PIL import Image
from prompts import Prompt
from studio import Mode, Studio
from styling import STYLES

from final_engine.similarity import similarity
from sampling.judge import JudgeNetwork

MACHINE = "2 cores AMD EPYC, no GPU"
Figures = dict[str, float]
_WHITE_DISTANCE = 24  # of 255: what differs more from the page belongs to the object


class Measures:
    """Owns what every measurement needs; each method is one part, and `parts` lists them."""

    def __init__(self, studio: Studio, judged: JudgeNetwork, share: float) -> None:
        self.studio, self.judged, self.share = studio, judged, share
        self.final, self.preview = studio.mode("final"), studio.mode("preview")

    def parts(self) -> dict[str, Callable[[], Figures]]:
        """Return the measurements by name, quick ones first."""
        return {
            "judge": lambda: judge.own_accuracy(self.judged),
            "similarity": self.similarity,
            "sizes": self.sizes,
            "pairs": self.pairs,
            "held_out": self.held_out,
            "buckets": self.buckets,
            "guidance": self.guidance,
            "negative": self.negative,
            "previews": self.previews,
            "styles": self.styles,
            "mixes": self.mixes,
            "finals": self.finals,
        }

    def _count(self, whole: int) -> int:
        return max(4, round(whole * self.share))

    def _score(self, asked: Sequence[Prompt], mode: Mode, negative: str = "") -> Figures:
        began = time.perf_counter()
        pictures = self.studio.draw(asked, mode, negative)
        seconds = (time.perf_counter() - began) / len(asked)
        objects, backgrounds, _ = judge.verdicts(self.judged, pictures)
        things = torch.tensor([judge.OBJECTS.index(prompt.things[0]) for prompt in asked])
        places = torch.tensor([judge.BACKGROUNDS.index(prompt.background) for prompt in asked])
        return {
            "top1": judge.hits(objects, things, 1),
            "top5": judge.hits(objects, things, 5),
            "background": judge.hits(backgrounds, places, 1),
            "seconds": seconds,
        }

    def finals(self) -> Figures:
        """Every object, two pictures each."""
        return self._score(prompts.objects(self._count(len(judge.OBJECTS))), self.final)

    def previews(self) -> Figures:
        """Every object, two pictures each, in few steps."""
        asked = prompts.objects(self._count(len(judge.OBJECTS)))
        found: Figures = {}
        for steps in (1, 2, 4, 8):
            mode = Mode(True, steps, self.preview.guidance)
            found |= {f"{steps}_{name}": value for name, value in self._score(asked, mode).items()}
        return found

    def similarity(self) -> Figures:
        """How alike preview and final of one seed are, as the app tells people: the median."""
        asked = prompts.objects(self._count(50))
        finals = self.studio.draw(asked, self.final)
        found: Figures = {}
        for steps in (1, 4):
            previews = self.studio.draw(asked, Mode(True, steps, self.preview.guidance))
            pairs = zip(previews, finals, strict=True)
            found[f"{steps}_median"] = statistics.median(similarity(np.asarray(a), np.asarray(b)) for a, b in pairs)
        return found

    def pairs(self) -> Figures:
        """Both of two objects among the five best guesses of either half, one object a half."""
        asked = prompts.pairs(self._count(60))
        both = [self._shows_both(p, prompt) for p, prompt in zip(self._draw(asked), asked, strict=True)]
        return {"both": statistics.mean(both)}

    def _draw(self, asked: Sequence[Prompt]) -> list[Image.Image]:
        return self.studio.draw(asked, self.final)

    def _shows_both(self, picture: Image.Image, prompt: Prompt) -> bool:
        width, height = picture.size
        side, top = width // 2, (height - width // 2) * 0.6
        halves = [picture.crop((x, round(top), x + side, round(top) + side)) for x in (0, width - side)]
        objects = judge.verdicts(self.judged, halves)[0].topk(5, dim=1).indices.tolist()
        first, second = (judge.OBJECTS.index(thing) for thing in prompt.things)
        straight = first in objects[0] and second in objects[1]
        return straight or (second in objects[0] and first in objects[1])

    def sizes(self) -> Figures:
        """ "small" covers less of the page and "big" more of it than the object as it comes."""
        triples = prompts.sizes(self._count(40))
        areas = [[_area(p) for p in self._draw([triple[i] for triple in triples])] for i in range(3)]
        small, plain, big = areas
        return {
            "small_is_smaller": statistics.mean(a < b for a, b in zip(small, plain, strict=True)),
            "big_is_bigger": statistics.mean(a > b for a, b in zip(big, plain, strict=True)),
        }

    def held_out(self) -> Figures:
        """Words that training never saw beside those it did: the object for objects, the background for places."""
        scores = [self._understood(asked) for asked in prompts.held_out_words()]
        return {"unseen": scores[0], "seen": scores[1], "unseen_of_seen": scores[0] / max(scores[1], 1e-9)}

    def _understood(self, asked: Sequence[Prompt]) -> float:
        objects, backgrounds, _ = judge.verdicts(self.judged, self._draw(asked))
        hits = []
        for i, prompt in enumerate(asked):
            if prompt.background == "white":
                hits.append(judge.OBJECTS.index(prompt.things[0]) in objects[i].topk(5).indices.tolist())
            else:
                hits.append(judge.BACKGROUNDS.index(prompt.background) == int(backgrounds[i].argmax()))
        return statistics.mean(hits)

    def buckets(self) -> Figures:
        """The same objects in every size."""
        sizes = prompts.buckets(self._count(40))
        found = {f"{size[1]}x{size[0]}_top5": self._score(asked, self.final)["top5"] for size, asked in sizes.items()}
        return found | {"spread": max(found.values()) - min(found.values())}

    def guidance(self) -> Figures:
        """The object score as guidance rises."""
        asked = prompts.objects(self._count(40))
        scales = (1.0, 2.0, 3.0, 5.0, 7.0)
        scores = {scale: self._score(asked, Mode(False, self.final.steps, scale)) for scale in scales}
        return {f"{scale:g}_{name}": score[name] for scale, score in scores.items() for name in ("top1", "top5")}

    def negative(self) -> Figures:
        """How often grass that was asked for is gone when the negative prompt says "grass"."""
        asked = prompts.on_grass(self._count(40))
        shown = self._score(asked, self.final)["background"]
        left = self._score(asked, self.final, negative="grass")["background"]
        return {"grass_shown": shown, "grass_left": left, "removed": 1 - left / max(shown, 1e-9)}

    def styles(self) -> Figures:
        """Objects and style of every style in both pools, beside the same prompts without a style."""
        asked = prompts.objects(self._count(30))
        found: Figures = {}
        for pool, mode in (("final", self.final), ("preview", self.preview)):
            found[f"{pool}_plain_top5"] = self._score(asked, mode)["top5"]
            for style in self.studio.styles:
                pictures = self.studio.draw(asked, replace(mode, styles=((style, 1.0),)))
                objects, _, kinds = judge.verdicts(self.judged, pictures)
                things = torch.tensor([judge.OBJECTS.index(prompt.things[0]) for prompt in asked])
                found[f"{pool}_{style}_top5"] = judge.hits(objects, things, 5)
                wanted = torch.full((len(asked),), STYLES.index(style))
                found[f"{pool}_{style}_told_apart"] = judge.hits(kinds, wanted, 1)
        return found

    def mixes(self) -> Figures:
        """Two styles at half their weight each: both among the best guesses of the style."""
        asked = prompts.objects(self._count(15))
        found: Figures = {}
        for first, second in pairwise(self.studio.styles):
            mode = replace(self.final, styles=((first, 0.5), (second, 0.5)))
            kinds = judge.verdicts(self.judged, self.studio.draw(asked, mode))[2]
            wanted = {STYLES.index(first), STYLES.index(second)}
            for within in (2, 3):
                both = [wanted <= set(best) for best in kinds.topk(within, dim=1).indices.tolist()]
                found[f"{first}_{second}_top{within}"] = statistics.mean(both)
        return found


def _area(picture: Image.Image) -> float:
    """Share of the picture that is not the white page."""
    distance = 255 - np.asarray(picture.convert("RGB")).min(axis=2)
    return float((distance > _WHITE_DISTANCE).mean())


def report(found: dict[str, Figures], config: dict[str, object], path: Path | None) -> None:
    """Print the table and the JSON line; append the line to a file if one is given."""
    for part, figures in found.items():
        print(part)
        for name, value in figures.items():
            print(f"  {name:32}{value:8.3f}")
    rounded = {part: {name: round(value, 3) for name, value in figures.items()} for part, figures in found.items()}
    line = json.dumps({"machine": MACHINE, "config": config, "figures": rounded})
    print(line)
    if path:
        with path.open("a") as results:
            results.write(line + "\n")


def main() -> None:
    """Evaluate a bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="what to measure; everything by default")
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--share", type=float, default=1.0, help="fraction of the prompts to draw")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=None, help="file to append the JSON line to")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    studio = Studio(options.bundle)
    measures = Measures(studio, judge.load(), options.share).parts()
    unknown = set(options.parts) - set(measures)
    if unknown:
        parser.error(f"unknown parts {sorted(unknown)}; known are {', '.join(measures)}")
    found: dict[str, Figures] = {}
    for part in options.parts or measures:
        print(f"measuring {part}", flush=True)
        found[part] = measures[part]()
    profile = studio.profile
    config = {"version": profile["version"], "share": options.share, "final": profile["final"]}
    report(found, {**config, "preview": profile["preview"]}, options.results)


if __name__ == "__main__":
    main()
