"""What the bundle is asked when it is measured: fixed lists, drawn from fixed seeds."""

from dataclasses import dataclass
from random import Random

import judge
from catalogue import PLACES, article, held_out, object_labels
from scenes import BUCKETS

_UNSEEN_PLACES = {
    "seashore": "at the seashore",
    "coast": "on the coast",
    "lawn": "on the lawn",
    "prairie": "on the prairie",
    "woodland": "in the woodland",
    "jungle": "in the jungle",
    "dunes": "in the dunes",
    "blizzard": "in a blizzard",
    "galaxy": "in the galaxy",
    "twilight": "at twilight",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A caption, what the judge should see in it, and how it is drawn. `things` has two names for a pair."""

    text: str
    things: tuple[str, ...]
    background: str
    seed: int = 0
    size_hw: tuple[int, int] = BUCKETS[0]


def setting(background: str) -> str:
    """Return the phrase that puts a thing there."""
    return PLACES[background][0] if background in PLACES else f"on {article(background)} background"


def objects(count: int | None = None) -> list[Prompt]:
    """Every object (or the first `count` of a shuffled list) twice: on white, and on another place or colour."""
    rng = Random(41)
    names = rng.sample([*object_labels()], len(object_labels()))[:count]
    others = [background for background in judge.BACKGROUNDS if background != "white"]
    white = [Prompt(f"{article(name)} on a white background", (name,), "white", i) for i, name in enumerate(names)]
    elsewhere = []
    for i, name in enumerate(names):
        background = others[i % len(others)]
        elsewhere.append(Prompt(f"{article(name)} {setting(background)}", (name,), background, 1000 + i))
    return white + elsewhere


def pairs(count: int) -> list[Prompt]:
    """Two different objects on a place or colour."""
    rng, prompts = Random(42), []
    for i in range(count):
        first, second = rng.sample([*object_labels()], 2)
        background = rng.choice(judge.BACKGROUNDS)
        text = f"{article(first)} and {article(second)} {setting(background)}"
        prompts.append(Prompt(text, (first, second), background, 2000 + i))
    return prompts


def sizes(count: int) -> list[tuple[Prompt, Prompt, Prompt]]:
    """The same object small, as it comes and big, on white and from one seed."""
    rng, triples = Random(43), []
    for i, name in enumerate(rng.sample([*object_labels()], count)):
        words = [f"{word} {name}" for word in ("small", "big")]
        small, big = [f"a {word}" if article(name) != name else word for word in words]
        nouns = (small, article(name), big)
        triples.append(tuple(Prompt(f"{noun} on a white background", (name,), "white", 3000 + i) for noun in nouns))
    return triples


def held_out_words() -> tuple[list[Prompt], list[Prompt]]:
    """Words that training never saw, and the same prompts with the words it did see."""
    unseen, seen = [], []
    for i, (word, meaning) in enumerate(held_out().items()):
        if meaning in PLACES:
            texts = (f"a cat {_UNSEEN_PLACES[word]}", f"a cat {setting(meaning)}")
            things, background = ("cat",), meaning
        else:
            texts = (f"{article(word)} on a white background", f"{article(meaning)} on a white background")
            things, background = (meaning,), "white"
        unseen.append(Prompt(texts[0], things, background, 4000 + i))
        seen.append(Prompt(texts[1], things, background, 4000 + i))
    return unseen, seen


def buckets(each: int) -> dict[tuple[int, int], list[Prompt]]:
    """The same objects in every size."""
    names = Random(44).sample([*object_labels()], each)
    return {
        size: [
            Prompt(f"{article(name)} on a white background", (name,), "white", 5000 + i, size)
            for i, name in enumerate(names)
        ]
        for size in BUCKETS
    }


def on_grass(count: int) -> list[Prompt]:
    """Objects on the grass."""
    names = Random(45).sample([*object_labels()], count)
    return [Prompt(f"{article(name)} on the grass", (name,), "meadow", 6000 + i) for i, name in enumerate(names)]
