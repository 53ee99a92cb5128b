"""The words storybook knows: objects, places and colours."""

# One object a comma; "name=label" where the everyday name is not the icon set's label.
_OBJECTS = """
monkey, dog, wolf, fox, raccoon, cat, lion, tiger, horse, donkey, unicorn, zebra, deer, cow,
pig, goat, camel, llama, giraffe, elephant, rhinoceros, hippopotamus, mouse, rabbit,
squirrel=chipmunk, hedgehog, bat, bear, polar bear, koala, panda, sloth, kangaroo, turkey,
chicken, chick=baby chick, penguin, eagle, duck, swan, owl, flamingo, peacock, parrot, frog,
crocodile, turtle, snake, dragon, dinosaur=T-Rex, whale, dolphin, fish, shark, octopus,
seashell=spiral shell, crab, lobster, snail, butterfly, bee=honeybee, ladybug=lady beetle,
spider, rose, sunflower, tulip, daisy=blossom, potted plant, pine tree=evergreen tree,
tree=deciduous tree, palm tree, cactus, maple leaf, mushroom, grapes, watermelon,
orange=tangerine, lemon, banana, pineapple, apple=red apple, pear, peach, cherries, strawberry,
blueberries, tomato, avocado, eggplant, potato, carrot, corn=ear of corn, hot pepper,
bell pepper, broccoli, onion, bread, croissant, pretzel, pancakes, cheese=cheese wedge, bacon,
hamburger, french fries, pizza, hot dog, sandwich, taco, egg, popcorn, ice cream, doughnut,
cookie, birthday cake, cupcake, lollipop, honey pot, glass of milk, cup of coffee=hot beverage,
teapot, wine glass, beer mug, mountain=snow-capped mountain, volcano, house, school, factory,
castle, church, tent, ferris wheel, circus tent, locomotive, bus, ambulance, police car, taxi,
car=automobile, pickup truck, truck=delivery truck, tractor, motorcycle, bicycle,
traffic light=vertical traffic light, stop sign, anchor, sailboat, boat=speedboat, ship,
airplane, helicopter, rocket, flying saucer, suitcase=luggage, alarm clock, moon=crescent moon,
sun, planet=ringed planet, star, cloud, rainbow, umbrella, snowflake, snowman, fire,
pumpkin=jack-o-lantern, christmas tree=Christmas tree, balloon, gift=wrapped gift, trophy,
soccer ball, basketball, kite, teddy bear, glasses, necktie, t-shirt, jeans, scarf, socks,
dress, handbag, backpack, running shoe, crown, top hat, ring, diamond=gem stone, bell,
microphone, trumpet, guitar, violin, drum, telephone, laptop, television, camera, candle,
light bulb, book=closed book, mailbox=postbox, pencil, paintbrush, scissors, key, hammer,
telescope, door, bed, chair, bathtub, basket, bucket, shopping cart
"""

# What this version is trained on; the judge tells all objects apart.
_TRAINED = """
cat, dog, horse, cow, pig, rabbit, elephant, lion, fox, panda, penguin, owl, duck, frog, turtle, fish,
whale, butterfly, bee, dinosaur, rose, sunflower, pine tree, tree, cactus, mushroom, apple, banana,
strawberry, watermelon, carrot, pizza, hamburger, ice cream, birthday cake, cup of coffee, house, castle,
mountain, tent, car, bus, truck, bicycle, sailboat, boat, airplane, rocket, balloon, umbrella, snowman,
soccer ball, guitar, book, chair, crown, teddy bear, gift, star, moon
"""

# Places are drawn by code in backgrounds.py; the phrase completes "a cat ...".
PLACES: dict[str, str] = {
    "beach": "on the beach",
    "meadow": "on the grass",
    "sea": "on the sea",
    "desert": "in the desert",
    "snow": "in the snow",
    "forest": "in the forest",
    "night": "at night",
    "sunset": "at sunset",
    "space": "in space",
    "sky": "in the sky",
}

COLOURS: dict[str, tuple[int, int, int]] = {
    "white": (252, 252, 252),
    "black": (22, 22, 26),
    "grey": (150, 152, 158),
    "red": (220, 60, 60),
    "orange": (245, 155, 60),
    "yellow": (250, 215, 80),
    "green": (110, 190, 105),
    "teal": (70, 175, 170),
    "blue": (85, 140, 225),
    "purple": (150, 105, 205),
    "pink": (248, 172, 200),
    "brown": (150, 108, 78),
}


# Other words for an object, used now and then in captions.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "cat": ("kitten", "kitty"),
    "dog": ("puppy",),
    "rabbit": ("bunny",),
    "horse": ("pony",),
    "car": ("automobile",),
    "boat": ("speedboat",),
    "fish": ("goldfish",),
    "dinosaur": ("t-rex",),
    "flying saucer": ("ufo",),
    "airplane": ("plane",),
    "bicycle": ("bike",),
    "doughnut": ("donut",),
    "hamburger": ("burger",),
    "television": ("tv",),
    "telephone": ("phone",),
    "gift": ("present",),
    "hippopotamus": ("hippo",),
    "rhinoceros": ("rhino",),
    "turtle": ("tortoise",),
    "cup of coffee": ("coffee",),
    "soccer ball": ("football",),
    "tree": ("oak tree",),
    "snake": ("serpent",),
    "ship": ("cruise ship",),
}


def object_labels() -> dict[str, str]:
    """Map every object name to its label in emojibase, in training order."""
    pairs = (entry.strip().split("=") for entry in _OBJECTS.replace("\n", " ").split(",") if entry.strip())
    return {pair[0].strip(): pair[-1].strip() for pair in pairs}


def trained_objects() -> tuple[str, ...]:
    """Return the names of the objects this version can draw."""
    return tuple(name.strip() for name in _TRAINED.replace("\n", " ").split(","))


def article(name: str) -> str:
    """Return the noun phrase for a name: "a cat", "an owl", "grapes"."""
    plurals = {
        "grapes",
        "cherries",
        "blueberries",
        "peanuts",
        "pancakes",
        "french fries",
        "glasses",
        "jeans",
        "socks",
        "scissors",
    }
    if name in plurals or name in {
        "bread",
        "bacon",
        "popcorn",
        "butter",
        "sushi",
        "corn",
        "garlic",
        "broccoli",
        "fire",
    }:
        return name
    return f"{'an' if name[0] in 'aeio' or name == 'umbrella' else 'a'} {name}"
