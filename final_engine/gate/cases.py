"""What the gate paints: fixed prompts, sizes and styles, each with its own seed.

The set is pinned: figures of another set cannot be compared, so a change of a line makes every reference anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from core.profile import ModelProfile
from core.recipe import Handoff, Recipe, StyleUse

PoolName = Literal["preview", "final"]
POOLS: tuple[PoolName, ...] = ("preview", "final")
PLAIN = "flat"  # what a judge calls a picture without a style

# prompt | object | background | styles, where it has some | width:height, where it is not square.
# A star marks the short form.
_SET = """
* a cat on the beach | cat | beach
a dog on the grass | dog | meadow
a horse in the snow | horse | snow
a cow on a yellow background | cow | yellow
a pig on a teal background | pig | teal
a rabbit in the forest | rabbit | forest
an elephant in the desert | elephant | desert
a lion at sunset | lion | sunset
a fox on a white background | fox | white
a panda on a pink background | panda | pink
a penguin in the snow | penguin | snow | | 9:7
an owl at night | owl | night
a duck on the sea | duck | sea | | 19:13
a frog on a green background | frog | green
a turtle on the beach | turtle | beach
a fish on a blue background | fish | blue | | 9:7
a whale on the sea | whale | sea
a butterfly in the sky | butterfly | sky
a bee on an orange background | bee | orange
a dinosaur in the desert | dinosaur | desert
a rose on a grey background | rose | grey | | 7:9
a sunflower on the grass | sunflower | meadow | | 13:19
a pine tree in the snow | pine tree | snow | | 7:9
* a tree at sunset | tree | sunset | | 9:7
a cactus in the desert | cactus | desert
a mushroom in the forest | mushroom | forest
an apple on a white background | apple | white
a banana on a purple background | banana | purple
a strawberry on a teal background | strawberry | teal
a watermelon on the beach | watermelon | beach
a carrot on a brown background | carrot | brown
a pizza on a yellow background | pizza | yellow
a hamburger on a red background | hamburger | red
an ice cream on a pink background | ice cream | pink
a birthday cake on a blue background | birthday cake | blue
a cup of coffee on a brown background | cup of coffee | brown
a house in the forest | house | forest | | 9:7
a castle in the snow | castle | snow
a mountain at sunset | mountain | sunset | | 19:13
a tent on the grass | tent | meadow
a car in the desert | car | desert
a bus on a green background | bus | green | | 19:13
a truck on a black background | truck | black
a bicycle on a white background | bicycle | white
a sailboat on the sea | sailboat | sea
a boat at sunset | boat | sunset
* an airplane in the sky | airplane | sky
a rocket in space | rocket | space
a balloon in the sky | balloon | sky | | 7:9
an umbrella on a grey background | umbrella | grey
a snowman at night | snowman | night
a soccer ball on the grass | soccer ball | meadow
a guitar on an orange background | guitar | orange
a crown on a purple background | crown | purple
a cat on a white background | cat | white | ink:1
a castle on a white background | castle | white | chalk:1
a rocket on a yellow background | rocket | yellow | ink:0.8
* an owl on a white background | owl | white | ink:1
a car on a pink background | car | pink | neon:1 | 9:7
a cat on the grass | cat | meadow | noto:1
a panda on a white background | panda | white | sketch:1
a pizza on a blue background | pizza | blue | watercolour:0.7
a strawberry on a white background | strawberry | white | noto:1 | 7:9
an apple on a teal background | apple | teal | ink:0.5 noto:0.5
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt of the set and what should be seen; seed is its place in the set, counted from one.

    Odd seeds are rendered as a person accepts a preview (match), even ones on their own (fresh). Seeds that leave 0 or
    1 when divided by 4 are painted one by one, for the time that a person waits; the others share forwards.
    """

    prompt: str
    asked: Mapping[str, str]
    seed: int
    styles: tuple[StyleUse, ...]
    shape: tuple[int, int]
    short: bool

    @property
    def alone(self) -> bool:
        return self.seed % 4 < 2

    @property
    def follows(self) -> bool:
        """Whether the render follows its preview."""
        return self.seed % 2 == 1

    def recipe(self, profile: ModelProfile, pool: PoolName) -> Recipe:
        """With the pool's defaults, in the size of the model that has this shape."""
        chosen = profile.preview if pool == "preview" else profile.final
        size = profile.final.nearest_bucket(*self.shape)
        handoff = Handoff.MATCH if pool == "final" and self.follows else Handoff.FRESH
        return Recipe(
            prompt=self.prompt,
            negative_prompt="",
            seed=self.seed,
            width=size.width,
            height=size.height,
            steps=chosen.steps,
            guidance_scale=chosen.guidance_scale,
            sampler=chosen.sampler,
            styles=self.styles,
            model_id=profile.id,
            model_version=profile.version,
            handoff=handoff,
        )


def gate_set(style_ids: Collection[str], short: bool = False) -> tuple[Case, ...]:
    """The cases that a model with these styles can paint; the four of the short form where that is asked."""
    cases = [_case(seed, line) for seed, line in enumerate(_SET.strip().splitlines(), start=1)]
    return tuple(
        case for case in cases if all(use.id in style_ids for use in case.styles) and (case.short or not short)
    )


def set_digest() -> str:
    """Names the set; another text has another name, whichever lines are the short form's."""
    return hashlib.sha256(_SET.replace("* ", "").encode()).hexdigest()[:16]


def _case(seed: int, line: str) -> Case:
    prompt, thing, background, *rest = (part.strip() for part in line.removeprefix("*").split("|"))
    styles, shape = (rest[0] if rest else "", rest[1] if len(rest) > 1 else "1:1")
    width, height = shape.split(":")
    uses = tuple(StyleUse.parse(text) for text in styles.split())
    asked = {"object": thing, "background": background}
    if len(uses) < 2:  # two styles at once are neither
        asked["style"] = uses[0].id if uses else PLAIN
    return Case(prompt, asked, seed, uses, (int(width), int(height)), line.startswith("*"))
